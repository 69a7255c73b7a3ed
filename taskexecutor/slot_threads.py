"""Requests the stacks of the threads of the slots' processes, over their links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from firesteel._proto import executor_pb2, inspections_pb2
from firesteel.common.ids import ExecutorId
from firesteel.common.inspections import ThreadStack
from firesteel.common.rpc.convert import THREAD_STACK

ANSWER_S = 8.0


class SlotThreads:
    """`send` sends a message to a process. Requests of several callers share an answer."""

    def __init__(
        self, send: Callable[[ExecutorId, executor_pb2.TaskExecutorToExecutor], None]
    ) -> None:
        self._send = send
        self._waiting: dict[ExecutorId, asyncio.Future[list[ThreadStack]]] = {}

    async def dump(self, executor_ids: Iterable[ExecutorId]) -> list[ThreadStack]:
        """Returns the threads of these processes. One that does not answer in time has a line that
        says so.
        """
        stacks = await asyncio.gather(*(self._dump(each) for each in executor_ids))
        return [stack for each in stacks for stack in each]

    async def _dump(self, executor_id: ExecutorId) -> list[ThreadStack]:
        waiting = self._waiting.get(executor_id)
        if waiting is None:
            waiting = self._waiting[executor_id] = asyncio.get_running_loop().create_future()
            request = inspections_pb2.DumpThreadsRequest()
            self._send(executor_id, executor_pb2.TaskExecutorToExecutor(dump_threads=request))
        try:
            return await asyncio.wait_for(asyncio.shield(waiting), ANSWER_S)
        except TimeoutError:
            self._waiting.pop(executor_id, None)
            text = f"the slot's process has not answered within {ANSWER_S:g} s"
            return [ThreadStack(executor_id, "no answer", text)]

    def answered(self, executor_id: ExecutorId, dump: inspections_pb2.ThreadDump) -> None:
        waiting = self._waiting.pop(executor_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(list(map(THREAD_STACK.decode, dump.threads)))
