"""The link between the process and its TaskExecutor: one stream over a Unix socket, open for the
lifetime of the process.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import grpc

from firesteel._proto import common_pb2, executor_pb2, executor_pb2_grpc
from firesteel.common.logs import get_logger
from firesteel.common.rpc.bearer import carry_token
from firesteel.common.rpc.errors import check_size
from firesteel.common.rpc.server import channel

log = get_logger(__name__)

EXECUTOR_ID_KEY = "firesteel-executor-id"


class ExecutorLink:
    """`send` may be called from any thread; iterate `received` in one. The iteration ends with the
    link.

    A thread sends heartbeats. It needs the interpreter, so the TaskExecutor detects both a stopped
    process and native code that never releases the interpreter's lock.
    """

    def __init__(
        self, address: str, executor_id: str, *, token: str = "", heartbeat_interval_s: float
    ) -> None:
        self._outgoing: queue.SimpleQueue[executor_pb2.ExecutorToTaskExecutor | None] = (
            queue.SimpleQueue()
        )
        self._ended = threading.Event()
        self._channel = channel(address)
        if token:
            carry_token(self._channel, lambda: token)
        stub = executor_pb2_grpc.ExecutorLinkStub(self._channel)  # type: ignore[no-untyped-call]
        self._call = stub.Connect(
            iter(self._outgoing.get, None),
            metadata=((EXECUTOR_ID_KEY, executor_id),),
            wait_for_ready=True,
        )
        self._heartbeat_interval_s = heartbeat_interval_s
        threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True).start()

    def send(self, message: executor_pb2.ExecutorToTaskExecutor) -> None:
        """Sends the message. Raises MessageTooLarge, which leaves the link open."""
        check_size(message, f"the slot's message {message.WhichOneof('message')!r}")
        self._outgoing.put(message)

    def _send_heartbeats(self) -> None:
        heartbeat = executor_pb2.ExecutorToTaskExecutor(heartbeat=common_pb2.Heartbeat())
        while not self._ended.wait(self._heartbeat_interval_s):
            self.send(heartbeat)

    def received(self) -> Iterator[executor_pb2.TaskExecutorToExecutor]:
        try:
            yield from self._call
        except grpc.RpcError as error:
            log.warning("the link to the TaskExecutor is broken", cause=str(error.code()))
        finally:
            self._ended.set()

    def flush(self, timeout_s: float) -> None:
        """Like `close`, for use while no other thread iterates `received`."""
        threading.Thread(
            target=lambda: list(self.received()), name="link-flush", daemon=True
        ).start()
        self.close(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Waits, at most `timeout_s`, until the TaskExecutor has received every message, and ends
        the stream.
        """
        self._outgoing.put(None)
        self._ended.wait(timeout_s)
