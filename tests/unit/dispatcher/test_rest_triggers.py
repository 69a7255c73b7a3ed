"""Checkpoints that clients of the REST API poll, while Dispatchers come and go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from dispatcher.rest import triggers
from dispatcher.rest.operations import Operations
from dispatcher.rest.requests import Refusal
from firesteel._proto import job_master_pb2
from firesteel.common.rpc.status import Reason, status_of

JOB, TRIGGER = "a" * 32, "b" * 32
TAKEN = job_master_pb2.TakeCheckpointResponse(checkpoint_id=7, path="/savepoint")
AWAITED = job_master_pb2.AwaitCheckpointRequest(job_id=JOB, trigger_id=TRIGGER)
REQUEST = job_master_pb2.TakeCheckpointRequest(job_id=JOB, trigger_id=TRIGGER, savepoint=True)
NO_LEADER = Refusal(503, "no Dispatcher leads")


def error(reason: Reason | None = None) -> AioRpcError:
    """The error of a call: refused for a reason, or of a broken connection."""
    if reason is None:
        return AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "Socket closed")
    status = status_of(reason, reason.name)
    return AioRpcError(status.code, Metadata(), Metadata(*status.trailing_metadata), status.details)


class Cluster:
    """A gateway whose Dispatcher answers with what the test lists, in this order."""

    def __init__(self, *answers: Any) -> None:
        self.operations = Operations()
        self.calls: list[str] = []
        self._answers = list(answers)

    @property
    def dispatcher(self) -> Any:
        if self._answers and isinstance(self._answers[0], Refusal):
            raise self._answers.pop(0)
        return SimpleNamespace(
            TakeCheckpoint=lambda request, metadata: self._answer("take"),
            AwaitCheckpoint=lambda request, metadata: self._answer("await"),
        )

    def metadata(self, request: Any) -> triggers.Metadata:
        return ()

    async def _answer(self, call: str) -> Any:
        self.calls.append(call)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "_PAUSE_S", 0.0)


def poll() -> Any:
    return SimpleNamespace(match_info={"job": JOB, "trigger": TRIGGER})


async def outcome(cluster: Any) -> Any:
    return await triggers.outcome(cluster, AWAITED, (), taking=REQUEST)


async def test_a_failover_while_a_savepoint_is_taken_is_waited_for() -> None:
    cluster = Cluster(error(), NO_LEADER, error(Reason.STARTING), TAKEN)
    assert await outcome(cluster) == TAKEN
    assert cluster.calls == ["take", "await", "await"]


async def test_a_call_that_was_lost_is_made_again() -> None:
    cluster = Cluster(error(), error(Reason.TRIGGER_NOT_FOUND), TAKEN)
    assert await outcome(cluster) == TAKEN
    assert cluster.calls == ["take", "await", "take"]


async def test_a_failure_is_not_repeated() -> None:
    cluster = Cluster(error(Reason.CHECKPOINT_NOT_TAKEN))
    with pytest.raises(AioRpcError, match="CHECKPOINT_NOT_TAKEN"):
        await outcome(cluster)
    assert cluster.calls == ["take"]


async def test_a_cluster_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "FAILOVER_S", 0.0)
    cluster = Cluster(*[NO_LEADER] * 100)
    with pytest.raises(Refusal, match="no Dispatcher leads"):
        await outcome(cluster)


async def test_an_operation_of_another_server_is_adopted() -> None:
    cluster: Any = Cluster(error(), TAKEN)
    await triggers.adopt(cluster, poll())
    operation = cluster.operations.find(TRIGGER)
    assert operation is not None and operation.result() == TAKEN
    await triggers.adopt(cluster, poll())  # the next poll
    assert cluster.calls == ["await", "await"]


async def test_an_operation_that_nobody_knows_is_refused_and_forgotten() -> None:
    cluster: Any = Cluster(error(Reason.TRIGGER_NOT_FOUND))
    with pytest.raises(AioRpcError, match="TRIGGER_NOT_FOUND"):
        await triggers.adopt(cluster, poll())
    assert cluster.operations.find(TRIGGER) is None
