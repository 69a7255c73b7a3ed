"""The options that concern a JobMaster, as typed values."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.config import Configuration, check_combinations, options, restart_strategy
from jobmaster.core.autoscaler import AutoscalerSettings
from jobmaster.core.checkpoints.settings import CheckpointSettings, Retention
from jobmaster.core.elasticity import ElasticSettings, SchedulerMode
from jobmaster.core.failover.restart_strategy import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    RestartSettings,
)
from jobmaster.core.failover.strategy import Failover
from jobmaster.core.scheduling.strategies import SchedulingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Defaults are those of firesteel.common.config.options."""

    slot_request_timeout_s: float = 300.0
    slot_idle_timeout_s: float = 50.0
    heartbeat_interval_s: float = 2.0
    heartbeat_timeout_s: float = 20.0
    # A stream that stays broken longer than this means that the TaskExecutor is dead.
    reconnect_grace_s: float = 3.0
    # How long a JobMaster that takes the job over waits for the reports of its tasks.
    adoption_timeout_s: float = 30.0
    restart: RestartSettings = None
    restarts_after_user_errors: bool = True
    failover: Failover = Failover.REGION
    scheduling: SchedulingPolicy = SchedulingPolicy.AUTO
    elastic: ElasticSettings = ElasticSettings()
    autoscaler: AutoscalerSettings | None = None  # None: of a batch job
    checkpoints: CheckpointSettings | None = None  # None: the job takes none
    # Passed to slots: hashmap; paged, which is hashmap with paged column state; or rocksdb.
    state_backend: str = "hashmap"


def settings_from(conf: Configuration, *, batch: bool = False) -> JobSettings:
    """Returns the job's settings: the cluster's configuration, overridden by the job's own values.
    `batch` is true if the job runs in batch mode. Raises ConfigurationError.
    """
    check_combinations(conf)
    return JobSettings(
        slot_request_timeout_s=conf.get(options.SLOT_REQUEST_TIMEOUT),
        slot_idle_timeout_s=conf.get(options.SLOT_IDLE_TIMEOUT),
        heartbeat_interval_s=conf.get(options.HEARTBEAT_INTERVAL),
        heartbeat_timeout_s=conf.get(options.HEARTBEAT_TIMEOUT),
        adoption_timeout_s=conf.get(options.ADOPTION_TIMEOUT),
        restart=_restart_from(conf),
        restarts_after_user_errors=conf.get(options.RESTART_AFTER_USER_ERRORS) == "restart",
        failover=Failover(conf.get(options.FAILOVER_STRATEGY)),
        scheduling=SchedulingPolicy(conf.get(options.SCHEDULING_POLICY)),
        elastic=ElasticSettings(
            mode=SchedulerMode.DEFAULT
            if batch
            else SchedulerMode(conf.get(options.SCHEDULER_MODE)),
            cooldown_s=conf.get(options.SCALE_COOLDOWN),
            more_after_s=conf.get(options.SCALE_STABILIZATION),
            fewer_after_s=conf.get(options.SLOTS_STABILIZATION),
        ),
        autoscaler=None if batch else _autoscaler_from(conf),
        checkpoints=_checkpoints_from(conf),
        state_backend=_state_backend_from(conf, batch=batch),
    )


def _state_backend_from(conf: Configuration, *, batch: bool) -> str:
    """Returns the state backend. A batch job holds all of its keys and windows until it ends, so it
    uses paged state unless the user chooses a backend.
    """
    if batch and not conf.is_set(options.STATE_BACKEND):
        return "paged"
    return conf.get(options.STATE_BACKEND)


def _autoscaler_from(conf: Configuration) -> AutoscalerSettings:
    return AutoscalerSettings(
        enabled=conf.get(options.AUTOSCALER),
        dry_run=conf.get(options.AUTOSCALER_DRY_RUN),
        utilization=conf.get(options.AUTOSCALER_UTILIZATION),
        boundary=conf.get(options.AUTOSCALER_BOUNDARY),
        window_s=conf.get(options.AUTOSCALER_WINDOW),
        stabilization_s=conf.get(options.AUTOSCALER_STABILIZATION),
        scale_down_s=conf.get(options.AUTOSCALER_SCALE_DOWN),
        catch_up_s=conf.get(options.AUTOSCALER_CATCH_UP),
        least=conf.get(options.AUTOSCALER_LEAST),
        most=conf.get(options.AUTOSCALER_MOST),
        effectiveness=conf.get(options.AUTOSCALER_EFFECTIVENESS),
    )


def _restart_from(conf: Configuration) -> RestartSettings:
    match restart_strategy(conf):
        case "fixed-delay":
            return FixedDelay(
                attempts=conf.get(options.RESTART_ATTEMPTS),
                delay_s=conf.get(options.RESTART_DELAY),
            )
        case "exponential-delay":
            return _exponential_delay_from(conf)
        case "failure-rate":
            return FailureRate(
                max_failures=conf.get(options.RESTART_MAX_FAILURES),
                interval_s=conf.get(options.RESTART_FAILURE_INTERVAL),
                delay_s=conf.get(options.RESTART_FAILURE_DELAY),
            )
        case _:
            return None


def _exponential_delay_from(conf: Configuration) -> ExponentialDelay:
    return ExponentialDelay(
        initial_s=conf.get(options.RESTART_BACKOFF),
        max_s=conf.get(options.RESTART_MAX_BACKOFF),
        multiplier=conf.get(options.RESTART_BACKOFF_MULTIPLIER),
        reset_after_s=conf.get(options.RESTART_RESET_BACKOFF),
        jitter=conf.get(options.RESTART_JITTER),
        attempts=conf.get(options.RESTART_BACKOFF_ATTEMPTS) or None,
    )


def _checkpoints_from(conf: Configuration) -> CheckpointSettings | None:
    interval_s = conf.get(options.CHECKPOINT_INTERVAL)
    if not interval_s:
        return None
    return CheckpointSettings(
        directory=conf.get(options.CHECKPOINT_DIR),
        savepoint_directory=conf.get(options.SAVEPOINT_DIR),
        interval_s=interval_s,
        timeout_s=conf.get(options.CHECKPOINT_TIMEOUT),
        min_pause_s=conf.get(options.CHECKPOINT_MIN_PAUSE),
        max_concurrent=conf.get(options.CHECKPOINT_MAX_CONCURRENT),
        tolerable_failures=conf.get(options.CHECKPOINT_TOLERABLE_FAILURES),
        num_retained=conf.get(options.CHECKPOINT_NUM_RETAINED),
        retention=Retention(conf.get(options.CHECKPOINT_RETENTION)),
        after_tasks_finish=conf.get(options.CHECKPOINT_AFTER_FINISH),
        unaligned=conf.get(options.CHECKPOINT_UNALIGNED),
        aligned_timeout_s=conf.get(options.CHECKPOINT_ALIGNED_TIMEOUT),
        at_least_once=conf.get(options.CHECKPOINT_MODE) == "at-least-once",
        incremental=conf.get(options.CHECKPOINT_INCREMENTAL),
        inline_bytes=conf.get(options.CHECKPOINT_INLINE_THRESHOLD),
    )
