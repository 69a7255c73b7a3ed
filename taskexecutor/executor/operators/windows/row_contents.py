"""Window contents of rows, which Spark processes when the window fires: `window.apply(...)`, and
aggregates that cannot be split.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from firesteel.operator import Output, RuntimeContext
from firesteel.operators import WindowApplySpec
from firesteel.operators.assigners import WINDOW_END, WINDOW_START
from firesteel.row_kind import INSERT
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.operators.columns import as_timestamps
from taskexecutor.executor.operators.windows.contents import Combined, StoredRows
from taskexecutor.executor.operators.windows.fired_rows import with_window
from taskexecutor.executor.operators.windows.spark_windows import SparkWindows


class RowContents(StoredRows):
    """Rows as they arrived. `emit` passes them to Spark with two additional columns: their window's
    start and end.

    If the function's plan keeps windows apart (`windows_together`), the function gets all windows
    that fire together, with all keys of this subtask; otherwise one window at a time (for sessions:
    all that fire together).
    """

    combines = False

    def __init__(self, spec: WindowApplySpec) -> None:
        self._spec: WindowApplySpec = spec
        self.key_columns = spec.key_columns
        self.retracts = spec.retracts
        self.with_all_keys = spec.function is not None
        self._windows = SparkWindows(spec)

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._windows.setup(context, output)

    @property
    def one_window_at_a_time(self) -> bool:
        return not self._windows.together

    def combined(self, table: pa.Table, windows: Ints, *, of_one_key: bool = False) -> Combined:
        if (windows[1:] >= windows[:-1]).all():
            return Combined(table, windows)
        order = np.argsort(windows, kind="stable")
        return Combined(table.take(pa.array(order)), windows[order])

    def emit(self, table: pa.Table, starts: Ints, ends: Ints, kind: str = INSERT) -> None:
        if not table.num_rows:
            return
        bounds = {WINDOW_START: as_timestamps(starts), WINDOW_END: as_timestamps(ends)}
        self._windows.run(with_window(table, bounds), kind)

    def close(self) -> None:
        self._windows.close()
