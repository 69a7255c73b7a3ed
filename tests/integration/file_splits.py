"""Splits of a file source, as its coordinator makes them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from firesteel.common.file_parts import FilePart, to_json
from firesteel.common.operator_messages import SplitAssigned
from firesteel.testing import OperatorHarness


def split_of(*files: Path | str) -> str:
    """Returns a split of whole files."""
    return json.dumps(to_json([part for file in files for part in parts_of(file)]))


def cut_split(file: Path | str, *bounds: int) -> str:
    """Returns a split of a complete file, cut at these positions."""
    return json.dumps(to_json(parts_of(file, bounds)))


def parts_of(file: Path | str, bounds: Sequence[int] = ()) -> list[FilePart]:
    found = os.stat(file)
    return [
        FilePart(str(file), start, end - start, found.st_size, found.st_mtime_ns)
        for start, end in pairwise([0, *bounds, found.st_size])
    ]


def read_split(harness: OperatorHarness, number: int, split: str) -> None:
    """Has a source read a whole split, in as many bundles as that takes."""
    harness.deliver(SplitAssigned(number=number, split_json=split))
    harness.poll()
    while harness.operator._split is not None:  # type: ignore[attr-defined]
        harness.poll()
