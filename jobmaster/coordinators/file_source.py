"""file-source: one split per file, in sorted order: {"path": "/abs/file.csv"}."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jobmaster.coordinators.base import BadOptions
from jobmaster.coordinators.splits import SplitEnumerator


class FileSourceEnumerator(SplitEnumerator):
    def __init__(self, *, paths: Sequence[str]) -> None:
        super().__init__()
        self._paths = tuple(paths)
        self._files: tuple[str, ...] | None = None

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> FileSourceEnumerator:
        paths = options.get("paths")
        if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
            raise BadOptions('"paths" must be a list of at least one path')
        return cls(paths=paths)

    @property
    def ready(self) -> bool:
        return self._files is not None

    @property
    def paths_to_list(self) -> Sequence[str]:
        return self._paths

    def paths_listed(self, files: Sequence[str]) -> None:
        self._files = tuple(sorted(set(files)))  # a file that two globs match is read once

    def split_count(self) -> int:
        return len(self._files or ())

    def split_json(self, number: int) -> str:
        assert self._files is not None
        return json.dumps({"path": self._files[number]})
