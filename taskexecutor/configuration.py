"""Reads a TaskExecutor's settings from the cluster's configuration."""

from __future__ import annotations

from firesteel.common.config import Configuration, options
from firesteel.common.ids import TaskExecutorId
from firesteel.common.resources import slot_resources
from taskexecutor.core.settings import Settings


def settings_from(conf: Configuration, *, task_executor_id: TaskExecutorId, cores: int) -> Settings:
    """Returns the settings. `cores` is the number of cores of this machine. Raises
    ConfigurationError if a slot is too small for Spark.
    """
    slots, total, default_slot = slot_resources(conf)
    interval_s, timeout_s = (
        conf.get(options.HEARTBEAT_INTERVAL),
        conf.get(options.HEARTBEAT_TIMEOUT),
    )
    return Settings(
        task_executor_id=task_executor_id,
        slots=slots,
        total=total,
        default_slot=default_slot,
        cancellation_timeout_s=conf.get(options.CANCELLATION_TIMEOUT),
        heartbeat_timeout_s=timeout_s,
        reconnect_grace_s=min(max(3.0, 2 * interval_s), timeout_s),
        adoption_grace_s=conf.get(options.ADOPTION_TIMEOUT),
        max_starting=max(2, cores),
        max_warming=max(1, cores // 2),
    )
