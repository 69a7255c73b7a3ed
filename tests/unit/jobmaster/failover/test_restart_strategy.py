"""When a failed job is restarted."""

from __future__ import annotations

import itertools

import pytest

from firesteel.common.config import Configuration, ConfigurationError
from jobmaster.convert import restart_history_from_json, restart_history_to_json
from jobmaster.core.failover.restart_strategy import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    RestartSettings,
    new_strategy,
)
from jobmaster.core.settings import settings_from

TYPE = "restart-strategy.type"


def delays(settings: RestartSettings, *failures: float, random: float = 0.5) -> list[float | None]:
    """At failures at these times; 0.5 is the middle of the jitter."""
    strategy = new_strategy(settings, lambda: random)
    return [strategy.delay_s(now) for now in failures]


def test_a_fixed_delay_comes_a_number_of_times() -> None:
    assert delays(FixedDelay(attempts=2, delay_s=3.0), 0, 1, 2, 3) == [3.0, 3.0, None, None]
    assert delays(None, 0) == [None]


def test_delays_grow_up_to_a_limit() -> None:
    settings = ExponentialDelay(initial_s=1.0, max_s=5.0, multiplier=2.0)
    assert delays(settings, 0, 10, 20, 30, 40) == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_delays_are_spread_within_their_limits() -> None:
    settings = ExponentialDelay(initial_s=1.0, max_s=5.0, multiplier=2.0, jitter=0.25)
    assert delays(settings, 0, 10, 20, 30, random=0.0) == [1.0, 1.5, 3.0, 3.75]
    assert delays(settings, 0, 10, 20, 30, random=1.0) == [1.25, 2.5, 5.0, 5.0]


def test_the_first_delay_returns_after_a_job_has_run_long_enough() -> None:
    settings = ExponentialDelay(initial_s=1.0, multiplier=2.0, reset_after_s=100.0, attempts=2)
    assert delays(settings, 0, 10, 111.9) == [1.0, 2.0, None], "it ran for 99.9 s"
    assert delays(settings, 0, 10, 112.0, 120) == [1.0, 2.0, 1.0, 2.0]


def test_a_job_that_fails_too_often_stays_failed() -> None:
    settings = FailureRate(max_failures=2, interval_s=60.0, delay_s=3.0)
    assert delays(settings, 0, 30, 60.0) == [3.0, 3.0, None]
    assert delays(settings, *itertools.accumulate([30.5] * 20)) == [3.0] * 20
    assert delays(FailureRate(max_failures=1), 0, 1) == [1.0, None]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (FixedDelay(attempts=2, delay_s=3.0), [3.0, 3.0, None]),
        (ExponentialDelay(initial_s=1.0, multiplier=2.0, attempts=2), [1.0, 2.0, None]),
        (ExponentialDelay(initial_s=1.0, multiplier=2.0, reset_after_s=9.0), [1.0, 1.0, 1.0]),
        (FailureRate(max_failures=2, interval_s=60.0, delay_s=3.0), [3.0, 3.0, None]),
    ],
)
def test_the_next_job_master_continues_counting(
    settings: RestartSettings, expected: list[float | None]
) -> None:
    found, stored = [], ""
    for now in (100.0, 110.5, 121.0):  # each failure under another JobMaster
        strategy = new_strategy(settings, lambda: 0.5, restart_history_from_json(stored))
        found.append(strategy.delay_s(now))
        stored = restart_history_to_json(strategy.history)
    assert found == expected


def test_the_options_are_flinks() -> None:
    def settings(**values: str) -> RestartSettings:
        prefixed = {f"restart-strategy.{k.replace('__', '.')}": v for k, v in values.items()}
        named = {key.replace("_", "-"): value for key, value in prefixed.items()}
        return settings_from(Configuration(named)).restart

    assert settings(type="none") is None
    assert settings(type="fixed-delay") == FixedDelay()
    assert settings(type="failure-rate") == FailureRate()
    assert settings(type="exponential-delay") == ExponentialDelay()
    assert settings(
        type="exponential-delay",
        exponential_delay__initial_backoff="2 s",
        exponential_delay__max_backoff="3 min",
        exponential_delay__backoff_multiplier="3",
        exponential_delay__reset_backoff_threshold="4 min",
        exponential_delay__jitter_factor="0.2",
        exponential_delay__attempts_before_reset_backoff="5",
    ) == ExponentialDelay(
        initial_s=2.0, max_s=180.0, multiplier=3.0, reset_after_s=240.0, jitter=0.2, attempts=5
    )
    assert settings(
        type="failure-rate",
        failure_rate__max_failures_per_interval="7",
        failure_rate__failure_rate_interval="5 min",
        failure_rate__delay="0 s",
    ) == FailureRate(max_failures=7, interval_s=300.0, delay_s=0.0)
    with pytest.raises(ConfigurationError, match=r"initial-backoff is 90 s, longer than .*60 s"):
        settings(type="exponential-delay", exponential_delay__initial_backoff="90 s")
