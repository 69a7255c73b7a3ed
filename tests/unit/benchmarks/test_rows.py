"""Measurements become ratios, goals, tables, out/bench.json and the exit code."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import benchmarks.__main__ as command
from benchmarks.__main__ import (
    CHECKPOINTS,
    NAMES,
    OURS,
    failures,
    run_ours,
    tables,
    wanted,
    write,
)
from benchmarks.checkpoints.jobs import percentile
from benchmarks.nexmark import rows as nexmark
from benchmarks.peers import rows as peers
from benchmarks.peers.environment import NotInstalled
from benchmarks.peers.measure import EngineFailed, Measured
from benchmarks.peers.rows import FIRESTEEL, FLINK, GOALS, SPARK, TUNED, Peers, Result, amount, row
from benchmarks.peers.work import WORKS
from benchmarks.progress import Steps

KEYED = WORKS["keyed_aggregate_1k"]


def measured(rows_per_s: int, cpu_s: float | None = 2.0) -> Measured:
    return Measured(rows=rows_per_s * 2, seconds=2.0, cpu_s=cpu_s, load=0.1)


def keyed(**changes: Result) -> dict[str, Any]:
    results: dict[str, Result] = {
        FIRESTEEL: measured(20_000_000),
        SPARK: measured(8_000_000, cpu_s=4.0),
        FLINK: measured(2_000_000),
        TUNED: measured(4_000_000),
    }
    names = {"ours": FIRESTEEL, "spark": SPARK, "flink": FLINK, "tuned": TUNED}
    return {
        "benchmark": KEYED.name,
        **row(
            f"{KEYED.name}, 200 M rows",
            results | {names[key]: value for key, value in changes.items()},
            GOALS[KEYED.name],
        ),
    }


def printed(*rows: Mapping[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=200)
    for table in tables(dict(fields) for fields in rows):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def line(text: str, of: str) -> list[str]:
    return next(
        [cell.strip() for cell in found.split("│")[1:-1]]
        for found in text.splitlines()
        if of in found
    )


def test_every_work_has_peers_and_goals() -> None:
    assert set(GOALS) == set(WORKS)


def test_ratios_are_by_the_clock_and_by_cpu() -> None:
    engines = keyed()["engines"]
    assert (engines[SPARK]["ratio"], engines[SPARK]["cpu_ratio"]) == (2.5, 5.0)
    assert (engines[FIRESTEEL]["ratio"], engines[FIRESTEEL]["met"]) == (None, None)


def test_all_goals_are_met() -> None:
    assert (keyed()["met"], keyed()["failed"]) == (True, [])


def test_of_two_ways_to_run_a_peer_the_better_one_counts() -> None:
    found = keyed(tuned=measured(5_000_001))
    assert (found["engines"][FLINK]["met"], found["engines"][TUNED]["met"]) == (True, False)
    assert (found["met"], found["ratio"]) == (False, 4.0)


def test_a_goal_that_is_missed_is_not_met_whatever_failed() -> None:
    assert keyed(spark=measured(15_000_000), flink=EngineFailed("it hung"))["met"] is False


def test_every_query_has_goals_beside_its_peers() -> None:
    for kind, engines in nexmark.ENGINES.items():
        for query in nexmark.QUERIES:
            assert set(nexmark.goals(query, kind)) == set(engines) - {FIRESTEEL}


def test_goals_cannot_be_met_beside_a_peer_that_failed() -> None:
    found = keyed(flink=EngineFailed("it ended with code 1", "no such column"))
    assert (found["met"], found["failed"]) == (None, [FLINK])
    assert found["engines"][SPARK]["ratio"] == 2.5
    assert failures([found, found]) == [
        ("keyed_aggregate_1k on Flink SQL failed: it ended with code 1", "no such column")
    ]


def test_the_peers_numbers_are_kept_when_ours_fails() -> None:
    found = keyed(ours=EngineFailed("it read no rows"))
    assert found["ours"] == "failed: it read no rows"
    assert (found["met"], found["ratio"], found["engines"][SPARK]["rows_per_s"]) == (
        None,
        None,
        8_000_000,
    )


def test_cpu_time_that_is_not_known_is_a_dash() -> None:
    found = keyed(spark=measured(8_000_000, cpu_s=None))
    assert found["engines"][SPARK]["cpu_ratio"] is None
    assert line(printed(found), SPARK) == ["", SPARK, "8 M", "2.50 x", "-", "", ">= 2 x", "yes", ""]


def test_the_table_has_a_line_for_each_engine() -> None:
    found = keyed(flink=NotInstalled("no network"), tuned=measured(6_000_000))
    found["engines"][FIRESTEEL]["recovery"] = "125 ms"
    text = printed(found)
    assert line(text, FIRESTEEL) == [
        "keyed_aggregate_1k, 200 M rows",
        FIRESTEEL,
        "20 M",
        "",
        "20 M",
        "",
        "",
        "",
        "125 ms",
    ]
    assert line(text, TUNED) == ["", TUNED, "6 M", "3.33 x", "6 M", "3.33 x", ">= 4 x", "no", ""]
    assert "not installed" in text and "no network" in text


def test_amounts_have_three_digits() -> None:
    assert [amount(number) for number in (None, 0, 7, 1234, 99_900_000)] == [
        "-",
        "0",
        "7",
        "1.23 k",
        "99.9 M",
    ]


def test_an_engine_that_fails_does_not_stop_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(argv: list[str], environ: object = None) -> Measured:
        if "benchmarks.peers.run_spark" in argv:
            raise EngineFailed("it ended with code 1")
        return measured(1_000_000)

    def install() -> None:
        raise NotInstalled("there is no network")

    monkeypatch.setattr(peers, "measure", measure)
    monkeypatch.setattr(peers, "installed", lambda: False)
    monkeypatch.setattr(peers, "install", install)
    with Steps(Console(file=io.StringIO()), 1) as steps:
        (found,) = Peers(steps).run("keyed_aggregate_1k")
    assert found["peers"] == {
        SPARK: "failed: it ended with code 1",
        FLINK: "not installed: there is no network",
        TUNED: "not installed: there is no network",
    }
    assert found["ours"] == "1 M"


def test_all_benchmarks_run_unless_some_are_named() -> None:
    assert wanted([]) == (NAMES, 10_000_000)
    assert wanted(["window_aggregate", "ours"])[0] == (*OURS, *CHECKPOINTS, "window_aggregate")
    assert set(wanted(["peers"])[0]) == set(NAMES) - set(OURS) - set(CHECKPOINTS)
    assert wanted(["nexmark", "--rows", "5000"]) == (("nexmark",), 5_000)


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        wanted(["exchnage"])
    assert (
        "there is no benchmark exchnage; known are ours, checkpoints, peers, kafka,"
        in capsys.readouterr().err
    )


def test_a_benchmark_that_raises_is_a_row_and_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> list[dict[str, Any]]:
        raise RuntimeError("the cluster does not come to rest\nand so on")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("benchmarks.submit.run", run)
    assert command.main(["submit"]) == 1
    (found,) = json.loads((tmp_path / "out/bench.json").read_text())
    assert (found["benchmark"], found["ours"]) == (
        "submit",
        "failed: the cluster does not come to rest",
    )
    assert "1 of 1: submit" in (said := capsys.readouterr().out)
    assert "and so on" in said


def test_rows_of_other_benchmarks_stay(tmp_path: Path) -> None:
    out = tmp_path / "out" / "bench.json"
    rows = [
        {"benchmark": "submit", "ours": 1},
        {"benchmark": "gone", "ours": 2},
        {"benchmark": "demo", "ours": 3},
    ]
    write(rows, out)
    write([{"benchmark": "demo", "ours": 4}], out)
    assert json.loads(out.read_text()) == [
        {"benchmark": "submit", "ours": 1},
        {"benchmark": "demo", "ours": 4},
    ]


def test_with_fewer_rows_benchmarks_of_checkpoints_are_shorter() -> None:
    (short,) = run_ours("checkpoint_plan", 100_000)
    assert "3 x 100 subtasks" in short["name"]
    assert short["met"]


def test_percentiles_are_values_that_were_seen() -> None:
    assert [percentile([3.0, 1.0, 2.0, 4.0], p) for p in (50, 75, 99)] == [2.0, 3.0, 4.0]
