"""Broadcast state: the same in all subtasks, written by rows of the broadcast stream only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from firesteel import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from firesteel.broadcast_functions import BroadcastReadContext, BroadcastWriteContext
from firesteel.errors import FiresteelError
from firesteel.functions import FunctionContext
from firesteel.operators import BroadcastProcessSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.process.analysis import check_function
from taskexecutor.executor.operators.process.broadcast import BroadcastProcess
from tests.batches import batch_of
from tests.unit.task.checkpoints.vertices import Vertex

ROWS = pa.schema([("key", pa.string()), ("amount", pa.int64())])
RULES = pa.schema([("rule", pa.string()), ("least", pa.int64())])
RESULT = pa.schema([("key", pa.string()), ("what", pa.string()), ("amount", pa.int64())])


class Alarms(KeyedBroadcastProcessFunction):
    """Rows that are at least what a rule says; a new rule is applied to the sums of all keys."""

    def open(self, context: FunctionContext) -> None:
        self.total = context.get_state("total", "BIGINT")

    def process_element(self, value: Row, ctx: BroadcastReadContext) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.amount)
        ctx.timer_service().register_event_time_timer(10)
        for rule, least in sorted(ctx.get_broadcast_state("rules").items()):
            if value.amount >= least:
                yield ctx.get_current_key(), rule, value.amount

    def process_broadcast_element(self, value: Row, ctx: BroadcastWriteContext) -> Iterator[Any]:
        rules = ctx.get_broadcast_state("rules")
        if value.least is None:
            rules.remove(value.rule)
            return
        rules.put(value.rule, value.least)
        found = []

        def check(key: Any, total: Any) -> None:
            if total.value() >= value.least:
                found.append((key, f"all {value.rule}", total.value()))
                total.clear()

        ctx.apply_to_keyed_state(self.total, check)
        yield from sorted(found)

    def on_timer(self, timestamp_ms: int, ctx: BroadcastReadContext) -> Iterator[Any]:
        count = len(list(ctx.get_broadcast_state("rules").keys()))
        yield ctx.get_current_key(), "timer", count


def spec_of(function: Any, keys: tuple[str, ...] | None = ("key",)) -> BroadcastProcessSpec:
    return BroadcastProcessSpec(
        function=function, key_columns=keys, states=("rules",), schema=RESULT
    )


def harness_of(function: Any, keys: tuple[str, ...] | None = ("key",)) -> OperatorHarness:
    operator = BroadcastProcess(spec_of(function, keys))
    return OperatorHarness(operator, [ROWS, RULES], output_schema=RESULT, name="Alarms").open()


def rows(*values: tuple[str, int]) -> pa.RecordBatch:
    return batch_of(ROWS, values)


def rules(*values: tuple[str, int | None]) -> pa.RecordBatch:
    return batch_of(RULES, values)


def emitted(harness: OperatorHarness) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in harness.rows()]


def test_rows_see_the_rules_that_have_come() -> None:
    harness = harness_of(Alarms())
    harness.process(rows(("a", 5), ("b", 1)), 0)
    assert emitted(harness) == []
    harness.process(rules(("high", 5), ("low", 1)), 1)
    assert emitted(harness) == [("a", "all high", 5), ("b", "all low", 1)]
    harness.process(rows(("a", 7), ("b", 2)), 0)
    assert emitted(harness)[2:] == [("a", "high", 7), ("a", "low", 7), ("b", "low", 2)]
    harness.process(rules(("low", None)), 1)
    harness.process(rows(("b", 3)), 0)
    assert len(emitted(harness)) == 5
    harness.watermark(10_000)
    assert emitted(harness)[5:] == [("a", "timer", 1), ("b", "timer", 1)]


def test_states_continue_with_other_parallelisms(tmp_path: Path) -> None:
    found = []
    for fails in (False, True):
        vertex = Vertex(
            lambda: BroadcastProcess(spec_of(Alarms())),
            [ROWS, RULES],
            RESULT,
            ("key",),
            tmp_path / str(fails),
        )
        for number, parallelism in enumerate((3, 2, 4, 1)):
            for subtask in vertex.subtasks:  # every one gets the rule
                subtask.process(rules((f"rule {number}", 4 * number), ("gone", 99)), 1)
                subtask.process(rules(("gone", None)), 1)
            vertex.process([{"key": f"{key}", "amount": key + number} for key in range(12)])
            checkpoint = vertex.checkpoint()
            if fails:
                vertex.restore(checkpoint, parallelism)
        vertex.watermark(10_000)
        vertex.end()
        found.append(sorted(map(repr, vertex.rows())))
    assert found[0] == found[1]
    assert sum("timer" in row for row in found[0]) == 12
    assert not any("gone" in row for row in found[0])


class Unkeyed(BroadcastProcessFunction):
    def process_element(self, value: Row, ctx: BroadcastReadContext) -> Iterator[Any]:
        least = ctx.get_broadcast_state("rules").get(value.key)
        if least is not None and value.amount >= least:
            yield value.key, "", value.amount

    def process_broadcast_element(self, value: Row, ctx: BroadcastWriteContext) -> None:
        ctx.get_broadcast_state("rules").put(value.rule, value.least)


def test_a_stream_without_keys() -> None:
    harness = harness_of(Unkeyed(), None)
    harness.process(rules(("a", 3)), 1)
    harness.process(rows(("a", 2), ("a", 3), ("b", 9)), 0)
    assert emitted(harness) == [("a", "", 3)]


class Wrong(Alarms):
    def __init__(self, call: Any) -> None:
        self.call = call
        self.kept: Any = None

    def process_element(self, value: Row, ctx: BroadcastReadContext) -> Any:
        self.call(self, ctx)

    def process_broadcast_element(self, value: Row, ctx: BroadcastWriteContext) -> Any:
        self.kept = ctx.get_broadcast_state("rules")
        if value.rule == "call":
            self.call(self, ctx)


@pytest.mark.parametrize(
    ("side", "call", "message"),
    [
        (0, lambda f, c: c.get_broadcast_state("rules").put(1, 2), "put() of the broadcast state"),
        (0, lambda f, c: c.get_broadcast_state("rules").remove(1), "remove() of the broadcast st"),
        (0, lambda f, c: f.kept.clear(), "for key ('a',): clear() of the broadcast state 'rules'"),
        (0, lambda f, c: c.get_broadcast_state("x"), "no broadcast state 'x'; broadcast(...) decl"),
        (
            1,
            lambda f, c: f.total.value(),
            "process_broadcast_element failed: state 'total' belongs",
        ),
        (1, lambda f, c: c.get_current_key(), "belongs to a key, and no key is being processed"),
        (
            1,
            lambda f, c: c.apply_to_keyed_state("total", print),
            "takes a state that open() returned",
        ),
    ],
)
def test_what_one_subtask_would_know_alone_is_refused(side: int, call: Any, message: str) -> None:
    harness = harness_of(Wrong(call))
    harness.process(rules(("", 1)), 1)
    with pytest.raises(FiresteelError) as raised:
        harness.process(rules(("call", 1)) if side else rows(("a", 1)), side)
    assert message in str(raised.value)


def test_a_function_without_keys_has_no_states_of_keys() -> None:
    class Stateful(Unkeyed):
        def open(self, context: FunctionContext) -> None:
            context.get_state("total")

    with pytest.raises(FiresteelError, match="a state belongs to a key, and this function has"):
        check_function(Stateful(), "Alarms", keyed=False)
