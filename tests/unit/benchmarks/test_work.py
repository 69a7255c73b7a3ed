"""The expected results of the engines equal results computed row by row, and a wrong result is
detected.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from benchmarks.peers.work import KEEP_ONE_IN, WINDOW_ROWS, WORKS, Work, check, expected

KEYED = Work("keyed_aggregate_1k", rows=0, check_rows=0, keys=7)
WINDOWED = Work("window_aggregate", rows=0, check_rows=0, keys=1_000)


def row_by_row(work: Work, rows: int) -> dict[str, list[int]]:
    if work.name == "filter_project":
        kept = [n for n in range(rows) if n % KEEP_ONE_IN == 0]
        return {"v": kept, "d": [2 * n for n in kept]}
    groups: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for n in range(rows):
        group = groups[n // WINDOW_ROWS if work.name == "window_aggregate" else 0, n % work.keys]
        group[0] += 1
        group[1] += n
    return {
        "k": [key for _, key in groups],
        "c": [count for count, _ in groups.values()],
        "s": [total for _, total in groups.values()],
    }


@pytest.mark.parametrize(
    ("work", "rows"),
    [
        (WORKS["filter_project"], 1),
        (WORKS["filter_project"], 1_001),
        (KEYED, 3),
        (KEYED, 7),
        (KEYED, 1_000),
        (WINDOWED, WINDOW_ROWS),
        (WINDOWED, WINDOW_ROWS + 17),
    ],
)
def test_the_expected_result_is_that_of_a_loop(work: Work, rows: int) -> None:
    check(work, row_by_row(work, rows), rows)


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_sums_of_the_timed_rows_fit_into_64_bits(work: Work) -> None:
    result = expected(work, work.rows)
    if work.name == "filter_project":
        assert int(result["d"][-1]) == 2 * (work.rows - KEEP_ONE_IN)
    else:
        assert int(result["c"].sum()) == work.rows
        assert int(result["s"].sum()) == work.rows * (work.rows - 1) // 2


def test_the_order_of_rows_does_not_matter() -> None:
    result = expected(KEYED, 100)
    order = np.random.default_rng(1).permutation(len(result["k"]))
    check(KEYED, {name: column[order] for name, column in result.items()}, 100)


def test_a_wrong_row_is_named() -> None:
    result = {name: column.tolist() for name, column in expected(KEYED, 100).items()}
    result["c"][3] += 1
    result["c"][4] -= 1  # all sums are right
    with pytest.raises(
        SystemExit, match=r"\(k, c, s\) is \(3, 15, 679\) instead of \(3, 14, 679\)"
    ):
        check(KEYED, result, 100)


def test_sums_that_were_swapped_are_found() -> None:
    result = {name: column.tolist() for name, column in expected(KEYED, 100).items()}
    result["s"][3], result["s"][4] = result["s"][4], result["s"][3]
    with pytest.raises(SystemExit, match="wrong result"):
        check(KEYED, result, 100)


def test_a_lost_row_is_found() -> None:
    result = {name: column[1:] for name, column in expected(KEYED, 100).items()}
    with pytest.raises(SystemExit, match="6 rows instead of 7"):
        check(KEYED, result, 100)


def test_the_last_update_of_each_key_stands() -> None:
    work = Work("keyed_aggregate_1k", rows=0, check_rows=0, keys=2, updates=True)
    check(work, {"k": [1, 0, 0, 1], "c": [1, 1, 2, 2], "s": [1, 0, 2, 4]}, 4)
    with pytest.raises(SystemExit, match=r"is \(1, 1, 1\) instead of \(1, 2, 4\)"):
        check(work, {"k": [1, 0, 0], "c": [1, 1, 2], "s": [1, 0, 2]}, 4)
