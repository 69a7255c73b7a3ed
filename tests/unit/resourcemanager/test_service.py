"""The ResourceManager put together, as the entry point starts it."""

from __future__ import annotations

from pathlib import Path

from firesteel.common.config import Configuration, options
from firesteel.common.rpc import link
from resourcemanager.epoch import EpochFile
from resourcemanager.service import ResourceManager


async def test_a_restart_on_the_same_directory_has_a_higher_epoch(tmp_path: Path) -> None:
    epochs = []
    for _ in range(2):
        service = ResourceManager(
            Configuration.load(), host="127.0.0.1", port=0, epochs=EpochFile(tmp_path)
        )
        await service.start()
        service.stop()
        await service.run()
        assert service.shell is not None
        epochs.append(service.shell.core.settings.epoch)
    assert epochs[1] == epochs[0] + 1


def test_a_living_worker_has_time_for_an_attempt_to_reconnect_that_fails() -> None:
    """It is ended, with its tasks, if it is not back in time."""
    attempt_s = link.LONGEST_PAUSE_S + link.CONNECT_TIMEOUT_S
    assert Configuration.load().get(options.PREVIOUS_WORKER_TIMEOUT) >= 2 * attempt_s
