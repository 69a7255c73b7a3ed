"""Checkpoints that callers trigger by an id of theirs."""

from __future__ import annotations

import asyncio

import pytest

from firesteel._proto import job_master_pb2
from firesteel.errors import FiresteelError
from jobmaster.triggers import MAX_ENDED, Triggers

Response = job_master_pb2.TakeCheckpointResponse


class Taking:
    """A checkpoint that is complete, or fails, when the test says so."""

    def __init__(self) -> None:
        self.begun = 0
        self.outcome: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> Response:
        self.begun += 1
        return await self.outcome


async def test_a_repeated_call_gets_the_outcome_of_the_first() -> None:
    triggers, taking = Triggers(), Taking()
    first = asyncio.ensure_future(asyncio.shield(triggers.start("a", taking)))
    await asyncio.sleep(0)
    first.cancel()  # the Dispatcher that called has died
    again = triggers.start("a", taking)
    taking.outcome.set_result(Response(checkpoint_id=7))
    assert (await again).checkpoint_id == 7
    assert triggers.find("a") is again
    assert taking.begun == 1


async def test_a_failure_is_an_outcome_too() -> None:
    triggers, taking = Triggers(), Taking()
    task = triggers.start("a", taking)
    taking.outcome.set_exception(FiresteelError("the disk is full"))
    for _ in range(2):
        with pytest.raises(FiresteelError, match="disk is full"):
            await asyncio.shield(task)
    assert triggers.find("b") is None


async def test_the_oldest_outcomes_are_forgotten() -> None:
    triggers, open_one = Triggers(), Taking()
    triggers.start("open", open_one)

    async def taken() -> Response:
        return Response()

    for number in range(MAX_ENDED + 10):
        await triggers.start(str(number), taken)
    assert triggers.find("open") is not None
    assert triggers.find("9") is None
    assert triggers.find(str(MAX_ENDED + 9)) is not None
    open_one.outcome.set_result(Response())
