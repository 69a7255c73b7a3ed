"""A JobMaster's settings from the configuration."""

from __future__ import annotations

import pytest

from firesteel.common.config import Configuration
from jobmaster.core.failover.restart_strategy import ExponentialDelay, FixedDelay, RestartSettings
from jobmaster.core.settings import settings_from

CHECKPOINTS = {
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.dir": "/checkpoints",
}


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


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, None),
        (CHECKPOINTS, ExponentialDelay()),
        ({**CHECKPOINTS, "execution.checkpointing.interval": "0 s"}, None),
        ({**CHECKPOINTS, "restart-strategy.type": "none"}, None),
        ({"restart-strategy.type": "fixed-delay"}, FixedDelay()),
    ],
)
def test_a_job_with_checkpoints_restarts_by_default(
    conf: dict[str, str], expected: RestartSettings
) -> None:
    assert settings_from(Configuration(conf)).restart == expected
