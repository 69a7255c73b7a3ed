"""file-source: one split per file: {"path": "/abs/file.csv"}.

Files that exist when the job starts come in sorted order. With "watch_s", the paths are listed
again this many seconds after the last listing ended; new files become splits behind the earlier
ones, each path once, whatever happens to the file later. The shell lists in the order of
modification times, then names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from jobmaster.core.coordinators.base import Answer, BadOptions, Json, Options
from jobmaster.core.coordinators.splits import SplitEnumerator

MIN_WATCH_S = 0.01


class FileSourceEnumerator(SplitEnumerator):
    def __init__(self, *, paths: Sequence[str], watch_s: float | None = None) -> None:
        super().__init__()
        self.paths_to_list = tuple(paths)
        self.watched = watch_s is not None
        self._watch_s = watch_s
        self._files: list[str] | None = None  # None: not listed yet
        self._seen: set[str] = set()
        self._list_at: float | None = None  # None: not watched, or being listed

    @classmethod
    def from_options(cls, options: Options) -> FileSourceEnumerator:
        paths, watch_s = options.get("paths"), options.get("watch_s")
        if (
            not isinstance(paths, list)
            or not paths
            or not all(isinstance(path, str) and path for path in paths)
        ):
            raise BadOptions('"paths" must be a list of at least one path')
        if watch_s is not None and (not isinstance(watch_s, int | float) or watch_s < MIN_WATCH_S):
            raise BadOptions(f'"watch_s" is {watch_s!r}; it must be at least {MIN_WATCH_S} seconds')
        return cls(paths=paths, watch_s=watch_s)

    @property
    def ready(self) -> bool:
        return self._files is not None

    @property
    def bounded(self) -> bool:
        return self._watch_s is None

    def paths_listed(self, files: Sequence[str], now: float) -> Sequence[Answer]:
        if self._files is None:
            self._files = []
        # A file that two globs match is read once.
        new = [file for file in dict.fromkeys(files) if file not in self._seen]
        self._files += new if self.watched else sorted(new)
        self._seen.update(new)
        if self._watch_s is not None:
            self._list_at = now + self._watch_s
        return self.serve_waiting()

    def next_deadline(self) -> float | None:
        return self._list_at

    def tick(self, now: float) -> bool:
        if self._list_at is None or now < self._list_at:
            return False
        self._list_at = None
        return True

    def split_count(self) -> int:
        return len(self._files or ())

    def split_json(self, number: int) -> str:
        assert self._files is not None
        return json.dumps({"path": self._files[number]})

    def snapshot(self) -> Json:
        return {**super().snapshot(), "files": self._files}

    def restore(self, snapshot: Json) -> None:
        super().restore(snapshot)
        self._files = snapshot["files"]
        self._seen = set(self._files or ())
