"""The directory with the users' files and the collected rows of jobs, which any Dispatcher that may
lead needs (`high-availability.storageDir`).

DIR/blobs, DIR/spool, and DIR/job-store with the id of the job store that these belong to. The file
is there before a Dispatcher first takes over the store. So a Dispatcher that does not find it,
although the store has had a leader, looks at another directory than that leader: one machine's own,
or one that is not mounted. It must not lead, because it would answer with no rows for jobs that
have some.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from firesteel.common.config import Configuration, options
from firesteel.common.ids import random_id
from firesteel.errors import FiresteelError

_MARKER = "job-store"
_CONTENTS = ("blobs", "spool")
_OPTION = options.HA_STORAGE_DIR.key


class BadStorage(FiresteelError):
    """A storage directory that cannot be used, or that other Dispatchers do not share."""


def storage_directory(conf: Configuration, directory: Path) -> Path:
    """As configured, else `directory`, the Dispatcher's own. Raises BadStorage."""
    configured = conf.get(options.HA_STORAGE_DIR)
    if not configured:
        return directory
    parts = urlsplit(configured)
    path = Path(unquote(parts.path)) if "://" in configured else Path(configured)
    if "://" in configured and (parts.scheme != "file" or parts.netloc not in ("", "localhost")):
        raise BadStorage(
            f"{_OPTION}: {configured!r} cannot be used: collected rows are appended to files;"
            " give a directory that all Dispatchers have mounted, as a path or file:///PATH"
        )
    if not path.is_absolute():
        raise BadStorage(
            f"{_OPTION}: {configured!r} is another directory for each working directory;"
            " give an absolute path"
        )
    return path


def check_storage(directory: Path, *, store_id: str, had_leader: bool) -> None:
    """Writes a file there and reads it, and looks for that of the job store's earlier leaders.

    Raises BadStorage if the directory is not theirs.
    """
    _check_writable(directory)
    try:
        found = (directory / _MARKER).read_text().strip()
    except FileNotFoundError:
        found = ""
    except OSError as error:
        raise _unusable(directory, "read", error) from error
    if found and found != store_id:
        raise BadStorage(
            f"the storage directory {directory} belongs to another cluster: to the job store"
            f" {found}, and this one's is {store_id}; check database.url and {_OPTION}"
        )
    if not found and had_leader and not any((directory / name).is_dir() for name in _CONTENTS):
        raise BadStorage(
            f"the storage directory {directory} does not have the files and rows of this cluster's"
            f" jobs: its job store {store_id} has had a leader, which kept them in another"
            f" directory. Set {_OPTION} to one directory that all Dispatchers have mounted, or"
            f" move {' and '.join(_CONTENTS)} of the earlier directory there"
        )


def claim_storage(directory: Path, *, store_id: str, had_leader: bool) -> None:
    """Checks the directory and makes it the job store's. Before the store is taken over."""
    check_storage(directory, store_id=store_id, had_leader=had_leader)
    try:
        _write_whole(directory / _MARKER, store_id + "\n")
    except OSError as error:
        raise _unusable(directory, "written", error) from error


def _check_writable(directory: Path) -> None:
    probe = directory / f".check-{random_id()[:8]}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_text(probe.name)
            written = probe.read_text()
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise _unusable(directory, "written and read", error) from error
    if written != probe.name:
        raise BadStorage(
            f"the storage directory {directory} does not return what was written to it ({_OPTION})"
        )


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.{random_id()[:8]}.part")
    try:
        with open(part, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _unusable(directory: Path, what: str, error: OSError) -> BadStorage:
    reason = error.strerror or str(error)
    return BadStorage(
        f"the storage directory {directory} cannot be {what} by this process"
        f" (user {os.getuid()}): {reason}; check {_OPTION}"
    )
