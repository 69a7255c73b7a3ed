from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator

import pytest
import structlog

from firesteel.common import logs


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Iterator[object]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield logs.configure("taskexecutor")
    structlog.reset_defaults()
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Without the timestamps."""
    return [
        line.split(" ", 1)[1] if line.startswith("timestamp=") else line
        for line in capsys.readouterr().err.splitlines()
    ]


def test_a_line_is_keys_and_values(log, capsys) -> None:
    log.info("slot offered", slot=1, allocation_id="ab", reason='says "no"\nand more')
    log.debug("not shown")
    assert lines(capsys) == [
        f'level=info process=taskexecutor[{os.getpid()}] event="slot offered" '
        r'slot=1 allocation_id=ab reason="says \"no\"\nand more"'
    ]


def test_a_task_is_named_in_every_line_below_it(log, capsys) -> None:
    with logs.task_context(job_id="j", vertex="Map", subtask=1, parallelism=2, attempt=0):
        log.info("one")
        logging.getLogger("some.library").warning("two %s", 2)
    log.info("three")
    one, two, three = lines(capsys)
    assert one.endswith("event=one job_id=j vertex=Map subtask=1 attempt=0")
    assert two.endswith('logger=some.library event="two 2" job_id=j vertex=Map subtask=1 attempt=0')
    assert three.endswith("event=three")


def test_other_threads_are_not_named_by_it(log, capsys) -> None:
    with logs.bound(job_id="j"):
        thread = threading.Thread(target=log.info, args=("elsewhere",))
        thread.start()
        thread.join()
    assert "job_id" not in lines(capsys)[0]


def test_a_traceback_follows_its_line(log, capsys) -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("it failed")
    first, *rest = lines(capsys)
    assert 'event="it failed"' in first
    assert rest[0] == "  Traceback (most recent call last):"
    assert rest[-1] == "  ValueError: boom"


def test_no_value_can_cost_the_line(log, capsys) -> None:
    log.info("odd", **{"a key": object(), "b=c": b"\xff", "d": {"e": 1}, "f": None, 'q"': 1})
    [line] = lines(capsys)
    assert "event=odd" in line
    assert "e': 1" in line
