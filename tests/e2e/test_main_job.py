"""The main job, as `make demo` runs it, against pandas."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from .conftest import ROOT, firesteel

sys.path.insert(0, str(ROOT / "examples"))
from daily_delays import read_flights

# In every process of the cluster; those of slots write down where they import pandas.
WATCH = """
import sys, traceback
from pathlib import Path

class Watch:
    def find_spec(self, name, path, target=None):
        if name == "pandas" and "taskexecutor.executor" in sys.orig_argv:
            Path(__file__).with_name("imported").write_text("".join(traceback.format_stack()))
        return None

sys.meta_path.insert(0, Watch())
"""


def expected_rows() -> pd.DataFrame:
    flights = read_flights()
    departed = flights[flights["dep_delay"].notna()]
    day = pd.to_datetime(departed["time_hour"]).dt.floor("D")
    rows = departed.groupby(["origin", day.rename("window_start")])["dep_delay"].agg(
        flights="size", avg_delay="mean", max_delay="max"
    )
    return rows.reset_index()


def test_daily_delays_on_the_embedded_cluster_equal_what_pandas_computes(tmp_path: Path) -> None:
    data, output = tmp_path / "flights", tmp_path / "daily_delays"
    cluster = ("-t", "local", "--task-executors", "1")
    arguments = ("--data", str(data), "--output", str(output))
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    run = firesteel("run", *cluster, "examples/daily_delays.py", *arguments, modules=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Job has been submitted with JobID " in run.stdout
    assert "job FINISHED" in run.stderr
    assert "1,098 rows" in run.stdout
    assert re.search(r"\[1\] +336,776 ", run.stdout), (
        "the source reports how many records it has read"
    )

    pandas = tmp_path / "imported"
    assert not pandas.exists(), (
        f"a slot without Python functions needs no pandas: {pandas.read_text()}"
    )

    table = pq.read_table(output)
    assert table.column_names == [
        "origin",
        "window_start",
        "window_end",
        "flights",
        "avg_delay",
        "max_delay",
    ]
    ours = table.to_pandas().sort_values(["origin", "window_start"], ignore_index=True)
    expected = expected_rows().sort_values(["origin", "window_start"], ignore_index=True)
    assert len(ours) == len(expected) == 1098
    assert (ours["window_end"] - ours["window_start"] == pd.Timedelta("1 day")).all()
    assert ours["origin"].tolist() == expected["origin"].tolist()
    assert (ours["window_start"] == expected["window_start"]).all()
    assert ours["flights"].tolist() == expected["flights"].tolist()
    assert ours["max_delay"].tolist() == expected["max_delay"].tolist()
    pd.testing.assert_series_equal(ours["avg_delay"], expected["avg_delay"], rtol=1e-12)
    assert ours["flights"].sum() == 336_776 - 8_255, (
        "every flight that departed is in a window: none was late"
    )
