"""Finds the files that a source's paths and globs match. Blocking I/O: call it in a thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from firesteel.common.file_parts import ListedFile
from firesteel.common.globs import (
    FilesBelow,
    files_below,
    is_pattern,
    matches_of,
    not_readable,
    printable,
)

MAX_FILES = 1_000_000


class Listing(NamedTuple):
    files: list[ListedFile]  # in the order in which to read them
    skipped: Sequence[str] = ()  # paths that are not regular files: "path is a named pipe (FIFO)"


# `list_files`, or a replacement.
PathLister: TypeAlias = Callable[[Sequence[str], bool], Listing]


class PathProblem(Exception):
    """A path has no readable files; the message names the path."""


def list_files(paths: Sequence[str], watched: bool = False) -> Listing:
    """Returns all regular files that are not empty, sorted. A directory stands for the files below
    it, except hidden ones and Spark's `_SUCCESS` and similar files. Raises PathProblem for the
    first path that matches no file. Watched paths may match none yet, but the directory to watch
    must exist; their files are sorted by modification time, then by name.

    Spark leaves out empty files, which would have a row in some formats.
    """
    files: set[str] = set()
    skipped: dict[str, None] = {}
    for path in paths:
        try:
            found = _files_of(path)
        except OSError as error:
            raise PathProblem(
                f"source path {path!r}: {error.filename or path!r} cannot be listed:"
                f" {error.strerror}"
            ) from error
        if not found.files and watched:
            _check_watched(path)
        elif not found.files:
            raise PathProblem(
                f"source path {path!r} {_why(path, found.skipped)}; correct the path (it is"
                " resolved on the cluster's machine)"
            )
        for file in found.files:
            _check_name(path, file)
        files.update(found.files)
        skipped.update(dict.fromkeys(found.skipped))
        if len(files) > MAX_FILES:
            raise PathProblem(
                f"source path {path!r} matches more than {MAX_FILES:,} files; use fewer, larger "
                "files"
            )
    listed = [_listed(file, watched) for file in files]
    return Listing(
        sorted(
            (file for file in listed if file is not None and file.size),
            key=lambda file: (file.modified_ns if watched else 0, file.path),
        ),
        [printable(text) for text in skipped],
    )


def _check_name(path: str, file: str) -> None:
    if printable(file) != file:
        raise PathProblem(
            f"source path {path!r}: Spark cannot open '{printable(file)}', because its name is not"
            " valid UTF-8; rename it"
        )
    if ":" in os.path.basename(file):
        raise PathProblem(
            f"source path {path!r}: Spark cannot open {file!r}, because of the colon in its name;"
            " rename it"
        )


def _files_of(path: str) -> FilesBelow:
    local = path.removeprefix("file://")
    if "://" in local:
        scheme = local.split("://", 1)[0]
        raise PathProblem(
            f"source path {path!r}: the file system {scheme!r} is not supported by FileSource yet; "
            "use a local path"
        )
    # An existing path may have a name that looks like a glob.
    matches = [local] if os.path.lexists(local) else matches_of(local)
    found = FilesBelow([], [])
    for match in map(os.path.abspath, matches):
        try:
            kind = not_readable(match)
        except FileNotFoundError:
            continue  # removed since the glob was matched
        if kind:
            found.skipped.append(f"{match} is {kind}")
        elif os.path.isdir(match):
            below = files_below(match)
            found.files.extend(below.files)
            found.skipped.extend(below.skipped)
        else:
            found.files.append(match)
    return found


def _why(path: str, skipped: Sequence[str]) -> str:
    """Returns why the path has no readable file."""
    local = path.removeprefix("file://")
    whole = f"{os.path.abspath(local)} is "
    if len(skipped) == 1 and skipped[0].startswith(whole):
        return f"is {printable(skipped[0].removeprefix(whole))}, and only regular files are read"
    if skipped:
        more = f", and {len(skipped) - 1:,} more are skipped" if len(skipped) > 1 else ""
        return f"leads to no regular file: {printable(skipped[0])}{more}"
    if os.path.isdir(local):
        return "is an empty directory"
    return "matches no file" if is_pattern(local) else "does not exist"


def _check_watched(path: str) -> None:
    """Checks that the watched directory, or the fixed part of a glob, exists."""
    folder = path.removeprefix("file://")
    while is_pattern(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise PathProblem(
            f"watched source path {path!r}: the directory {folder!r} does not exist; create it "
            "before the job starts and keep it, even when its files are removed (it is resolved "
            "on the cluster's machine)"
        )


def _listed(path: str, watched: bool) -> ListedFile | None:
    """Returns None if a watched file was removed in the meantime."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if watched:
            return None
        raise PathProblem(
            f"source file {path!r} was removed while the files were listed; start the job again"
        ) from None
    return ListedFile(path, found.st_size, found.st_mtime_ns)
