"""Finds the files that a source's paths and globs name. Blocking I/O: call it in a thread."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

from firesteel.common.file_parts import ListedFile
from firesteel.common.globs import files_below, matches_of

MAX_FILES = 1_000_000

# `list_files`, or what stands in for it.
PathLister: TypeAlias = Callable[[Sequence[str], bool], list[ListedFile]]


class PathProblem(Exception):
    """A path names nothing that can be read; the message names it."""


def list_files(paths: Sequence[str], watched: bool = False) -> list[ListedFile]:
    """All files, sorted. A directory means the files below it, without hidden ones and Spark's
    `_SUCCESS` and the like.

    Raises PathProblem for the first path that matches no file. Watched paths may match none yet,
    but the directory to watch must exist; their files are sorted by modification time, then by
    name.
    """
    files: set[str] = set()
    for path in paths:
        found = _files_of(path)
        if not found and watched:
            _check_watched(path)
        elif not found:
            raise PathProblem(
                f"source path {path!r} {_why(path)}; correct the path (it is looked up on the "
                "cluster's machine)"
            )
        for file in found:
            if ":" in os.path.basename(file):
                raise PathProblem(
                    f"source path {path!r}: Spark cannot open {file!r}, because of the colon in "
                    "its name; rename it"
                )
        files.update(found)
        if len(files) > MAX_FILES:
            raise PathProblem(
                f"source path {path!r} matches more than {MAX_FILES:,} files; use fewer, larger "
                "files"
            )
    listed = [_listed(file, watched) for file in files]
    return sorted(
        (file for file in listed if file is not None),
        key=lambda file: (file.modified_ns if watched else 0, file.path),
    )


def _files_of(path: str) -> list[str]:
    local = path.removeprefix("file://")
    if "://" in local:
        scheme = local.split("://", 1)[0]
        raise PathProblem(
            f"source path {path!r}: the file system {scheme!r} is not supported by FileSource yet; "
            "use a local path"
        )
    if os.path.isfile(local):  # also a name that looks like a glob
        return [os.path.abspath(local)]
    matches = [local] if os.path.isdir(local) else matches_of(local)
    files = []
    for match in matches:
        if os.path.isdir(match):
            files += files_below(match)
        elif os.path.isfile(match):
            files.append(match)
    return [os.path.abspath(file) for file in files]


def _why(path: str) -> str:
    local = path.removeprefix("file://")
    if glob.has_magic(local):
        return "matches no file"
    return "is an empty directory" if os.path.isdir(local) else "does not exist"


def _check_watched(path: str) -> None:
    """The watched directory, or the one in which a glob begins to vary, must exist."""
    folder = path.removeprefix("file://")
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise PathProblem(
            f"watched source path {path!r}: there is no directory {folder!r} (any more); create it "
            "before the job starts and keep it, even when its files are removed (it is looked up "
            "on the cluster's machine)"
        )


def _listed(path: str, watched: bool) -> ListedFile | None:
    """None if it was removed meanwhile, which watched files may be."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if watched:
            return None
        raise PathProblem(
            f"source file {path!r} was removed while the files were listed; start the job again"
        ) from None
    return ListedFile(path, found.st_size, found.st_mtime_ns)
