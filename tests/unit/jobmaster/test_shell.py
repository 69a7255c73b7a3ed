"""The shell around a job's core."""

from __future__ import annotations

import asyncio

from firesteel._proto import dispatcher_pb2
from firesteel.common.ids import AllocationId, Epoch, IdSource, TaskExecutorId
from firesteel.common.leader import FixedLeaders, Leader, LeaderRetriever, Office
from firesteel.common.rpc.convert import JOB_GRAPH
from firesteel.common.service.platform import SYSTEM
from firesteel.high_availability.retriever import Retriever
from jobmaster.core import commands
from jobmaster.core.checkpoints.recovery import Recovery
from jobmaster.core.settings import JobSettings
from jobmaster.paths import list_files
from jobmaster.servicer import Sessions
from jobmaster.shell import RunningJob
from tests.job_master import job, vertex
from tests.waiting import PATIENCE_S


class ElectedLeaders(FixedLeaders):
    def __init__(self) -> None:
        self.retriever = Retriever(Office.DISPATCHER)

    def of(self, office: Office, address: str) -> LeaderRetriever:
        return self.retriever


async def test_a_dispatcher_elected_while_the_job_was_restored_has_its_files() -> None:
    leaders = ElectedLeaders()
    leaders.retriever.announced(Leader("new:1", Epoch(2)))
    graph = job(vertex("a", 1))
    running = RunningJob(
        dispatcher_pb2.StartJob(
            job_graph=JOB_GRAPH.encode(graph), epoch=1, dispatcher_address="old:1"
        ),
        graph,
        JobSettings(),
        Recovery(epoch=1),
        sessions=Sessions(),
        address="",
        report=lambda _: None,
        exit_process=lambda: None,
        platform=SYSTEM,
        ids=IdSource(),
        list_paths=list_files,
        leaders=leaders,
    )
    analyze = commands.AnalyzeJob(
        task_executor_id=TaskExecutorId("t"), allocation_id=AllocationId("a")
    )

    def address() -> str:
        return running._messages.convert(analyze).analyze.dispatcher_address

    following = asyncio.create_task(running._follow_dispatcher())
    for epoch, leads in enumerate(("new:1", "newer:1"), 2):
        leaders.retriever.announced(Leader(leads, Epoch(epoch)))
        async with asyncio.timeout(PATIENCE_S):
            while address() != leads:
                await asyncio.sleep(0)
    following.cancel()
