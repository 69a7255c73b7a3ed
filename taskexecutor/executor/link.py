"""The link between the process and its TaskExecutor: one stream over a Unix socket, open as long as
the process lives.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import grpc
import structlog

from firesteel._proto import common_pb2, executor_pb2, executor_pb2_grpc
from firesteel.common.rpc.limits import check_size
from firesteel.common.rpc.server import channel

log = structlog.get_logger(__name__)

EXECUTOR_ID_KEY = "firesteel-executor-id"


class Link:
    """`send` from any thread; iterate `received` in one. The iteration ends when the link does.

    A thread sends heartbeats: it needs the interpreter, so the TaskExecutor notices both a process
    that is stopped and native code that never lets go of the interpreter's lock.
    """

    def __init__(self, address: str, executor_id: str, *, heartbeat_interval_s: float) -> None:
        self._outgoing: queue.SimpleQueue[executor_pb2.ExecutorToTaskExecutor | None] = (
            queue.SimpleQueue()
        )
        self._ended = threading.Event()
        self._channel = channel(address)
        stub = executor_pb2_grpc.ExecutorLinkStub(self._channel)  # type: ignore[no-untyped-call]
        self._call = stub.Connect(
            iter(self._outgoing.get, None),
            metadata=((EXECUTOR_ID_KEY, executor_id),),
            wait_for_ready=True,
        )
        self._heartbeat_interval_s = heartbeat_interval_s
        threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True).start()

    def send(self, message: executor_pb2.ExecutorToTaskExecutor) -> None:
        """Raises MessageTooLarge, and then the link stays open."""
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
        """As `close`, for when no other thread iterates `received`."""
        threading.Thread(
            target=lambda: list(self.received()), name="link-flush", daemon=True
        ).start()
        self.close(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Waits until the TaskExecutor has everything that was sent and ends the stream, at most
        `timeout_s`.
        """
        self._outgoing.put(None)
        self._ended.wait(timeout_s)
