"""Detects a JVM that is alive but does not respond, for example because of a SIGSTOP."""

from __future__ import annotations

import socket
import time
from typing import Any

from firesteel.errors import FiresteelError


def await_silence(gateway: Any, *, interval_s: float, timeout_s: float) -> bool:
    """Requests the JVM's time every `interval_s`. Returns True once the JVM has not responded for
    `timeout_s`, and False if it closes the connection, as it does when it ends.

    The connection has a dedicated thread in the JVM: neither long Spark jobs nor busy connections
    delay its responses, only pauses of the whole JVM do. A pause of this process does not count as
    silence either, because the response is available when it resumes.
    """
    from py4j import protocol

    parameters = gateway.gateway_parameters
    pause_s = min(interval_s, timeout_s / 2)
    request = f"{protocol.AUTH_COMMAND_NAME}\n{parameters.auth_token}\n"
    read_clock = (
        f"{protocol.CALL_COMMAND_NAME}{protocol.STATIC_PREFIX}java.lang.System\n"
        f"nanoTime\n{protocol.END_COMMAND_PART}"
    )
    try:
        with (
            socket.create_connection(
                (parameters.address, parameters.port), timeout=timeout_s - pause_s
            ) as connection,
            connection.makefile("rb") as answers,
        ):
            while True:
                connection.sendall(request.encode())
                answer = answers.readline().decode().removeprefix(protocol.RETURN_MESSAGE)
                if not answer:
                    return False
                if protocol.is_error(answer)[0]:
                    raise FiresteelError(f"the JVM's gateway answered {answer!r}")
                request = read_clock
                time.sleep(pause_s)
    except TimeoutError:
        return True
    except OSError:
        return False
