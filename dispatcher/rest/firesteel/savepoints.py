"""The savepoints of jobs: created, restored and disposed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from dispatcher.rest.firesteel.checkpoints import checkpoint
from dispatcher.rest.firesteel.shown import Json
from firesteel.client.job_details import JobDetails
from firesteel.common.checkpoints.savepoint import directory_of
from firesteel.common.checkpoints.storage import METADATA, CheckpointStorage, StorageError
from firesteel.common.config import options

MAX_SHOWN = 200
LOOK_TIMEOUT_S = 3.0  # a storage that does not answer


class SavepointFiles:
    """Looks for the files of savepoints, in threads: a storage may be slow."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(4, "savepoints")
        self._looks: dict[str, asyncio.Future[bool]] = {}  # that have not ended

    async def exist(self, paths: Sequence[str]) -> dict[str, bool | None]:
        """Returns which savepoints exist; None: the storage does not answer in time."""
        loop = asyncio.get_running_loop()
        for path in paths:
            if path not in self._looks:
                looking = loop.run_in_executor(self._threads, _exists, path)
                looking.add_done_callback(partial(self._ended, path))
                self._looks[path] = looking
        looks = {path: self._looks[path] for path in paths}
        if looks:
            await asyncio.wait(looks.values(), timeout=LOOK_TIMEOUT_S)
        return {
            path: look.result() if look.done() and look.exception() is None else None
            for path, look in looks.items()
        }

    def _ended(self, path: str, look: asyncio.Future[bool]) -> None:
        self._looks.pop(path, None)
        if not look.cancelled():
            look.exception()  # asyncio logs exceptions that are not read


def _exists(path: str) -> bool:
    """Raises StorageError."""
    return CheckpointStorage(directory_of(path)).exists(METADATA)


def taken(details: Sequence[JobDetails]) -> list[Json]:
    """The complete savepoints of jobs that are still shown, the newest first."""
    savepoints = [
        {"job_id": job.job_id, "job_name": job.name, **checkpoint(each)}
        for job in details
        for each in job.checkpoints
        if each.savepoint and each.state == "COMPLETED"
    ]
    return sorted(savepoints, key=lambda each: -each["triggered_ms"])[:MAX_SHOWN]


def restored(details: Sequence[JobDetails]) -> dict[str, list[Json]]:
    """The jobs that have started from each savepoint, by its URI."""
    jobs: dict[str, list[Json]] = {}
    for job in details:
        if path := job.configuration.get(options.RECOVERY_PATH.key):
            jobs.setdefault(_uri(path), []).append({"job_id": job.job_id, "job_name": job.name})
    return jobs


def savepoints(details: Sequence[JobDetails], exist: Mapping[str, bool | None]) -> Json:
    """`disposed`: its files are gone; null if the storage does not answer."""
    by = restored(details)
    return {
        "savepoints": [
            {
                **each,
                "disposed": None if (there := exist.get(each["path"])) is None else not there,
                "restored_by": by.get(_uri(each["path"]), []),
            }
            for each in taken(details)
        ]
    }


def _uri(path: str) -> str:
    try:
        return CheckpointStorage(directory_of(path)).uri
    except StorageError:  # the reason why a job has failed
        return path
