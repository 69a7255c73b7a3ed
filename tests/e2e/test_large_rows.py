"""Rows of 10 kB to 1 MB, many times more than a slot's heap of 512 MB can hold: from files
through an exchange, into state, a join and files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row

from firesteel import (
    Environment,
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessFunction,
    ValueStateDescriptor,
)
from firesteel.connectors import DiscardSink, FileSink, FileSource, SequenceSource
from firesteel.errors import JobFailed
from firesteel.operator import OperatorState, StreamOperator
from tests.long import long_after

from .conftest import Session

pytestmark = pytest.mark.usefixtures("shipped_module")

FILES = 4
SIZES = {10_000: 1_600, 100_000: 160, 1_000_000: 16}  # of texts, and how many there are per file
KEYS = 7


def written(folder: Path, kind: str) -> FileSource:
    """192 MB of texts; as Parquet, which has each only once, some 5 MB."""
    folder.mkdir()
    number = 0
    for file in range(FILES):
        texts = [chr(97 + n % 26) * size for size, count in SIZES.items() for n in range(count)]
        numbers = range(number, number := number + len(texts))
        rows = pa.table({"id": numbers, "k": [n % KEYS for n in numbers], "text": texts})
        if kind == "csv":
            pc.write_csv(rows, folder / f"{file}.csv")
        else:
            pq.write_table(rows, folder / f"{file}.parquet")
    options = {"header": "true"} if kind == "csv" else {}
    return FileSource(str(folder), format=kind, schema="id long, k long, text string", **options)


@pytest.mark.parametrize(("mode", "kind"), [("streaming", "parquet"), ("batch", "csv")])
def test_large_rows_pass_a_small_heap(
    session: Session, tmp_path: Path, mode: str, kind: str
) -> None:
    env = Environment(mode=mode, parallelism=2)
    rows = env.from_source(written(tmp_path / "rows", kind))
    louder = rows.select_expr("id", "k", "upper(text) AS loud")
    joined = rows.join(louder.drop("k"), on="id", ttl="1 day")
    joined.select_expr("id", "length(text) AS n", "upper(text) = loud AS same").sink_to(
        FileSink(str(tmp_path / "joined"))
    )
    longest = rows.key_by("k").aggregate("count(*) AS n", "max(text) AS text")
    longest.sink_to(FileSink(str(tmp_path / "longest")))
    session.run(env, "large rows")

    total = FILES * sum(SIZES.values())
    found = ds.dataset(tmp_path / "joined", format="parquet").to_table()
    assert sorted(found["id"].to_pylist()) == list(range(total))
    assert set(found["same"].to_pylist()) == {True}
    assert sum(found["n"].to_pylist()) == FILES * sum(n * count for n, count in SIZES.items())
    last = ds.dataset(tmp_path / "longest", format="parquet").to_table()
    of_key = last.group_by("k").aggregate([("n", "max"), ("text", "max")])
    assert sum(of_key["n_max"].to_pylist()) == total
    assert {text[0] for text in of_key["text_max"].to_pylist()} == {"z"}


LARGE = 70_000_000  # bytes of a text: more than a message may have
SIZES_OF = "n LONG, size LONG"


class Kept(KeyedProcessFunction):
    """Keeps a large text per key, as a value and in a list."""

    def open(self, runtime_context: Any) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", "text STRING"))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", "text STRING"))

    def process_element(self, value: Row, ctx: Any) -> Iterator[tuple[int, int]]:
        if self.value.value() is None:
            self.value.update(("v" * LARGE,))
            self.list.add(("l" * LARGE,))
        yield value.n, len(self.value.value()[0]) + sum(len(text) for (text,) in self.list.get())


class Aside(ProcessFunction):
    """Sends a large text to a side output."""

    def process_element(self, value: Row, ctx: Any) -> Iterator[tuple[int]]:
        ctx.output("large", (value.n, "s" * LARGE))
        yield (value.n,)


def test_large_values_are_state_and_cross_an_exchange(session: Session, tmp_path: Path) -> None:
    env = Environment(
        parallelism=2,
        configuration={
            "execution.checkpointing.interval": "500 ms",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        },
    )
    numbers = env.from_source(SequenceSource(0, 4, column="n", rate_per_s=2))
    kept = numbers.select_expr("n", "0 AS k").key_by("k").process(Kept(), SIZES_OF)
    kept.sink_to(FileSink(str(tmp_path / "kept")))
    aside = numbers.process(Aside(), "n LONG", side_outputs={"large": "n LONG, text STRING"})
    large = aside.side_output("large").key_by("n").map(lambda row: (row.n, len(row.text)), SIZES_OF)
    large.sink_to(FileSink(str(tmp_path / "aside")))
    session.run(env, "large values")
    for folder, size in (("kept", 2 * LARGE), ("aside", LARGE)):
        rows = ds.dataset(tmp_path / folder, format="parquet").to_table().to_pylist()
        assert sorted((row["n"], row["size"]) for row in rows) == [(n, size) for n in range(4)]


class KeptByOperator(StreamOperator):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def initialize_state(self, state: OperatorState) -> None:
        self.state = getattr(state, self.kind)("rules")

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if isinstance(self.state, dict):
            self.state[0] = "r" * LARGE
        else:
            self.state[:] = ["r" * LARGE]


@pytest.mark.parametrize(
    "kind", long_after(2, ["list_state", "broadcast_state", "union_list_state"])
)
def test_large_operator_state_fails_its_job_by_name(
    session: Session, tmp_path: Path, kind: str
) -> None:
    env = Environment(
        configuration={
            "execution.checkpointing.interval": "100 ms",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "restart-strategy.type": "none",
        }
    )
    numbers = env.from_source(SequenceSource(0, 10**9, rate_per_s=10))
    numbers.operator("rules", lambda: KeptByOperator(kind)).sink_to(DiscardSink())
    with pytest.raises(JobFailed, match=r"operator state 'rules' is too large: it has 70,000,\d+"):
        session.run(env, "large operator state")
