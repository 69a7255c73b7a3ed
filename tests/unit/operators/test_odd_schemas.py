"""Whatever Arrow type a column has, rows come through partitioning and Python operators as they
were: any schema, any batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel import CoProcessFunction
from firesteel.common.job_graph import Partitioner
from firesteel.operator import StreamOperator
from firesteel.operators import CoProcessSpec, FilterSpec, MapInArrowSpec, MapInPandasSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.exchange.partitioning.routing import make_routing
from taskexecutor.executor.operators.map.batches import Filter, MapInArrow, MapInPandas
from taskexecutor.executor.operators.process.process import CoProcess
from tests.long import fewer

FLAT: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(12, 3): st.integers(-(10**9), 10**9).map(lambda n: Decimal(n).scaleb(-3)),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    pa.timestamp("us", "UTC"): st.datetimes(
        datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)
    ),
    pa.timestamp("us"): st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),
}


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def struct(parts: list[Typed]) -> Typed:
        names = [f"f{index}" for index in range(len(parts))]
        kind = pa.struct([pa.field(name, part[0]) for name, part in zip(names, parts, strict=True)])
        return kind, st.fixed_dictionaries(
            {name: nullable(part[1]) for name, part in zip(names, parts, strict=True)}
        )

    return st.one_of(
        inner.map(lambda part: (pa.list_(part[0]), st.lists(nullable(part[1]), max_size=3))),
        st.lists(inner, min_size=1, max_size=3).map(struct),
        inner.map(
            lambda part: (
                pa.map_(pa.string(), part[0]),
                st.dictionaries(st.text(max_size=3), nullable(part[1]), max_size=3).map(
                    lambda d: list(d.items())
                ),
            )
        ),
    )


TYPES: st.SearchStrategy[Typed] = st.recursive(
    st.sampled_from(list(FLAT.items())), nested, max_leaves=4
)


@st.composite
def streams(draw: st.DrawFn, kinds: st.SearchStrategy[Typed] = TYPES) -> list[pa.RecordBatch]:
    """Batches of one schema: a key and up to four columns, some batches empty, some slices of
    others.
    """
    types = draw(st.lists(kinds, max_size=4))
    schema = pa.schema(
        [("key", pa.int64()), *((f"c{index}", kind) for index, (kind, _) in enumerate(types))]
    )
    batches = []
    for size in draw(st.lists(st.integers(0, 6), min_size=1, max_size=4)):
        rows = [
            {
                "key": draw(nullable(st.integers(0, 5))),
                **{f"c{i}": draw(nullable(values)) for i, (_, values) in enumerate(types)},
            }
            for _ in range(size)
        ]
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        batches.append(batch.slice(1) if draw(st.booleans()) else batch)
    return batches


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def texts(found: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, found))


@settings(max_examples=fewer(60))
@given(streams(), st.sampled_from(list(Partitioner)), st.integers(1, 3))
def test_every_partitioner_keeps_every_value(
    batches: list[pa.RecordBatch], partitioner: Partitioner, consumers: int
) -> None:
    routing = make_routing(
        partitioner,
        producer=0,
        producers=1,
        consumers=consumers,
        max_parallelism=128,
        key_columns=("key",),
        batch_rows=3,
    )
    pieces = [
        (routing.targets[index], piece)
        for batch in batches
        for index, piece in routing.route(batch)
    ]
    for _, piece in pieces:
        piece.validate(full=True)
        assert piece.schema.equals(batches[0].schema)
    copies = {Partitioner.BROADCAST: consumers, Partitioner.WATERMARKS: 0}.get(partitioner, 1)
    assert texts(rows([piece for _, piece in pieces])) == texts(rows(batches) * copies)
    if partitioner is Partitioner.HASH:
        owners: dict[Any, set[int]] = {}
        for target, piece in pieces:
            for key in piece["key"].to_pylist():
                owners.setdefault(key, set()).add(target)
        assert all(len(where) == 1 for where in owners.values())


class Both(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value

    process_element2 = process_element1


def co_process(schema: pa.Schema) -> StreamOperator:
    return CoProcess(
        CoProcessSpec(
            function=Both(), first_key_columns=("key",), second_key_columns=("key",), schema=schema
        )
    )


OPERATORS: dict[str, Any] = {
    "map_in_arrow": lambda schema: MapInArrow(MapInArrowSpec(function=lambda batches: batches)),
    "map_in_arrow, columns in another order": lambda schema: MapInArrow(
        MapInArrowSpec(
            function=lambda batches: (batch.select(batch.schema.names[::-1]) for batch in batches)
        )
    ),
    "filter": lambda schema: Filter(FilterSpec(function=lambda batch: [True] * batch.num_rows)),
    "co_process": co_process,
}


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=fewer(50))
@given(batches=streams())
def test_python_operators_give_back_what_they_were_given(
    name: str, batches: list[pa.RecordBatch]
) -> None:
    schema = batches[0].schema
    inputs = [schema, schema] if name == "co_process" else [schema]
    harness = OperatorHarness(
        OPERATORS[name](schema), inputs, output_schema=schema, name=name
    ).open()
    for batch in batches:
        harness.process(batch)
    harness.end()
    assert all(batch.schema.equals(schema) for batch in harness.batches)
    assert texts(harness.rows()) == texts(rows(batches))


# Values that PySpark's conversions take to pandas and back. They turn integers beside nulls into
# floats, and fail for ragged lists.
SMALL = {kind: values for kind, values in FLAT.items() if kind != pa.int64()}
IN_PANDAS: st.SearchStrategy[Typed] = st.one_of(
    st.sampled_from(list(SMALL.items())), nested(st.sampled_from(list(SMALL.items())))
)


@settings(max_examples=fewer(60))
@given(batches=streams(IN_PANDAS))
def test_pandas_functions_give_back_what_they_were_given(batches: list[pa.RecordBatch]) -> None:
    schema = batches[0].schema
    harness = OperatorHarness(
        MapInPandas(MapInPandasSpec(function=iter)), [schema], output_schema=schema, name="pandas"
    ).open()
    for batch in batches:
        harness.process(batch)
    harness.end()
    assert all(batch.schema.equals(schema) for batch in harness.batches)
    assert texts(harness.rows()) == texts(rows(batches))
