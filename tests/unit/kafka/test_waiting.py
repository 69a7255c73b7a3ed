"""Requests wait while Kafka is unavailable, until the task is cancelled."""

from __future__ import annotations

import pytest

from firesteel.operator import TaskCancelled
from taskexecutor.executor.connectors.kafka.clients import KafkaUnavailable, Waiting, retried


def test_a_request_is_repeated_until_kafka_answers() -> None:
    answers = iter([KafkaUnavailable("away"), KafkaUnavailable("away"), "there"])

    def request() -> str:
        answer = next(answers)
        if isinstance(answer, KafkaUnavailable):
            raise answer
        return answer

    assert retried(request, waiting=Waiting(lambda: False), first_pause_s=0.001) == "there"


def test_a_cancelled_task_does_not_wait() -> None:
    asked: list[bool] = []

    def cancelled() -> bool:
        asked.append(True)
        return len(asked) > 3

    def request() -> None:
        raise KafkaUnavailable("away")

    with pytest.raises(TaskCancelled):
        retried(request, waiting=Waiting(cancelled), first_pause_s=60.0)
