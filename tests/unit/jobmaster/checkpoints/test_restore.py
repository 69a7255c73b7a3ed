"""A checkpoint's state, matched with a program and cut for its parallelism."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.checkpoints.fits import CannotRestore, check_fits
from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.common.checkpoints.state import (
    InFlight,
    KeyedHandle,
    KeyGroupSlice,
    OperatorSnapshot,
    StateFile,
)
from firesteel.common.ids import ResultId
from firesteel.common.job_graph import JobGraph, Partitioner
from firesteel.common.key_groups import key_group_range
from firesteel.elements import MIN_TIMESTAMP_US
from jobmaster.core.checkpoints.restore import (
    assign,
)
from tests.job_master import job, operator_id, vertex

MAX_PARALLELISM = 12


def snapshot(
    subtask: int,
    parallelism: int,
    *,
    keyed: bool = False,
    items: int = 0,
    union: int = 0,
    broadcast: bool = False,
) -> OperatorSnapshot:
    """Each value says where it comes from."""
    key_groups = key_group_range(subtask, parallelism, MAX_PARALLELISM)
    handle = KeyedHandle(
        file=StateFile(path=f"chk-1/{subtask}", size_bytes=1000, checksum="c"),
        slices=tuple(
            KeyGroupSlice(g, g * 10, 10, f"{g}") for g in range(key_groups.first, key_groups.end)
        ),
    )
    return OperatorSnapshot(
        operator_id=operator_id("a"),
        keyed=(handle,) if keyed else (),
        lists={"l": tuple(f"{subtask}.{n}".encode() for n in range(items))} if items else {},
        union_lists={"u": tuple(f"{subtask}.{n}".encode() for n in range(union))} if union else {},
        broadcasts={"b": b"same"} if broadcast else {},
    )


def checkpointed(
    parallelism: int, finished: frozenset[int] = frozenset(), **state: int | bool
) -> CheckpointedOperator:
    return CheckpointedOperator(
        operator_id=operator_id("a"),
        uid="",
        name="a",
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        subtasks={
            n: snapshot(n, parallelism, **state)  # type: ignore[arg-type]
            for n in range(parallelism)
            if n not in finished
        },
    )


parallelisms = st.integers(1, MAX_PARALLELISM)


@given(parallelisms, parallelisms)
def test_every_key_group_goes_to_the_subtask_that_gets_its_keys(before: int, after: int) -> None:
    restored = assign(checkpointed(before, keyed=True), after)
    for subtask, part in enumerate(restored):
        expected = key_group_range(subtask, after, MAX_PARALLELISM)
        found = [s.key_group for handle in part.keyed for s in handle.slices]
        assert found == list(range(expected.first, expected.end))
    assert all(handle.slices for part in restored for handle in part.keyed), "no empty handles"


@given(parallelisms, parallelisms, st.integers(0, 5), st.data())
def test_no_list_item_is_lost_doubled_or_reordered(
    before: int, after: int, items: int, data: st.DataObject
) -> None:
    finished = data.draw(st.frozensets(st.integers(0, before - 1), max_size=before - 1))
    operator = checkpointed(before, finished, items=items, union=items)
    expected = tuple(
        item for n in sorted(operator.subtasks) for item in operator.subtasks[n].lists.get("l", ())
    )
    restored = assign(operator, after)
    assert tuple(item for part in restored for item in part.lists.get("l", ())) == expected
    for part in restored:
        assert part.union_lists.get("u", ()) == expected
    sizes = [len(part.lists.get("l", ())) for part in restored]
    assert before == after or max(sizes) - min(sizes) <= 1


def test_lists_stay_where_they_were_if_nothing_has_changed() -> None:
    operator = checkpointed(2, items=2)
    uneven = replace(operator, subtasks={**operator.subtasks, 1: snapshot(1, 2, items=5)})
    assert [len(part.lists["l"]) for part in assign(uneven, 2)] == [2, 5]
    first_finished = assign(checkpointed(2, frozenset({0}), items=2), 2)
    assert [len(part.lists.get("l", ())) for part in first_finished] == [0, 2]


def test_new_subtasks_get_the_broadcast_state_of_any_that_ran() -> None:
    restored = assign(checkpointed(3, frozenset({0, 2}), broadcast=True), 4)
    assert [part.broadcasts for part in restored] == [{"b": b"same"}] * 4


def test_broadcast_states_stay_where_they_were_if_nothing_has_changed() -> None:
    """An unaligned barrier overtakes the broadcast stream at a different row in each of them."""
    parts = {n: replace(snapshot(n, 2), broadcasts={"b": f"{n}".encode()}) for n in range(2)}
    first_has_none = {0: snapshot(0, 2), 1: parts[1]}
    for subtasks in (parts, first_has_none):
        restored = assign(replace(checkpointed(2), subtasks=subtasks), 2)
        assert [part.broadcasts for part in restored] == [p.broadcasts for p in subtasks.values()]


def program(**fields: int) -> JobGraph:
    return job(vertex("a", 2, **{"max_parallelism": MAX_PARALLELISM, **fields}))


def test_state_of_a_missing_operator_is_refused_unless_it_may_be_dropped() -> None:
    gone = replace(checkpointed(1, items=1), operator_id=operator_id("old"), name="old", uid="o")
    with pytest.raises(CannotRestore, match=r"state of 'old' \(uid o\), .* 'a' \(without a uid\)"):
        check_fits(program(), [gone])
    check_fits(program(), [gone], allow_non_restored_state=True)


def test_an_operator_without_state_may_go() -> None:
    check_fits(program(), [replace(checkpointed(1), operator_id=operator_id("old"))])


def test_the_max_parallelism_of_keyed_state_is_for_good() -> None:
    with pytest.raises(CannotRestore, match="has max parallelism 7 and was checkpointed with 12"):
        check_fits(program(max_parallelism=7), [checkpointed(2, keyed=True)])
    check_fits(program(max_parallelism=7), [checkpointed(2, items=1)])
    check_fits(program(), [checkpointed(2, keyed=True)])


def at(*reached_us: int | None, state: bool = True) -> CheckpointedOperator:
    """Returns an operator whose subtasks are at these event times; some had reached its end."""
    items, count = int(state), len(reached_us)
    parts = enumerate(snapshot(n, count, items=items) for n in range(count))
    return CheckpointedOperator(
        operator_id=operator_id("a"),
        uid="u",
        name="a",
        parallelism=len(reached_us),
        max_parallelism=MAX_PARALLELISM,
        subtasks={
            n: replace(part, watermark_us=us)
            for (n, part), us in zip(parts, reached_us, strict=True)
        },
    )


def test_subtasks_at_different_event_times_keep_their_number() -> None:
    """Which windows have fired, and which rows are late, differs between them."""
    differing, same = at(5_000_000, 15_000_000, 15_000_000), at(5, 5, None)
    assert program().vertices[0].parallelism == 2
    with pytest.raises(
        CannotRestore,
        match=r"'a' \(uid u\) had reached different event times .* \(1970-01-01 00:00:05.000 to "
        r"1970-01-01 00:00:15.000\), so it has to keep the parallelism 3; the program has 2",
    ):
        check_fits(program(), [differing])
    with pytest.raises(CannotRestore, match="different event times"):
        check_fits(program(), [at(MIN_TIMESTAMP_US, 5, 5)])  # one had not come to any
    assert [part.watermark_us for part in assign(differing, 3)] == [5_000_000, *[15_000_000] * 2]
    check_fits(program(), [same])
    assert [part.watermark_us for part in assign(same, 3)] == [5, 5, None]
    assert [part.watermark_us for part in assign(same, 2)] == [5, 5]
    check_fits(program(), [at(5)])


def test_subtasks_without_state_also_keep_their_event_time() -> None:
    """If their number changes, that of the subtasks with state counts."""
    without = at(5, 15, state=False)
    check_fits(program(), [without])
    assert [part.watermark_us for part in assign(without, 2)] == [5, 15]
    assert [part.watermark_us for part in assign(without, 3)] == [15] * 3
    mixed = replace(without, subtasks={**without.subtasks, 0: at(5).subtasks[0]})
    check_fits(program(), [replace(mixed, parallelism=3)])
    assert [part.watermark_us for part in assign(mixed, 3)] == [5] * 3


def test_without_uids_a_new_operator_does_not_get_the_old_ones_state() -> None:
    check_fits(program(), [checkpointed(1, items=1)])
    with pytest.raises(CannotRestore, match=r"operator 'a' is where 'other' was, .* a uid"):
        check_fits(program(), [replace(checkpointed(1, items=1), name="other")])
    check_fits(program(), [replace(checkpointed(1, items=1), name="other", uid="u")])


def in_flight(partitioner: Partitioner, parallelism: int) -> CheckpointedOperator:
    """With one file of batches on their way to each subtask."""
    return replace(
        checkpointed(parallelism),
        subtasks={
            n: OperatorSnapshot(
                operator_id=operator_id("a"),
                in_flight=(
                    InFlight(
                        result_id=ResultId("r"),
                        partitioner=partitioner,
                        file=StateFile(path=f"chk-1/{n}", size_bytes=1, checksum="c"),
                        batches=((0, 1),),
                    ),
                ),
            )
            for n in range(parallelism)
        },
    )


def files(partitioner: Partitioner, before: int, after: int) -> list[list[str]]:
    return [
        [file.path for file in part.files] for part in assign(in_flight(partitioner, before), after)
    ]


def test_rows_on_their_way_go_where_they_belong() -> None:
    for partitioner in Partitioner:
        assert files(partitioner, 2, 2) == [["chk-1/0"], ["chk-1/1"]], "where they were"
    assert files(Partitioner.HASH, 2, 3) == [["chk-1/0", "chk-1/1"]] * 3, "each takes its keys"
    for partitioner in (Partitioner.REBALANCE, Partitioner.RESCALE):
        assert files(partitioner, 3, 2) == [["chk-1/0", "chk-1/2"], ["chk-1/1"]], "anywhere"


def test_rows_in_flight_without_a_receiver_are_refused() -> None:
    """Silently dropped, they would be lost."""
    graph = job(vertex("source", 2), vertex("a", 2))
    (edge,) = graph.edges

    def checkpoint(partitioner: Partitioner, parallelism: int) -> CheckpointedOperator:
        operator = in_flight(partitioner, parallelism)
        subtasks = {
            n: replace(part, in_flight=(replace(part.in_flight[0], result_id=edge.result_id),))
            for n, part in operator.subtasks.items()
        }
        return replace(operator, subtasks=subtasks)

    for partitioner in (Partitioner.FORWARD, Partitioner.BROADCAST):
        check_fits(graph, [checkpoint(partitioner, 2)])
        with pytest.raises(CannotRestore, match=rf"rows of a {partitioner.name.lower()} exchange"):
            check_fits(graph, [checkpoint(partitioner, 3)])
    check_fits(graph, [checkpoint(Partitioner.HASH, 3)])
    with pytest.raises(CannotRestore, match=r"by an exchange that the program no longer has"):
        check_fits(graph, [in_flight(Partitioner.HASH, 2)])
