"""The process' link to its TaskExecutor: one stream over a Unix socket, open for as long as the
process lives.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import grpc
import structlog

from firesteel._proto import executor_pb2, executor_pb2_grpc
from firesteel.common.rpc.server import channel

log = structlog.get_logger(__name__)

EXECUTOR_ID_KEY = "firesteel-executor-id"


class Link:
    """`send` from any thread; iterate `received` in one. The iteration ends when the link does."""

    def __init__(self, address: str, executor_id: str) -> None:
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

    def send(self, message: executor_pb2.ExecutorToTaskExecutor) -> None:
        self._outgoing.put(message)

    def received(self) -> Iterator[executor_pb2.TaskExecutorToExecutor]:
        try:
            yield from self._call
        except grpc.RpcError as error:
            log.warning("the link to the TaskExecutor is broken", cause=str(error.code()))
        finally:
            self._ended.set()

    def flush(self, timeout_s: float) -> None:
        """As `close`, where nobody iterates `received`."""
        threading.Thread(
            target=lambda: list(self.received()), name="link-flush", daemon=True
        ).start()
        self.close(timeout_s)

    def close(self, timeout_s: float) -> None:
        """What was sent before reaches the TaskExecutor, which then ends the stream, or `timeout_s`
        passes.
        """
        self._outgoing.put(None)
        self._ended.wait(timeout_s)
