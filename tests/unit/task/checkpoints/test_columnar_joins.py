"""Restored joins, with the same or another parallelism, continue as if never interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.errors import FiresteelError
from firesteel.operators import (
    AsOfSpec,
    EventTimes,
    IntervalSpec,
    JoinSpec,
    SameWindowSpec,
    TimeToLiveSpec,
    TumblingSpec,
)
from taskexecutor.executor.operators.joins import as_of_join, join_operator, stream_join
from taskexecutor.executor.operators.joins.stream_join import StreamJoin
from tests.long import fewer
from tests.unit.task.checkpoints.vertices import Vertex

TIME = pa.timestamp("us", "UTC")
LEFT = pa.schema([("key", pa.string()), ("at", TIME), ("left", pa.int64())])
RIGHT = pa.schema([("key", pa.string()), ("time", TIME), ("right", pa.int64())])
TIMES = EventTimes(columns=("at", "time"))
JOINS = {
    "inner": {},
    "left": {"how": "left"},
    "full": {"how": "full"},
    "ttl": {"how": "full", "within": TimeToLiveSpec(ttl_ms=20)},
    "interval": {"within": IntervalSpec(times=TIMES, lower_us=-5, upper_us=9)},
    "interval, left": {
        "how": "left",
        "within": IntervalSpec(times=TIMES, lower_us=2, upper_us=9),
    },
    "interval, full": {
        "how": "full",
        "within": IntervalSpec(times=TIMES, lower_us=-9, upper_us=-2),
    },
    "window": {"within": SameWindowSpec(times=TIMES, window=TumblingSpec(size_us=10))},
    "window, right": {
        "how": "right",
        "within": SameWindowSpec(times=TIMES, window=TumblingSpec(size_us=10)),
    },
    "as of": {"how": "left", "within": AsOfSpec(times=TIMES)},
    "as of with a tolerance": {"within": AsOfSpec(times=TIMES, tolerance_us=5)},
}
# Rows of one side (key, time), a watermark, or the next parallelism.
FLOWS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), min_size=1, max_size=5),
    )
    | st.integers(0, 40)
    | st.tuples(st.integers(1, 4)),
    max_size=12,
)


@settings(max_examples=fewer(100), deadline=None)
@given(join=st.sampled_from(list(JOINS)), flow=FLOWS)
def test_joins_continue(
    tmp_path_factory: pytest.TempPathFactory, join: str, flow: list[Any]
) -> None:
    spec = JoinSpec(left_keys=("key",), right_keys=("key",), **JOINS[join])  # type: ignore[arg-type]
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_join, "LEAST_BYTES", 150)
        patch.setattr(as_of_join, "LEAST", 3)
        for fails in (False, True):
            now = [0]
            vertex = Vertex(
                lambda now=now: join_operator(spec, now_ms=lambda: now[0]),  # type: ignore[misc]
                (LEFT, RIGHT),
                None,
                ("key",),
                tmp_path_factory.mktemp("state"),
            )
            number = 0
            for element in flow:
                now[0] += 7
                match element:
                    case int():
                        vertex.watermark(element)
                    case (int() as parallelism,):
                        checkpoint = vertex.checkpoint()
                        if fails:
                            vertex.restore(checkpoint, parallelism)
                    case side, rows:
                        names = (LEFT, RIGHT)[side].names
                        values = [
                            (None if key == 4 else str(key), time, number + i)
                            for i, (key, time) in enumerate(rows)
                        ]
                        vertex.process([dict(zip(names, row, strict=True)) for row in values], side)
                        number += len(rows)
                        vertex.flush()
            vertex.watermark(10_000)
            vertex.end()
            found.append((sorted(map(repr, vertex.rows())), vertex.late))
    assert found[1] == found[0]


def test_rows_that_were_kept_by_another_join_are_refused(tmp_path: Path) -> None:
    def join(**settings: Any) -> StreamJoin:
        return StreamJoin(JoinSpec(left_keys=("key",), right_keys=("key",), **settings))

    kinds = [join]
    vertex = Vertex(lambda: kinds[0](), (LEFT, RIGHT), None, ("key",), tmp_path)
    vertex.process([{"key": "a", "at": 1, "left": 1}], 0)
    checkpoint = vertex.checkpoint()
    kinds[0] = lambda: join(how="left")
    with pytest.raises(FiresteelError, match="left rows do not fit .* its how was inner"):
        vertex.restore(checkpoint, 1)
