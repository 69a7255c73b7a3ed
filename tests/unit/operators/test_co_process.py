"""co_process: state and timers per key over two inputs, compared with the same function row by
row in plain Python.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import LongType

from firesteel import CoProcessFunction
from firesteel.errors import FiresteelError
from firesteel.functions import FunctionContext, ProcessContext
from firesteel.operators import CoProcessSpec
from firesteel.testing import OperatorHarness, restored_from
from taskexecutor.executor.operators.process.analysis import check_function
from taskexecutor.executor.operators.process.process import CoProcess
from taskexecutor.executor.state import RestoredOperatorState
from tests.batches import batch_of

ORDERS = pa.schema([("id", pa.string()), ("amount", pa.int64()), ("due_ms", pa.int64())])
PAYMENTS = pa.schema([("order", pa.string()), ("paid", pa.int64())])
RESULT = pa.schema([("id", pa.string()), ("what", pa.string()), ("amount", pa.int64())])


class Match(CoProcessFunction):
    """Emits the open amount of each order when something is paid, and when the order is due."""

    def open(self, context: FunctionContext) -> None:
        self.open_amount = context.get_state("open")
        self.payments = context.get_list_state("payments")
        self.dues = context.get_map_state("dues")

    def process_element1(self, value: Row, ctx: ProcessContext) -> Iterator[Any]:
        self.open_amount.update((self.open_amount.value() or 0) + value.amount)
        self.dues.put(value.due_ms, value.amount)
        ctx.timer_service().register_event_time_timer(value.due_ms)
        if value.amount < 0:
            ctx.output("odd", value)
        yield from ()

    def process_element2(self, value: Row, ctx: ProcessContext) -> Iterator[Any]:
        self.payments.add(value.paid)
        left = (self.open_amount.value() or 0) - sum(self.payments.get())
        yield Row(what="paid", amount=left, id=ctx.get_current_key())

    def on_timer(self, timestamp_ms: int, ctx: ProcessContext) -> Iterator[Any]:
        assert ctx.time_domain() == "event_time"
        yield ctx.get_current_key(), "due", self.dues.get(timestamp_ms)
        self.dues.remove(timestamp_ms)


def harness_of(
    function: CoProcessFunction, restored: RestoredOperatorState | None = None, **settings: Any
) -> OperatorHarness:
    spec = CoProcessSpec(
        function=function,
        first_key_columns=("id",),
        second_key_columns=("order",),
        schema=RESULT,
        side_outputs={"odd": None},
    )
    return OperatorHarness(
        CoProcess(spec, **settings),
        [ORDERS, PAYMENTS],
        output_schema=RESULT,
        name="Match",
        side_output_tags=("odd",),
        restored=restored,
    ).open()


KEYS = st.sampled_from(["a", "b", "c"])
EVENTS = st.one_of(
    st.tuples(
        st.just("order"),
        st.lists(st.tuples(KEYS, st.integers(-5, 9), st.integers(0, 40)), max_size=6),
    ),
    st.tuples(st.just("payment"), st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=6)),
    st.tuples(st.just("watermark"), st.integers(0, 50)),
)


class Oracle:
    """The same, row by row."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.odd: list[tuple[Any, ...]] = []
        self._open: dict[str, int] = defaultdict(int)
        self._dues: dict[str, dict[int, int]] = defaultdict(dict)
        self._watermark = -1

    def orders(self, rows: list[tuple[str, int, int]]) -> None:
        for key, amount, due in rows:
            self._open[key] += amount
            self._dues[key][due] = amount
            if amount < 0:
                self.odd.append((key, amount, due))

    def payments(self, rows: list[tuple[str, int]]) -> None:
        for key, paid in rows:
            self._open[key] -= paid
            self.rows.append((key, "paid", self._open[key]))

    def watermark(self, now: float) -> None:
        if now <= self._watermark:
            return  # a late timer fires with the next watermark
        self._watermark = int(min(now, 2**62))
        for key, dues in self._dues.items():
            for due in [due for due in dues if due <= now]:
                self.rows.append((key, "due", dues.pop(due)))


@given(st.lists(EVENTS, max_size=25))
def test_any_batches_and_watermarks_give_what_rows_one_by_one_give(
    events: list[tuple[str, Any]],
) -> None:
    harness, oracle = harness_of(Match()), Oracle()
    for kind, what in events:
        if kind == "order":
            harness.process(batch_of(ORDERS, what), 0)
            oracle.orders(what)
        elif kind == "payment":
            harness.process(batch_of(PAYMENTS, what), 1)
            oracle.payments(what)
        else:
            harness.watermark(what * 1000)
            oracle.watermark(what)
    harness.end()
    oracle.watermark(float("inf"))
    assert sorted(tuple(row.values()) for row in harness.rows()) == sorted(oracle.rows)
    assert sorted(
        tuple(row.values()) for batch in harness.side("odd") for row in batch.to_pylist()
    ) == sorted(oracle.odd)


ORDER = pa.record_batch([["a"], [5], [10]], schema=ORDERS)
PAYMENT = pa.record_batch([["a", "b"], [2, 3]], schema=PAYMENTS)


class Remind(CoProcessFunction):
    """A timer of the clock, which a payment deletes."""

    def process_element1(self, value: Row, ctx: ProcessContext) -> None:
        ctx.timer_service().register_processing_time_timer(
            ctx.timer_service().current_processing_time() + value.due_ms
        )

    def process_element2(self, value: Row, ctx: ProcessContext) -> None:
        ctx.timer_service().delete_processing_time_timer(1_020)

    def on_timer(self, timestamp_ms: int, ctx: ProcessContext) -> list[Any]:
        return [(ctx.get_current_key(), ctx.time_domain(), timestamp_ms)]


def test_processing_time_timers() -> None:
    harness = harness_of(Remind(), now_ms=lambda: 1_000)
    harness.process(ORDER, 0)
    harness.processing_time(1_009)
    assert harness.rows() == []
    harness.processing_time(1_010)
    assert harness.rows() == [{"id": "a", "what": "processing_time", "amount": 1_010}]
    harness.process(ORDER, 0)
    harness.process(PAYMENT, 1)
    harness.processing_time(2_000)
    assert len(harness.rows()) == 1
    harness.end()


class Broken(CoProcessFunction):
    def __init__(self, how: Any) -> None:
        self.how = how
        self.closed = 0

    def process_element1(self, value: Row, ctx: ProcessContext) -> Any:
        return self.how(value, ctx)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            lambda value, ctx: 1 / 0,
            r"Match: process_element1 failed for key \('a',\): ZeroDivisionError",
        ),
        (lambda value, ctx: 7, "returned int; it must return an iterator or None"),
        (
            lambda value, ctx: [("a", "b")],
            "row of 2 values; expected id string, what string, amount int64",
        ),
        (lambda value, ctx: [("a", "b", "c")], "amount' is int64 and cannot hold 'c'"),
        (
            lambda value, ctx: [Row(idd="a", what="b", amount=1)],
            "expected id string, what string, amount int64; got idd str",
        ),
        (
            lambda value, ctx: ctx.output("nowhere", value),
            "no side output 'nowhere'; declared: odd",
        ),
    ],
)
def test_what_goes_wrong_names_the_function_and_the_key(how: Any, words: str) -> None:
    function = Broken(how)
    harness = harness_of(function)
    with pytest.raises(FiresteelError, match=words):
        harness.process(ORDER, 0)
    harness.close()
    assert function.closed == 1


def test_state_belongs_to_a_key() -> None:
    class Early(CoProcessFunction):
        def open(self, context: FunctionContext) -> None:
            context.get_state("n").update(1)

    with pytest.raises(FiresteelError, match="Early.open failed: .*state 'n' belongs to a key"):
        harness_of(Early())

    class Twice(CoProcessFunction):
        def open(self, context: FunctionContext) -> None:
            context.get_state("n")
            context.get_list_state("n")

    with pytest.raises(FiresteelError, match="'n' is already used as a value, a list or a map"):
        harness_of(Twice())


class Reminders(CoProcessFunction):
    def process_element1(self, value: Row, ctx: ProcessContext) -> None:
        ctx.timer_service().register_event_time_timer(value.due_ms)
        ctx.timer_service().register_processing_time_timer(value.due_ms + value.amount)

    def process_element2(self, value: Row, ctx: ProcessContext) -> None:
        ctx.timer_service().delete_event_time_timer(value.paid)

    def on_timer(self, timestamp_ms: int, ctx: ProcessContext) -> Iterator[Any]:
        yield ctx.get_current_key(), ctx.time_domain(), timestamp_ms


def test_timers_are_restored() -> None:
    first = harness_of(Reminders(), now_ms=lambda: 0)
    rows = [("a", 1, 10), ("b", 1, 10), ("a", 1, 20), ("a", 2, 30)]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    first.process(pa.record_batch(columns, schema=ORDERS))
    first.process(pa.record_batch([pa.array(["a"]), pa.array([20])], schema=PAYMENTS), 1)
    first.watermark(10_000)
    first.processing_time(11)
    assert [row["amount"] for row in first.rows()] == [10, 10, 11, 11]
    again = harness_of(Reminders(), restored_from(first.snapshot()), now_ms=lambda: 0)
    again.watermark(10_000)  # nothing that has fired fires again
    again.processing_time(100)
    again.watermark(100_000)
    found = [(row["id"], row["what"], row["amount"]) for row in again.rows()]
    assert found == [
        ("a", "processing_time", 21),
        ("a", "processing_time", 32),
        ("a", "event_time", 30),
    ]


class Opens(CoProcessFunction):
    """Counts how often it is opened and closed; `of` makes something of the context."""

    def __init__(self, of: Callable[[FunctionContext], object]) -> None:
        self.of = of
        self.calls: list[str] = []

    def open(self, context: FunctionContext) -> None:
        self.calls.append("open")
        self.of(context)

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (lambda c: c.get_state("n", 5), "state 'n': its schema must be a type or columns"),
        (lambda c: c.get_state(""), "a state's name must be a non-empty string"),
        (lambda c: c.get_map_state("m", "INT"), "'m' has a schema of its values only"),
        (
            lambda c: (c.get_state("n"), c.get_list_state("n")),
            "already used as a value, a list or a map",
        ),
        (lambda c: c.get_state("n").value(), "state 'n' belongs to a key"),
    ],
)
def test_wrong_states_are_found_before_data_flows(of: Any, words: str) -> None:
    function = Opens(of)
    with pytest.raises(FiresteelError, match=rf"^name: Opens\.open failed: .*{words}"):
        check_function(function, "name")
    assert function.calls == ["open", "close"]


def test_what_else_opening_needs_is_left_to_the_task() -> None:
    def connect(context: FunctionContext) -> None:
        context.counter("connections").inc()
        assert context.task.subtask == 0
        context.get_state("n", "BIGINT")
        raise ConnectionError("the server is away")

    function = Opens(connect)
    check_function(function, "name")
    assert function.calls == ["open", "close"]


class Declared(CoProcessFunction):
    """Keeps what it gets, in a state of each kind."""

    def __init__(self, value: Any, amounts: Any, dues: Any, keys: Any) -> None:
        self.schemas = value, amounts, dues, keys

    def open(self, context: FunctionContext) -> None:
        value, amounts, dues, keys = self.schemas
        self.value = context.get_state("value", value)
        self.amounts = context.get_list_state("amounts", amounts)
        self.dues = context.get_map_state("dues", dues, keys)
        self.context = context

    def process_element1(self, order: Row, ctx: ProcessContext) -> Iterator[tuple[Any, ...]]:
        if order.amount < 0:
            self.value.update("text")
        if order.amount == 0:
            self.context.get_state("late", "INT")
        self.value.update((order.amount, order.id))
        self.amounts.add(order.amount)
        self.dues.put(order.due_ms, order.amount)
        seen = self.value.value(), self.amounts.get(), dict(self.dues.items())
        yield order.id, repr(seen), sum(self.dues.values())


def declared(
    value: Any = "n BIGINT, id STRING", amounts: Any = "INT", dues: Any = "INT", keys: Any = "LONG"
) -> Declared:
    return Declared(value, amounts, dues, keys)


def order(amount: int) -> pa.RecordBatch:
    columns = {"id": ["x"], "amount": [amount], "due_ms": [amount * 10]}
    return pa.RecordBatch.from_pydict(columns, schema=ORDERS)


def test_states_with_a_schema_take_what_conforms_to_it() -> None:
    harness = harness_of(declared())
    harness.process(order(7))
    harness.process(order(8))
    assert harness.rows()[-1] == {
        "id": "x",
        "what": "((8, 'x'), [7, 8], {70: 7, 80: 8})",
        "amount": 15,
    }
    for amount, says in (
        (
            -1,
            r"state 'value': update\(\) takes a tuple of 2 or a dictionary \(n bigint, id string\), and got str",
        ),
        (0, r"state 'late': a state with a schema can only be requested in open\(\)"),
    ):
        with pytest.raises(FiresteelError, match=says):
            harness.process(order(amount))
    for asked, says in (
        (declared(value=int), "state 'value': its schema must be a type or columns, .*, not type"),
        (declared(keys=None), "the map state 'dues' has a schema of its values only"),
    ):
        with pytest.raises(FiresteelError, match=says):
            harness_of(asked)


def test_declared_states_change_as_those_of_processors() -> None:
    first = harness_of(declared())
    first.process(order(7))
    restored = first.checkpoint(1)
    added = harness_of(declared("id STRING, n BIGINT, more INT"), restored)
    assert added.state.keyed.get("user.value", ("x",)) == ("x", 7, None)
    again = harness_of(declared(amounts=LongType(), dues="DOUBLE"), restored)
    again.process(order(8))
    assert again.rows()[-1]["what"].endswith("[7, 8], {70: 7.0, 80: 8.0})")
    for now, says in (
        (declared(amounts="STRING"), "state 'amounts' .*'value' was INT in the checkp.* is STRING"),
        (declared("other BIGINT, id STRING"), "column 'n' .* is gone and 'other' .* is new"),
        (declared(None), "restored state 'value' was declared as value of \\(n BIGINT"),
        (declared(keys="STRING"), "keys of the map were .*value BIGINT.* are .*value STRING"),
    ):
        with pytest.raises(FiresteelError, match=says):
            harness_of(now, restored)
    undeclared = harness_of(declared(None, None, None, None))
    undeclared.process(order(7))
    with pytest.raises(FiresteelError, match="'value' has a schema now, and had none in the check"):
        harness_of(declared(), undeclared.checkpoint(1))


class Kept(CoProcessFunction):
    """Has a state of the kind that `get` creates."""

    def __init__(self, get: str) -> None:
        self.get = get

    def open(self, context: FunctionContext) -> None:
        self.state = getattr(context, self.get)("kept")

    def process_element1(self, value: Row, ctx: ProcessContext) -> None:
        state = self.state
        {
            "get_state": lambda: state.update("text"),
            "get_list_state": lambda: state.add(1),
            "get_map_state": lambda: state.put("a", 1),
        }[self.get]()


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (
            "get_map_state",
            "get_list_state",
            r"is not a list: it has dict {'a': 1} for the key \('x',\)",
        ),
        ("get_state", "get_list_state", "is not a list: it has str 'text'"),
        ("get_list_state", "get_map_state", r"is not a map: it has list \[1\]"),
    ],
)
def test_a_state_of_another_kind_is_not_read_as_if_it_were_one(
    before: str, now: str, says: str
) -> None:
    first = harness_of(Kept(before))
    first.process(
        pa.RecordBatch.from_pydict({"id": ["x"], "amount": [1], "due_ms": [1]}, schema=ORDERS)
    )
    restored = first.checkpoint(1)
    again = harness_of(Kept(before), restored)
    with pytest.raises(FiresteelError, match=f"the restored state 'kept' {says}"):
        harness_of(Kept(now), again.checkpoint(1))
