"""The configuration of producers."""

from __future__ import annotations

import pytest

from taskexecutor.executor.connectors.kafka.producers import with_defaults


@pytest.mark.parametrize(
    "given",
    [{"acks": "1"}, {"acks": 0}, {"retries": "0"}, {"max.in.flight.requests.per.connection": 6}],
)
def test_properties_that_exclude_it_make_a_producer_not_idempotent(
    given: dict[str, object],
) -> None:
    configured = with_defaults(given)
    assert not configured["enable.idempotence"]
    assert configured.items() >= given.items()
    own = with_defaults({**given, "enable.idempotence": "true"})  # a conflict, which is refused
    assert own["enable.idempotence"] == "true"
    assert with_defaults({**given, "transactional.id": "t"})["enable.idempotence"] is True


@pytest.mark.parametrize("given", [{}, {"acks": "-1"}, {"acks": "all", "retries": 3}])
def test_other_producers_are_idempotent(given: dict[str, object]) -> None:
    assert with_defaults(given)["enable.idempotence"] is True
