"""Tests the verdicts about prepared transactions, and the owners of transactional ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taskexecutor.executor.connectors.kafka.verdicts import (
    Description,
    First,
    Prepared,
    State,
    TransactionalIds,
    Verdict,
    verdict,
)

PREPARED = Prepared(
    transactional_id="p-0123abcd-0of1-0",
    producer_id=7,
    epoch=3,
    began_ms=1_000,
    checkpoint=12,
    records=5,
    size_bytes=50,
    first=(First(topic="t", partition=0, offset=40), First(topic="t", partition=1, offset=-1)),
)
FOUND = Description(
    state=State.ONGOING, producer_id=7, epoch=3, began_ms=1_000, timeout_ms=1, partitions=()
)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State.ONGOING, Verdict.COMMIT),
        (State.PREPARE_COMMIT, Verdict.WAIT),
        (State.COMPLETE_COMMIT, Verdict.COMMITTED),
        (State.PREPARE_ABORT, Verdict.ABORTED),
        (State.COMPLETE_ABORT, Verdict.ABORTED),
        (State.PREPARE_EPOCH_FENCE, Verdict.ABORTED),
        (State.EMPTY, Verdict.UNKNOWN),
        (State.DEAD, Verdict.UNKNOWN),
        (State.OTHER, Verdict.UNKNOWN),
    ],
)
def test_the_state_of_the_transaction_itself_decides(state: State, expected: Verdict) -> None:
    assert verdict(PREPARED, replace(FOUND, state=state)) is expected


def test_a_broker_that_raises_epochs_at_the_end_has_committed_it() -> None:
    found = replace(FOUND, state=State.COMPLETE_COMMIT, epoch=4)
    assert verdict(PREPARED, found) is Verdict.COMMITTED


def test_a_time_out_raises_the_epoch_and_aborts() -> None:
    found = replace(FOUND, state=State.COMPLETE_ABORT, epoch=4)
    assert verdict(PREPARED, found) is Verdict.ABORTED


@pytest.mark.parametrize("state", [State.ONGOING, State.COMPLETE_ABORT, State.COMPLETE_COMMIT])
def test_a_later_one_of_the_same_producer_proves_the_commit(state: State) -> None:
    found = replace(FOUND, state=state, began_ms=1_001)
    assert verdict(PREPARED, found) is Verdict.COMMITTED


@pytest.mark.parametrize(
    "found",
    [
        None,
        replace(FOUND, producer_id=8),
        replace(FOUND, epoch=4),  # to commit it would be refused
        replace(FOUND, epoch=5, began_ms=2_000),
        replace(FOUND, state=State.EMPTY, epoch=5, began_ms=-1),
        replace(FOUND, began_ms=999),
    ],
)
def test_of_another_producer_nothing_follows(found: Description | None) -> None:
    assert verdict(PREPARED, found) is Verdict.UNKNOWN


def test_places_are_topics_partitions_and_offsets() -> None:
    assert PREPARED.places == "topic t partition 0 from offset 40; topic t partition 1"


def ids(subtask: int, parallelism: int, prefix: str = "p") -> TransactionalIds:
    return TransactionalIds(
        prefix=prefix, operator_id="0123abcdef", subtask=subtask, parallelism=parallelism
    )


def test_every_id_of_another_parallelism_has_one_owner() -> None:
    names = [ids(subtask, 5).name(number) for subtask in range(5) for number in range(3)]
    for parallelism in (1, 2, 3, 8):
        owned = [
            n for subtask in range(parallelism) for n in ids(subtask, parallelism).inherited(names)
        ]
        assert sorted(owned) == sorted(names)
        assert not any(ids(s, parallelism).own(names) for s in range(parallelism))
    for subtask in range(5):
        assert ids(subtask, 5).own(names) == names[3 * subtask : 3 * subtask + 3]
        assert ids(subtask, 5).inherited(names) == []


def test_a_longer_prefix_is_somebody_else() -> None:
    own = ids(0, 1)
    longer = ids(0, 2, prefix=f"p-{own.operator_id[:8]}-0of2").name(0)
    assert longer.startswith(own.of_sink)
    assert own.inherited([longer]) == []


def test_subtask_1_does_not_own_the_ids_of_subtask_11() -> None:
    assert ids(1, 12).own([ids(11, 12).name(0), ids(1, 12).name(11)]) == [ids(1, 12).name(11)]
