"""The ResourceManager's epoch increases at every start, whatever the clock does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firesteel.errors import FiresteelError
from resourcemanager.epoch import EpochFile


def test_a_clock_that_goes_back_does_not_take_the_epoch_with_it(tmp_path: Path) -> None:
    epochs = [EpochFile(tmp_path).next(first=clock_ms) for clock_ms in (5_000, 4_000, 9_000, 0)]
    assert epochs == [5_000, 5_001, 5_002, 5_003]


def test_starts_at_the_same_time_get_epochs_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        epochs = list(threads.map(lambda _: EpochFile(tmp_path).next(first=1), range(20)))
    assert sorted(epochs) == list(range(1, 21))


def test_an_epoch_that_was_not_written_whole_was_never_given_out(tmp_path: Path) -> None:
    EpochFile(tmp_path).next(first=1_000_000)
    path = tmp_path / "resourcemanager.epoch"
    path.write_text(path.read_text() + "1000")
    assert EpochFile(tmp_path).next(first=1) == 1_000_001
    assert EpochFile(tmp_path).next(first=1) == 1_000_002


def test_what_is_no_epoch_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "resourcemanager.epoch").write_text("seven\n")
    with pytest.raises(FiresteelError, match=r"resourcemanager\.epoch cannot be raised.*seven"):
        EpochFile(tmp_path).next(first=1)
