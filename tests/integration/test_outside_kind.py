"""A kind of operator that is not part of Firesteel: tests/outside/number_rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from firesteel import DataStream, Environment
from firesteel.common.job_graph import Operator
from firesteel.connectors import CollectSink
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.testing import OperatorHarness
from taskexecutor.executor.analyze import analyze
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.operators.registry import create_operator

ROOT = Path(__file__).parents[2]
OUTSIDE = ROOT / "tests/outside"
SCHEMA = pa.schema([("shop", pa.string()), ("n", pa.int64())])


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(OUTSIDE)
    from number_rows import NumberRowsSpec

    return NumberRowsSpec(key_columns=("shop",))


def batch(shops: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"shop": list(shops), "n": [0] * len(shops)}, schema=SCHEMA)


def test_its_state_survives_a_checkpoint(spec: Any) -> None:
    named = Operator(operator_id="0" * 32, name="Number", kind=spec.kind, spec=b"")  # type: ignore[arg-type]
    opened = [OpenedOperator(named, spec, None)]
    first = OperatorHarness(create_operator(opened), [SCHEMA]).open()
    first.process(batch("aba"))
    assert [row["number"] for row in first.rows()] == [1, 1, 2]
    restored = first.checkpoint(1)
    again = OperatorHarness(create_operator(opened), [SCHEMA], restored=restored).open()
    again.process(batch("ab"))
    assert [row["number"] for row in again.rows()] == [3, 2]


def numbered(stream: DataStream, spec: Any) -> DataStream:
    return stream.key_by("shop").operator("Number", spec)


def analyzed(stream: DataStream, engine: SparkEngine) -> list[pa.Schema | None]:
    sink = stream.sink_to(CollectSink())
    return [each.schema for each in analyze(sink._program.job_graph("numbers"), engine)]


def rows() -> DataStream:
    return Environment().from_arrow(pa.Table.from_batches([batch("ab")]))


def test_its_analysis_determines_the_schema(spec: Any, engine: SparkEngine) -> None:
    schemas = analyzed(numbered(rows(), spec), engine)
    assert SCHEMA.append(pa.field("number", pa.int64())) in schemas
    with pytest.raises(FiresteelError, match='key_by\\("shop"\\)'):
        analyzed(rows().drop("shop").operator("Number", spec), engine)


def test_its_traits_refuse_updates_of_rows(spec: Any, engine: SparkEngine) -> None:
    totals = rows().key_by("shop").aggregate("sum(n) AS total")
    with pytest.raises(FiresteelError, match="Number: it would count each update of"):
        analyzed(numbered(totals, spec), engine)


def test_it_declares_no_schemas_in_the_program(spec: Any) -> None:
    with pytest.raises(InvalidProgram, match="NumberRowsSpec determines its schemas"):
        rows().operator("Number", spec, "shop STRING")


def test_the_documentation_shows_it() -> None:
    page = (ROOT / "docs/hacking.md").read_text()
    for path in sorted(OUTSIDE.glob("number_rows/*.py")):
        assert f"```py\n# {path.relative_to(OUTSIDE)}\n{path.read_text()}```" in page
