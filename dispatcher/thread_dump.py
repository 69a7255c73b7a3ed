"""Collects the stacks of the masters' threads: of this process, of the ResourceManager, and of the
JobMasters of running jobs.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from dispatcher.shell import Shell
from firesteel._proto import inspections_pb2
from firesteel._proto.inspections_pb2_grpc import ThreadsStub
from firesteel.common.inspections import ThreadStack
from firesteel.common.rpc.convert import THREAD_STACK
from firesteel.common.rpc.threads import dump, own_threads

CALL_TIMEOUT_S = 3.0
MAX_JOB_MASTERS = 20


async def dump_masters(shell: Shell) -> inspections_pb2.ThreadDump:
    processes = (
        shell.core.process_of(job) for job in list(shell.core.jobs.values()) if not job.ended
    )
    addresses = [process.address for process in processes if process is not None]
    masters = [shell.resource_manager, *addresses[:MAX_JOB_MASTERS]]
    stacks = await asyncio.gather(*(_threads_at(shell, each) for each in masters if each))
    return dump([*own_threads("Dispatcher"), *(stack for each in stacks for stack in each)])


async def _threads_at(shell: Shell, address: str) -> list[ThreadStack]:
    stub: Any = ThreadsStub(shell.channel(address))  # type: ignore[no-untyped-call]
    try:
        answer = await stub.DumpThreads(
            inspections_pb2.DumpThreadsRequest(), timeout=CALL_TIMEOUT_S
        )
    except grpc.aio.AioRpcError as error:
        return [ThreadStack(address, "no answer", error.code().name)]
    return list(map(THREAD_STACK.decode, answer.threads))
