"""The gRPC service by which a process returns the stacks of its threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import grpc

from firesteel._proto import inspections_pb2, inspections_pb2_grpc
from firesteel.common.inspections import ThreadStack
from firesteel.common.rpc.convert import THREAD_STACK
from firesteel.common.thread_stacks import coroutines, python_threads
from firesteel.text import clipped, valid_text

MAX_STACK_CHARS = 20_000

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


async def _none() -> list[ThreadStack]:
    return []


class ThreadsServicer(inspections_pb2_grpc.ThreadsServicer):
    """`others` returns the threads of the processes that belong to this one."""

    def __init__(
        self, process: str, others: Callable[[], Awaitable[list[ThreadStack]]] = _none
    ) -> None:
        self._process = process
        self._others = others

    async def DumpThreads(
        self, request: inspections_pb2.DumpThreadsRequest, context: _Context
    ) -> inspections_pb2.ThreadDump:
        return dump([*own_threads(self._process), *await self._others()])


def own_threads(process: str) -> list[ThreadStack]:
    """Returns the stacks of this process's threads, and of the tasks of its event loop."""
    return [*python_threads(process), *coroutines(process)]


def dump(stacks: Iterable[ThreadStack]) -> inspections_pb2.ThreadDump:
    return inspections_pb2.ThreadDump(
        threads=[
            THREAD_STACK.encode(
                ThreadStack(
                    valid_text(process),
                    valid_text(name),
                    clipped(valid_text(stack), MAX_STACK_CHARS),
                )
            )
            for process, name, stack in stacks
        ]
    )


def add_to_server(server: grpc.aio.Server, servicer: ThreadsServicer) -> None:
    inspections_pb2_grpc.add_ThreadsServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
