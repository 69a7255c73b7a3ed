"""The ResourceManager's epoch increases at every start in a directory, whatever the clock does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firesteel.errors import FiresteelError
from resourcemanager.epoch import EpochFile


def test_epochs_are_counted_from_one(tmp_path: Path) -> None:
    assert [EpochFile(tmp_path).next() for _ in range(4)] == [1, 2, 3, 4]


def test_starts_at_the_same_time_get_epochs_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        epochs = list(threads.map(lambda _: EpochFile(tmp_path).next(), range(20)))
    assert sorted(epochs) == list(range(1, 21))


def test_an_epoch_that_was_not_written_whole_was_never_given_out(tmp_path: Path) -> None:
    (tmp_path / "resourcemanager.epoch").write_text("1000000\n1000")
    assert EpochFile(tmp_path).next() == 1_000_001
    assert EpochFile(tmp_path).next() == 1_000_002


def test_what_is_no_epoch_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "resourcemanager.epoch").write_text("seven\n")
    with pytest.raises(FiresteelError, match=r"resourcemanager\.epoch cannot be raised.*seven"):
        EpochFile(tmp_path).next()
