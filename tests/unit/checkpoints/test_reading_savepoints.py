"""Savepoints as tables: the states of every kind of operator, read without the program."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import firesteel
from firesteel.client.cli import main
from firesteel.common.checkpoints.storage import StorageError
from firesteel.errors import FiresteelError
from firesteel.operators import (
    CoProcessSpec,
    DropDuplicatesSpec,
    RunningAggregateSpec,
    TumblingSpec,
    WindowTopNSpec,
)
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.drop_duplicates import DropDuplicates
from taskexecutor.executor.operators.process.process import CoProcess
from taskexecutor.executor.operators.running_aggregate import RunningAggregate
from taskexecutor.executor.operators.windows import window_operator
from tests.backends import BACKENDS
from tests.unit.checkpoints.savepoints import (
    IN,
    INLINE,
    OUT,
    ROWS,
    Both,
    Own,
    Written,
    moment,
    processor,
)


@pytest.fixture(params=[*BACKENDS, INLINE])
def written(tmp_path: Path, request: pytest.FixtureRequest) -> Written:
    return Written(tmp_path, request.param)


def by_shop(table: pa.Table) -> list[tuple[Any, ...]]:
    found = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return sorted(found, key=lambda row: row[0])


def test_states_of_a_processor_have_the_columns_that_it_declares(written: Written) -> None:
    written.add("sold", *processor(written.create))
    sold = written.read()["sold"]
    assert list(sold) == ["by size", "each", "never", "total", "timers"]
    assert {name: state.kind for name, state in sold.items()} == {
        "total": "value",
        "each": "list",
        "by size": "map",
        "never": "value",
        "timers": "timers",
    }
    total = sold["total"].to_arrow()
    assert total.schema == pa.schema(
        [
            ("shop", pa.string()),
            ("pieces", pa.int64()),
            ("at", pa.struct([("day", pa.date32()), ("n", pa.int32())])),
        ]
    )
    assert by_shop(total) == [
        ("a", 4, {"day": datetime.date(2024, 1, 3), "n": None}),
        ("b", 2, {"day": datetime.date(2024, 1, 2), "n": None}),
    ]
    assert sold["each"].to_arrow().column_names == ["shop", "position", "value_shop"]
    assert by_shop(sold["each"].to_arrow()) == [("a", 0, 1), ("a", 1, 3), ("b", 0, 2)]
    by_size = sold["by size"].to_arrow()
    assert by_size.column_names == ["shop", "size", "value_size", "tags", "expires"]
    assert by_shop(by_size)[2] == ("b", 2, 1.0, [[("x", 2)]], moment(1_050_000))
    assert by_shop(sold["timers"].to_arrow()) == [
        ("a", moment(60_001_000)),
        ("a", moment(60_003_000)),
        ("b", moment(60_002_000)),
    ]
    never = sold["never"].to_pandas()
    assert (list(never.columns), len(never)) == (["shop", "x"], 0)


def test_state_in_columns_is_read_under_names_that_say_something(written: Written) -> None:
    partial = pa.RecordBatch.from_pylist([{"shop": "a", "_p0_sum": 4, "_p1_max": 3, "_rows": 2}])
    sums = RunningAggregateSpec(
        key_columns=("shop",), aggregates=parse_aggregates(["sum(n) AS s", "max(n) AS m"])
    )
    harness = OperatorHarness(RunningAggregate(sums), [partial.schema]).open()
    harness.process(partial)
    written.add("totals", harness)
    top = WindowTopNSpec(
        window=TumblingSpec(size_us=20),
        key_columns=("shop",),
        time_column="at",
        n=5,
        by=("n",),
        ascending=(True,),
    )
    harness = OperatorHarness(window_operator(top), [IN]).open()
    harness.process(ROWS)
    written.add("top", harness)
    once = DropDuplicatesSpec(key_columns=("shop",), time_column="at", within_us=1000)
    harness = OperatorHarness(DropDuplicates(once), [IN]).open()
    harness.process(ROWS)
    written.add("once", harness)
    saved = written.read()
    totals = saved["totals"]["totals"]
    assert totals.to_arrow().to_pylist() == [{"shop": "a", "sum(n)": 4, "max(n)": 3, "rows": 2}]
    assert totals.meaning["key"] == "shop"
    panes = saved["top"]["panes"].to_arrow()
    assert panes.column_names == ["shop", "n", "at", "pane_start"]
    assert by_shop(panes.select(["shop", "pane_start"])) == [
        ("a", moment(0)),
        ("a", moment(20)),
        ("b", moment(20)),
    ]
    assert by_shop(saved["once"]["rows"].to_arrow()) == [("a", moment(10)), ("b", moment(20))]


def test_states_of_two_streams_are_read_with_or_without_their_schema(
    written: Written,
) -> None:
    spec = CoProcessSpec(
        function=Both(), first_key_columns=("shop",), second_key_columns=("shop",), schema=OUT
    )
    harness = OperatorHarness(
        CoProcess(spec), [IN, IN], output_schema=OUT, create_keyed_state=written.create
    ).open()
    harness.process(ROWS)
    written.add("both", harness)
    both = written.read()["both"]
    assert sorted(both) == ["all", "kept", "last", "odd", "timers"]
    last, every = both["last"].to_arrow(), both["all"].to_arrow()
    assert last.schema == pa.schema([("shop", pa.string()), ("value", pa.float64())])
    assert by_shop(last) == [("a", 1.5), ("b", 1.0)]
    assert every.column_names == ["shop", "position", "n", "half"]
    assert by_shop(every) == [("a", 0, 1, 0.5), ("a", 1, 3, 1.5), ("b", 0, 2, 1.0)]
    assert by_shop(both["kept"].to_arrow()) == [("a", 3), ("b", 2)]
    odd = both["odd"].to_arrow()
    assert by_shop(odd)[0] == ("a", "{1: <class 'object'>, 3: 'text'}")
    timers = both["timers"].to_arrow().to_pylist()
    assert {tuple(timer.values()) for timer in timers} == {
        (shop, moment(n * 1000), domain)
        for shop, n in (("a", 1), ("a", 3), ("b", 2))
        for domain in ("event_time", "processing_time")
    }


def test_key_columns_of_timers_and_pickled_states_have_their_names(written: Written) -> None:
    spec = CoProcessSpec(
        function=Both(),
        first_key_columns=("shop", "n"),
        second_key_columns=("shop", "n"),
        schema=OUT,
    )
    harness = OperatorHarness(
        CoProcess(spec), [IN, IN], output_schema=OUT, create_keyed_state=written.create
    ).open()
    harness.process(ROWS)
    written.add("both", harness)
    both = written.read()["both"]
    timers, odd = both["timers"].to_arrow(), both["odd"].to_arrow()
    assert timers.column_names == ["shop", "n", "time", "domain"]
    assert odd.column_names == ["shop", "n", "value"]
    keys = {(row["shop"], row["n"]) for row in timers.to_pylist()}
    assert keys == {(row["shop"], row["n"]) for row in odd.to_pylist()}
    assert keys == {("a", 1), ("a", 3), ("b", 2)}


def test_operator_state_is_read(written: Written) -> None:
    written.add("own", OperatorHarness(Own()).open())
    own = written.read()["own"]
    assert {name: state.kind for name, state in own.items()} == {
        "pending": "operator list",
        "offsets": "union list",
        "rules": "broadcast",
    }
    assert own["pending"].to_arrow().to_pydict() == {"subtask": [0, 0], "value": [1, 2]}
    assert own["offsets"].to_arrow().to_pydict() == {"subtask": [0], "value": ["x"]}
    assert own["rules"].to_arrow().to_pydict() == {"key": ["a", "b"], "value": [1, 2]}


def test_what_is_not_there_is_an_error_that_lists_what_is(written: Written) -> None:
    written.add("sold", *processor(written.create))
    written.add("own", OperatorHarness(Own()).open())
    saved = written.read()
    assert (list(saved), len(saved), saved.job_name) == (["sold", "own"], 2, "sales")
    assert saved["own"].parallelism == 1
    with pytest.raises(FiresteelError, match="no state of an operator 'bought'; .* 'sold', 'own'$"):
        saved["bought"]
    with pytest.raises(KeyError):
        saved["bought"]
    assert saved.get("bought") is None
    with pytest.raises(
        FiresteelError, match=r"'own' has no state 'x' .* 'pending', 'offsets', 'ru"
    ):
        saved["own"]["x"]


def test_a_damaged_or_missing_file_is_named(written: Written, tmp_path: Path) -> None:
    with pytest.raises(
        StorageError, match=r"_metadata of .*nowhere cannot be read: .*No such file"
    ):
        firesteel.savepoint.read(str(tmp_path / "nowhere"))
    written.add("sold", *processor(written.create))
    written.read()
    name = {"hashmap": "files/sold", "rocksdb": "chk-7/sold-000", INLINE: "_metadata"}[written.kind]
    (file,) = (found for found in written.base.rglob("*") if name in str(found))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(StorageError, match=f"{name}.* of .* is.* damaged"):
        firesteel.savepoint.read(str(written.directory))["sold"]["total"].to_arrow()


def test_the_command_line_lists_states(written: Written) -> None:
    written.add("sold", *processor(written.create))
    written.add("own", OperatorHarness(Own()).open())
    written.read()
    shown = CliRunner().invoke(main, ["savepoint", "--show", str(written.directory), "--full"])
    assert shown.exit_code == 0, shown.output
    head, _, *lines = shown.output.splitlines()
    kind = "Savepoint" if written.is_savepoint else "Checkpoint"
    assert head.startswith(f"{kind} 7 of sales ({'8a3f' * 8}), taken 1970-01-01T")
    assert lines[0].split()[:2] == ["the", "sold"]
    listed = {tuple(line.split()[-5:-2]) for line in lines}  # before the size: "48 B"
    assert {("total", "value", "2"), ("each", "list", "3"), ("rules", "broadcast", "2")} <= listed
    nowhere = CliRunner().invoke(main, ["savepoint", "--show", str(written.directory / "x")])
    assert nowhere.exit_code == 1
    assert "_metadata of" in nowhere.output
