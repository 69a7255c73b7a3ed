"""Which files a glob or a folder means: those that Spark would read."""

from __future__ import annotations

import glob
import os


def is_hidden(name: str) -> bool:
    """Whether Spark leaves out what has this name in a folder. `_key=value` is a column."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or _unfinished(name)


def files_below(directory: str) -> list[str]:
    """Those that a folder means: none that is hidden, or in a hidden folder."""
    found = []
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not is_hidden(name)]
        found += [os.path.join(folder, name) for name in names if not is_hidden(name)]
    return found


def matches_of(pattern: str) -> list[str]:
    """What a glob matches, in any order. Hidden names only match if a part of the pattern is
    written like one.
    """
    found = glob.glob(pattern.replace("[^", "[!"), recursive=True)  # as in a shell and for Spark
    parts = pattern.split(os.sep)
    first = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    if any(map(is_hidden, parts[first:])):
        return found
    return [match for match in found if not any(map(is_hidden, match.split(os.sep)[first:]))]


def _unfinished(name: str) -> bool:
    return name.endswith("._COPYING_")  # by `hadoop fs -put`
