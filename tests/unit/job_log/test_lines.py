"""Which lines of a slot's log are a job's."""

from __future__ import annotations

from typing import Any

from firesteel.common import logs
from firesteel.common.job_log.lines import (
    LINE_MAX_BYTES,
    JobLines,
    Selection,
    begins_over_us,
    parse_us,
)

JOB, OTHER = "a" * 32, "b" * 32
AT = parse_us(b"2026-11-22T02:00:00Z")


def ours(second: int, event: str, rest: str = "", *, job: str = JOB) -> bytes:
    names = f" job_id={job}" if job else ""
    line = f'timestamp=2026-11-22T02:00:{second:02}.000000Z level=info process=slot-0[7] event="'
    return f'{line}{event}"{names}{rest}'.encode()


SLOT = [
    ours(0, "ready", job=""),
    b"WARNING: the JVM says something before any job",
    ours(1, "serving", job=OTHER),
    b"printed by the other job",
    ours(2, "the job was removed", job=""),
    ours(3, "serving"),
    b"printed by the job",
    ours(4, logs.OUTPUT_FOLLOWS),
    b"2> {'x': 1}",
    b"timestamp=2001-01-01T00:00:00Z is what somebody prints",
    b"2026-11-22T02:00:05.500Z WARN spark Foo: slow",
    b"java.lang.Exception",
    ours(6, "a task fails", ' vertex="Source -> \\"Map\\"" subtask=1 attempt=0'),
    b"  Traceback (most recent call last):",
    ours(6, "a task ends", " vertex=Sink subtask=0 attempt=0"),
    ours(7, "the job was removed", job=""),
    b"of an unknown job",
]


def found(selection: Selection) -> list[tuple[float, str]]:
    log = JobLines(selection)
    lines = [line for raw in SLOT if (line := log.find(raw)) is not None]
    assert {line.process for line in lines} == {"slot-0[7]"}
    return [
        (
            (line.time_us - AT) / 1e6,
            line.text.partition('event="')[2].partition('"')[0] or line.text,
        )
        for line in lines
    ]


def test_lines_without_a_job_belong_to_the_job_that_the_process_serves() -> None:
    assert found(Selection(job_id=JOB)) == [
        (3, "serving"),
        (3, "printed by the job"),
        (4, "2> {'x': 1}"),
        (4, "timestamp=2001-01-01T00:00:00Z is what somebody prints"),
        (5.5, "2026-11-22T02:00:05.500Z WARN spark Foo: slow"),
        (5.5, "java.lang.Exception"),
        (6, "a task fails"),
        (6, "  Traceback (most recent call last):"),
        (6, "a task ends"),
    ]
    assert [text for _, text in found(Selection(job_id=OTHER))] == [
        "serving",
        "printed by the other job",
    ]


def test_the_lines_of_one_task_are_those_that_name_it_and_their_tracebacks() -> None:
    task = ["a task fails", "  Traceback (most recent call last):"]
    by_vertex = Selection(job_id=JOB, vertices=['Source -> "Map"'])
    assert [text for _, text in found(by_vertex)] == task
    assert [text for _, text in found(Selection(job_id=JOB, subtask=1))] == task
    of_sink = Selection(job_id=JOB, vertices=["Sink"], subtask=0)
    assert [text for _, text in found(of_sink)] == ["a task ends"]


def test_what_the_job_prints_has_a_prefix_which_is_not_shown() -> None:
    raw = [
        ours(3, "serving", job=OTHER),
        b"stdout: of the other job",
        ours(4, "serving"),
        b"stdout: 2> {'x': 1}",
        b"stdout:   File of no traceback",
        b"stdout: timestamp=2001-01-01T00:00:00Z level=info process=x event=y",
        b"stdout: ",
        b"2026-11-22T02:00:05.500Z WARN spark Foo: slow",
    ]
    printed = [
        "2> {'x': 1}",
        "  File of no traceback",
        "timestamp=2001-01-01T00:00:00Z level=info process=x event=y",
        "",
    ]

    def texts(selection: Selection) -> list[str]:
        log = JobLines(selection)
        return [line.text for text in raw if (line := log.find(text)) is not None]

    assert texts(Selection(job_id=JOB, output=True)) == printed
    assert texts(Selection(job_id=JOB))[1:-1] == printed
    assert texts(Selection(job_id=JOB, subtask=0)) == []


def test_what_a_task_prints_names_it() -> None:
    raw = [
        ours(3, "serving"),
        b'stdout vertex="Source: a \\"b\\" -> Map" subtask=2: 3> one',
        b"stdout vertex=Map subtask=12: 13> two: vertex=Map subtask=2: x",
        b"stdout vertex=Map subtask=2: 3> ",
        b"stdout vertex=Map subtask=: of a worker",
        b"stdout: of another worker",
    ]

    def texts(**selection: Any) -> list[str]:
        log = JobLines(Selection(job_id=JOB, output=True, **selection))
        return [line.text for text in raw if (line := log.find(text)) is not None]

    tasks = ["3> one", "13> two: vertex=Map subtask=2: x", "3> "]
    assert texts() == [*tasks, "of another worker"]
    assert texts(subtask=2) == ["3> one", "3> "]
    assert texts(vertices=["Map"]) == tasks[1:]
    assert texts(vertices=["Map"], subtask=2) == ["3> "]
    assert texts(vertices=['Source: a "b" -> Map']) == ["3> one"]
    with_other_lines = JobLines(Selection(job_id=JOB, subtask=2))
    found = [line.text for text in raw if (line := with_other_lines.find(text)) is not None]
    assert found == ["3> one", "3> "]


def test_lines_from_a_time_on() -> None:
    assert [at for at, _ in found(Selection(job_id=JOB, after_us=AT + 5_500_000))] == [
        5.5,
        5.5,
        6,
        6,
        6,
    ]


def test_a_line_of_any_length_or_bytes_is_shown_shortened() -> None:
    log = JobLines(Selection(job_id=JOB))
    log.find(ours(1, "serving"))
    line = log.find(b"\xff" + b"x" * 2 * LINE_MAX_BYTES)
    assert line is not None
    assert line.text.startswith("�xxx")
    assert line.text.endswith("x ... (16,385 more bytes)")


def test_what_a_process_writes_itself_is_understood() -> None:
    logs.configure("slot-3")
    logs.bind_process(job_id=JOB)
    over = begins_over_us(logs.line(logs.LOG_STARTS_OVER).rstrip(b"\n"))
    assert over is not None
    assert over > AT
    log = JobLines(Selection(job_id=JOB))
    assert log.find(logs.line(logs.OUTPUT_FOLLOWS)) is None
    line = log.find(b"printed")
    assert line is not None
    assert line.process.startswith("slot-3[")
    logs.bind_process()
    assert log.find(logs.line("anything")) is None
    assert log.find(b"printed") is None
