"""Finds the files of a path, a folder or a glob: the regular files that Spark would read."""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

_KINDS = (
    (stat.S_ISFIFO, "a named pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


class FilesBelow(NamedTuple):
    """The contents of a folder, sorted by path."""

    files: list[str]
    skipped: list[str]  # "path is a named pipe (FIFO)"


def is_hidden(name: str) -> bool:
    """Whether Spark skips files with this name. A folder named `_key=value` is a column."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or _unfinished(name)


def printable(path: str) -> str:
    """Returns the path with `\\xe9` for each byte that is not UTF-8, as messages require."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def not_readable(path: str) -> str:
    """Returns the kind of a path that is neither a regular file nor a folder; else "".

    Opening a named pipe or a device may block or never end, so these are not read. Raises
    FileNotFoundError if the path does not exist, and OSError if it cannot be looked up.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if os.path.islink(path):
            return f"a link to {os.readlink(path)!r}, which does not exist"
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "a link that leads back to itself"
        raise
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    return next((what for test, what in _KINDS if test(mode)), "a special file")


def files_below(directory: str) -> FilesBelow:
    """Returns the regular files of a folder and its subfolders, without hidden files and folders.

    Links to folders are followed, as Spark does, except those that lead to a folder that contains
    them. Raises OSError for a folder that cannot be listed.
    """
    below = FilesBelow([], [])
    folders: list[tuple[str, tuple[tuple[int, int], ...]]] = [(directory, ())]
    while folders:
        folder, above = folders.pop()
        try:
            identity = _identity(folder)
            if identity in above:
                below.skipped.append(f"{folder} is a link to a folder that contains it")
                continue
            with os.scandir(folder) as listed:
                entries = [entry for entry in listed if not is_hidden(entry.name)]
        except FileNotFoundError:
            if not above:
                raise
            continue  # removed since its parent was listed
        for entry in entries:
            try:
                if entry.is_file(follow_symlinks=False):
                    below.files.append(entry.path)
                elif kind := not_readable(entry.path):
                    below.skipped.append(f"{entry.path} is {kind}")
                elif os.path.isdir(entry.path):
                    folders.append((entry.path, (*above, identity)))
                else:
                    below.files.append(entry.path)
            except FileNotFoundError:
                pass  # removed since the folder was listed
    below.files.sort()
    below.skipped.sort()
    return below


def _identity(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def is_pattern(path: str) -> bool:
    """Whether the path has characters with a meaning in a glob."""
    return glob.has_magic(path) or "{" in path


def matches_of(pattern: str) -> list[str]:
    """Returns the paths that a glob matches, sorted: Hadoop's globs (`*`, `?`, `[a-c]`, `[^a]`,
    `{a,b}`, and a backslash before a literal character), and `**` for any depth of folders.

    Hidden names only match if a part of the pattern is written like one.
    """
    return sorted({match for one in _alternatives(pattern) for match in _matches(one)})


def _matches(pattern: str) -> list[str]:
    pattern = _ESCAPED.sub(_literally, pattern.replace("[^", "[!"))
    matches = glob.glob(pattern, recursive=True)
    parts = pattern.split(os.sep)
    first = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    if any(map(is_hidden, parts[first:])):
        return matches
    return [match for match in matches if not any(map(is_hidden, match.split(os.sep)[first:]))]


_ESCAPED = re.compile(r"\\(.)")
# An escaped character, a class of characters, or one that delimits alternatives.
_BRACES = re.compile(r"\\.|\[[!^]?[^\]]+\]|[{},]")


def _literally(escaped: re.Match[str]) -> str:
    return f"[{escaped[1]}]" if glob.has_magic(escaped[1]) else escaped[1]


def _alternatives(pattern: str) -> Iterator[str]:
    """Yields the pattern once for each choice of `{a,b}`. An unmatched brace is literal."""
    depth, cuts = 0, []
    for mark in _BRACES.finditer(pattern):
        match mark[0]:
            case "{":
                depth += 1
            case "}" if depth == 1:
                cuts.append(mark.start())
                for begin, end in pairwise(cuts):
                    yield from _alternatives(
                        pattern[: cuts[0]] + pattern[begin + 1 : end] + pattern[mark.end() :]
                    )
                return
            case "}" if depth:
                depth -= 1
        if mark[0] in "{," and depth == 1:
            cuts.append(mark.start())
    yield pattern


def _unfinished(name: str) -> bool:
    return name.endswith("._COPYING_")  # by `hadoop fs -put`
