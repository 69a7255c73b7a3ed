"""The series of a job's last hour."""

from __future__ import annotations

import math

import pytest

from firesteel._proto.common_pb2 import TaskMetrics
from jobmaster.series import KEPT, STEP_MS, Attempt, JobSeries, sample

NOW_MS = 1_000_000.0


def metrics(attempt_id: str = "a", **values: float) -> TaskMetrics:
    return TaskMetrics(attempt_id=attempt_id, watermark_us=-(2**63), **values)


def test_rates_and_shares_are_of_the_time_that_the_reports_cover():
    before = {"a": metrics(records_in=100, busy_ms=1_000, idle_ms=1_000)}
    now = metrics(records_in=150, busy_ms=1_750, idle_ms=1_250, spark_ms=500)
    taken = sample([Attempt(0, now)], before, NOW_MS)
    assert taken is not None
    assert taken.values["records_in"] == 50.0
    assert (taken.values["busy"], taken.values["idle"], taken.values["spark"]) == (0.75, 0.25, 0.5)


def test_attempts_without_a_new_report_are_left_out():
    old = metrics(busy_ms=100)
    assert sample([Attempt(0, old)], {"a": old}, NOW_MS) is None
    new = metrics("b", records_in=10, idle_ms=1_000)
    taken = sample([Attempt(0, old), Attempt(1, new)], {"a": old}, NOW_MS)
    assert taken is not None and taken.values["records_in"] == 10.0


def test_the_busiest_and_the_largest_subtask():
    taken = sample(
        [
            Attempt(0, metrics("a", records_in=10, busy_ms=900, idle_ms=100)),
            Attempt(1, metrics("b", records_in=90, busy_ms=500, idle_ms=500)),
        ],
        {},
        NOW_MS,
    )
    assert taken is not None
    assert (taken.busiest_subtask, taken.busiest) == (0, 0.9)
    assert (taken.largest_subtask, taken.largest) == (1, 0.9)


@pytest.mark.parametrize(
    ("watermark_us", "lag_ms"),
    [(999_000_000, 1_000.0), (2_000_000_000, 0.0), (-(2**63), math.nan), (2**63 - 1, math.nan)],
)
def test_the_watermark_lags_behind_the_clock(watermark_us: int, lag_ms: float):
    now = metrics(idle_ms=1)
    now.watermark_us = watermark_us
    taken = sample([Attempt(0, now)], {}, NOW_MS)
    assert taken is not None
    assert taken.values["watermark_lag_ms"] == pytest.approx(lag_ms, nan_ok=True)


def test_a_view_has_at_most_the_points_that_are_wanted():
    series = JobSeries()
    for number in range(KEPT + 10):
        now = metrics(records_in=number * 5, idle_ms=number * STEP_MS + 1)
        series.add({"v": [Attempt(0, now)]}, number * STEP_MS)
    whole = series.view(vertex_id="", since_ms=0, points=KEPT)
    assert len(whole.times_ms) == KEPT
    view = series.view(vertex_id="v", since_ms=0, points=100)
    assert (len(view.times_ms), view.step_ms) == (90, 8 * STEP_MS)
    assert set(view.vertices["v"].rows["records_in"].values) == {1.0}
    recent = series.view(vertex_id="v", since_ms=(KEPT + 8) * STEP_MS, points=100)
    assert list(recent.times_ms) == [(KEPT + 9) * STEP_MS]
    assert not series.view(vertex_id="other", since_ms=0, points=9).vertices


def test_a_vertex_that_starts_later_is_unknown_before():
    series = JobSeries()
    series.add({"v": [Attempt(0, metrics(idle_ms=1))], "w": []}, 0)
    series.add({"v": [], "w": [Attempt(0, metrics("b", idle_ms=1))]}, STEP_MS)
    rows = series.view(vertex_id="", since_ms=-1, points=9).vertices
    assert [math.isnan(v) for v in rows["v"].rows["idle"].values] == [False, True]
    assert [math.isnan(v) for v in rows["w"].rows["idle"].values] == [True, False]
