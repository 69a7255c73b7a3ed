"""DataFrames that a function of foreachBatch refers to, found in its pickle."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.plan import SQL, Read
from pyspark.sql.types import StructType

from firesteel.spark_connect.functions import _Unpickler
from firesteel.spark_connect.outer_frames import OuterFrame, outer_frames


def frame(plan: Any) -> DataFrame:
    found: DataFrame = object.__new__(DataFrame)
    vars(found).update(_plan=plan, _session=None, _support_repr_html=False, _cached_schema=None)
    return found


def test_the_frames_are_found_in_order_without_running_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "local_rates.py").write_text("class Rate:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import local_rates  # type: ignore[import-not-found]

    class Kept:
        rate = local_rates.Rate()

    first, second, kept = frame(SQL("SELECT 1 AS a")), frame(Read("t", {})), Kept()

    def function(batch: Any, batch_id: int) -> Any:
        return first, [second, first], kept, batch_id

    data = cloudpickle.dumps(function)
    del sys.modules["local_rates"]
    found: list[bytes] = []

    def read(relation: bytes) -> OuterFrame:
        found.append(relation)
        return OuterFrame(pa.table({"n": [len(found)]}), StructType())

    frames = outer_frames(data, read)
    assert "local_rates" not in sys.modules
    assert [b"SELECT 1 AS a" in each for each in found] == [True, False]

    class Unpickler(_Unpickler):
        def _frame(self, *_: Any) -> Any:
            return SimpleNamespace(rows=next(self._frames).rows["n"].to_pylist())

    loaded = Unpickler(io.BytesIO(data), frames).load()
    one, (two, again), other, number = loaded(None, 7)
    assert (one.rows, two.rows, number) == ([1], [2], 7)
    assert again is one
    assert type(other.rate).__name__ == "Rate"


def test_a_function_without_frames_is_not_searched() -> None:
    assert outer_frames(cloudpickle.dumps(lambda batch, batch_id: None), pytest.fail) == ()
