"""The options that concern a job's master, as typed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firesteel.common.config import Configuration, ConfigurationError, options
from jobmaster.core.checkpoints.settings import CheckpointSettings, Retention
from jobmaster.core.failover.restart_strategy import FixedDelayRestart, NoRestart, RestartStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Defaults are those of firesteel.common.config.options."""

    slot_request_timeout_s: float = 300.0
    slot_idle_timeout_s: float = 50.0
    heartbeat_interval_s: float = 2.0
    heartbeat_timeout_s: float = 20.0
    # A broken stream that is not re-established within this is a death notice.
    reconnect_grace_s: float = 3.0
    restart_strategy: Literal["none", "fixed-delay"] = "none"
    restart_attempts: int = 1
    restart_delay_s: float = 1.0
    checkpoints: CheckpointSettings | None = None  # None: the job takes none

    def new_restart_strategy(self) -> RestartStrategy:
        if self.restart_strategy == "fixed-delay":
            return FixedDelayRestart(attempts=self.restart_attempts, delay_s=self.restart_delay_s)
        return NoRestart()


def settings_from(conf: Configuration) -> JobSettings:
    """The job's settings: the cluster's configuration with the job's own values over it. Raises
    ConfigurationError.
    """
    strategy = conf.get(options.RESTART_STRATEGY)
    if strategy not in ("none", "fixed-delay"):
        raise ConfigurationError(
            f"restart-strategy.type: {strategy} is not available yet; use none or fixed-delay"
        )
    return JobSettings(
        slot_request_timeout_s=conf.get(options.SLOT_REQUEST_TIMEOUT),
        slot_idle_timeout_s=conf.get(options.SLOT_IDLE_TIMEOUT),
        heartbeat_interval_s=conf.get(options.HEARTBEAT_INTERVAL),
        heartbeat_timeout_s=conf.get(options.HEARTBEAT_TIMEOUT),
        restart_strategy="fixed-delay" if strategy == "fixed-delay" else "none",
        restart_attempts=conf.get(options.RESTART_ATTEMPTS),
        restart_delay_s=conf.get(options.RESTART_DELAY),
        checkpoints=_checkpoints_from(conf),
    )


def _checkpoints_from(conf: Configuration) -> CheckpointSettings | None:
    interval_s = conf.get(options.CHECKPOINT_INTERVAL)
    if not interval_s:
        return None
    if not conf.get(options.CHECKPOINT_DIR):
        raise ConfigurationError(
            f"{options.CHECKPOINT_INTERVAL.key} is set, and {options.CHECKPOINT_DIR.key} is not:"
            " say where checkpoints are to be kept"
        )
    return CheckpointSettings(
        directory=conf.get(options.CHECKPOINT_DIR),
        interval_s=interval_s,
        timeout_s=conf.get(options.CHECKPOINT_TIMEOUT),
        min_pause_s=conf.get(options.CHECKPOINT_MIN_PAUSE),
        max_concurrent=conf.get(options.CHECKPOINT_MAX_CONCURRENT),
        tolerable_failures=conf.get(options.CHECKPOINT_TOLERABLE_FAILURES),
        num_retained=conf.get(options.CHECKPOINT_NUM_RETAINED),
        retention=Retention(conf.get(options.CHECKPOINT_RETENTION)),
        after_tasks_finish=conf.get(options.CHECKPOINT_AFTER_FINISH),
    )
