"""A JobMaster's settings from the configuration."""

from __future__ import annotations

import pytest

from firesteel.common.config import Configuration
from jobmaster.core.settings import settings_from


@pytest.mark.parametrize(
    ("conf", "batch", "expected"),
    [
        ({}, True, "paged"),
        ({"state.backend.type": "hashmap"}, True, "hashmap"),
        ({"state.backend.type": "rocksdb"}, True, "rocksdb"),
        ({}, False, "hashmap"),
        ({"state.backend.type": "rocksdb"}, False, "rocksdb"),
    ],
)
def test_state_in_columns_is_paged_in_a_batch_that_sets_no_backend(
    conf: dict[str, str], batch: bool, expected: str
) -> None:
    assert settings_from(Configuration(conf), batch=batch).state_backend == expected
