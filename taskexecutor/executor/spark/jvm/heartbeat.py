"""Detects a JVM that is alive but does not answer, for example because of a SIGSTOP."""

from __future__ import annotations

import socket
import time
from typing import Any

from firesteel.errors import FiresteelError


def await_silence(gateway: Any, *, interval_s: float, timeout_s: float) -> bool:
    """Asks the JVM for the time every `interval_s`. True once it has not answered for `timeout_s`;
    False if it closes the connection, as it does when it ends.

    The connection has a thread of its own in the JVM: neither long Spark jobs nor busy connections
    delay its answers, only pauses of the whole JVM do. Nor does a pause of this process count as
    silence: the answer is there when it goes on.
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
