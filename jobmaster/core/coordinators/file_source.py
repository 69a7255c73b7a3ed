"""file-source: parts of files, each a bounded amount of work (firesteel.common.file_parts).

Options: "paths"; "parallelism"; "cut", whether the format can be read from the middle of a file;
"watch_s"; "skipped", paths of files that are not read.

Files that exist when the job starts are read in sorted order. With "watch_s", the paths are listed
again this many seconds after the last listing ended; new files become splits after the earlier
ones, each path once, even if the file changes later. The shell lists in order of modification time,
then name.

The files of one listing are divided so that each subtask gets several splits: neighbouring small
files share a split, and a large file that can be cut has several of about equal length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from firesteel.common.file_parts import COMPRESSED, FilePart, ListedFile, to_json
from firesteel.common.globs import is_pattern
from firesteel.common.operator_messages import NoSplitYet
from firesteel.common.units import MIB
from jobmaster.core.coordinators.base import Answer, BadOptions, Json, Options
from jobmaster.core.coordinators.splits import SplitEnumerator

MIN_WATCH_S = 0.01
# Per listing, if there is enough data, so that all subtasks end at about the same time.
SPLITS_PER_SUBTASK = 8
MIN_SPLIT_BYTES = 4 * MIB  # a smaller split is not worth a message
MAX_SPLIT_BYTES = 64 * MIB  # about a second's work
MAX_SPLIT_FILES = 256
FILE_BYTES = 64 * 1024  # the cost of opening a file, in bytes that could be read instead


class _Split(NamedTuple):
    """`files` neighbouring files, or a piece of one."""

    first: int  # the index of its first file
    files: int
    piece: int = 0
    pieces: int = 1  # the number of pieces that the file is cut into


class FileSourceEnumerator(SplitEnumerator):
    def __init__(
        self,
        *,
        paths: Sequence[str],
        parallelism: int = 1,
        cut: bool = False,
        watch_s: float | None = None,
        skipped: Sequence[str] = (),
        subfolders: bool = True,
    ) -> None:
        """`subfolders`: whether files in folders below the paths are read; otherwise only those in
        partitions, whose folders are named `key=value`.
        """
        super().__init__()
        self.paths_to_list = tuple(paths)
        self.watched = watch_s is not None
        self._parallelism = parallelism
        self._cut = cut
        self._watch_s = watch_s
        self._listed = False
        self._up_to_date = False  # listed since the job was restored
        self._files: list[ListedFile] = []
        self._splits: list[_Split] = []
        self._sizes: list[int] = []  # bytes up to the end of each split; computed for `backlog`
        self._skipped = frozenset(skipped)
        self._subfolders = subfolders
        self._seen = set(skipped)
        self._list_at: float | None = None  # None: not watched, or being listed

    @classmethod
    def from_options(cls, options: Options) -> FileSourceEnumerator:
        paths, watch_s = options.get("paths"), options.get("watch_s")
        parallelism, cut = options.get("parallelism", 1), options.get("cut", False)
        if (
            not isinstance(paths, list)
            or not paths
            or not all(isinstance(path, str) and path for path in paths)
        ):
            raise BadOptions('"paths" must be a list of at least one path')
        if watch_s is not None and (not isinstance(watch_s, int | float) or watch_s < MIN_WATCH_S):
            raise BadOptions(f'"watch_s" is {watch_s!r}; it must be at least {MIN_WATCH_S} seconds')
        if not isinstance(parallelism, int) or parallelism < 1:
            raise BadOptions(f'"parallelism" is {parallelism!r}; it must be at least 1')
        if not isinstance(cut, bool):
            raise BadOptions(f'"cut" is {cut!r}; it must be true or false')
        skipped = options.get("skipped", [])
        if not isinstance(skipped, list) or not all(isinstance(path, str) for path in skipped):
            raise BadOptions('"skipped" must be a list of paths')
        subfolders = options.get("subfolders", True)
        if not isinstance(subfolders, bool):
            raise BadOptions(f'"subfolders" is {subfolders!r}; it must be true or false')
        return cls(
            paths=paths,
            parallelism=parallelism,
            cut=cut,
            watch_s=watch_s,
            skipped=skipped,
            subfolders=subfolders,
        )

    @property
    def ready(self) -> bool:
        return self._listed

    @property
    def up_to_date(self) -> bool:
        return self._up_to_date

    @property
    def bounded(self) -> bool:
        return self._watch_s is None

    def paths_listed(self, files: Sequence[ListedFile], now: float) -> Sequence[Answer]:
        self._listed = True
        if not self._subfolders:
            paths = self.paths_to_list
            files = [each for each in files if any(_is_at(each.path, path) for path in paths)]
        # A file that matches two globs is read once.
        new = list({file.path: file for file in files if file.path not in self._seen}.values())
        if not self.watched:
            new.sort()
        self._seen.update(file.path for file in new)
        self._splits += self._divided(new, len(self._files))
        self._files += new
        self._found_version += len(new)
        if self._watch_s is not None:
            self._list_at = now + self._watch_s
        served = self.serve_waiting()
        self._up_to_date = True
        return [*served, *(Answer(attempt_id, NoSplitYet()) for attempt_id in self._waiting)]

    def next_deadline(self) -> float | None:
        return self._list_at

    def tick(self, now: float) -> bool:
        if self._list_at is None or now < self._list_at:
            return False
        self._list_at = None
        return True

    def split_count(self) -> int:
        return len(self._splits)

    def split_json(self, number: int) -> str:
        first, files, piece, pieces = self._splits[number]
        parts = []
        for path, size, modified_ns in self._files[first : first + files]:
            start, end = size * piece // pieces, size * (piece + 1) // pieces
            parts.append(FilePart(path, start, end - start, size, modified_ns))
        return json.dumps(to_json(parts), separators=(",", ":"))

    def backlog(self) -> Mapping[str, int]:
        if not self._listed:
            return {}
        splits, files, sizes, first = self._splits, self._files, self._sizes, self._next
        for split in splits[len(sizes) :]:
            sizes.append((sizes[-1] if sizes else 0) + self._size(split))
        returned = [splits[number] for number in list(self._returned)]
        new_bytes = sizes[-1] - (sizes[first - 1] if first else 0) if sizes else 0
        new_files = len(files) - splits[first].first if first < len(splits) else 0
        return {
            **super().backlog(),
            "pendingBytes": new_bytes + sum(map(self._size, returned)),
            "pendingFiles": new_files + sum(split.files for split in returned),
        }

    def _size(self, split: _Split) -> int:
        first, files, piece, pieces = split
        size = sum(file.size for file in self._files[first : first + files])
        return size * (piece + 1) // pieces - size * piece // pieces

    def found(self, snapshot: Json) -> Json:
        files, splits = _counts(snapshot)
        if not self._listed or (snapshot is not None and len(self._files) <= files):
            return None
        return {
            **(super().found(snapshot) or {}),
            "behind": [files, splits],
            "files": self._files[files:],
            "splits": self._splits[splits:],
        }

    def take_found(self, found: Json) -> None:
        """Adds to the restored listing. `found` may start at an earlier checkpoint than the
        restored one, which then contains the first of these files. If it contains different files,
        the paths were listed again after `found`, which is ignored.
        """
        files = [ListedFile(*file) for file in found["files"]]
        splits = [_Split(*split) for split in found["splits"]]
        first_file, first_split = found["behind"]
        known_files, known_splits = self._files[first_file:], self._splits[first_split:]
        follows = len(self._files) >= first_file and len(self._splits) >= first_split
        if (
            follows
            and files[: len(known_files)] == known_files
            and splits[: len(known_splits)] == known_splits
        ):
            self._listed = True
            self._files += files[len(known_files) :]
            self._splits += splits[len(known_splits) :]
            self._seen = set(self._skipped) | {file.path for file in self._files}
            super().take_found(found)

    def snapshot(self) -> Json:
        return {**super().snapshot(), "files": list(self._files), "splits": list(self._splits)}

    def restore(self, snapshot: Json) -> None:
        super().restore(snapshot)
        self._listed = True
        self._up_to_date = False
        self._sizes = []
        self._files = [ListedFile(*file) for file in snapshot["files"]]
        self._splits = [_Split(*split) for split in snapshot["splits"]]
        self._seen = set(self._skipped) | {file.path for file in self._files}

    def _divided(self, files: Sequence[ListedFile], offset: int) -> Iterator[_Split]:
        """Divides the files into splits; `offset` is the index of the first of these files."""
        splits = SPLITS_PER_SUBTASK * self._parallelism
        most_files = min(MAX_SPLIT_FILES, -(-len(files) // splits))
        total = sum(file.size + FILE_BYTES for file in files)
        target = min(MAX_SPLIT_BYTES, max(MIN_SPLIT_BYTES, total // splits))
        first = count = length = 0  # of the small files that share the next split
        for index, (path, size, _) in enumerate(files, offset):
            cost = size + FILE_BYTES
            pieces = round(size / target) if self._can_cut(path) else 1
            if count and (pieces > 1 or count == most_files or length + cost > target):
                yield _Split(first, count)
                count = length = 0
            if pieces > 1:
                yield from (_Split(index, 1, piece, pieces) for piece in range(pieces))
                continue
            if not count:
                first = index
            count += 1
            length += cost
        if count:
            yield _Split(first, count)

    def _can_cut(self, path: str) -> bool:
        """Whether the file can be read from the middle: not if it is compressed as a whole."""
        return self._cut and not path.lower().endswith(COMPRESSED)


def _counts(snapshot: Json) -> tuple[int, int]:
    """Returns the numbers of files and splits in the snapshot."""
    return (0, 0) if snapshot is None else (len(snapshot["files"]), len(snapshot["splits"]))


def _is_at(file: str, path: str) -> bool:
    """Whether the path, which may be a glob, is the file, its folder, or one from which only
    folders of partitions lead to the file.
    """
    path = path.rstrip("/")
    if "**" in path:
        return True
    if not is_pattern(path) and path != file and not file.startswith(f"{path}/"):
        return False
    depth = len(path.split("/"))
    return all("=" in folder for folder in file.split("/")[depth:-1])
