"""A job's lines from all logs of one service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from firesteel.common.job_log.lines import Selection, parse_us
from firesteel.common.job_log.reader import JobLogReader, LogFile
from firesteel.common.process.log_files import empty

JOB, OTHER = "a" * 32, "b" * 32


def line(second: int, what: str, job: str = JOB) -> str:
    return f"timestamp=2026-11-22T02:00:{second:02}Z level=info process=p[1] event={what} job_id={job}\n"


def read(files: Mapping[Path, LogFile], selection: Selection) -> tuple[list[str], list[str]]:
    """Returns the logged lines and the notices."""
    reader = JobLogReader(selection, lambda: files, follow=False)
    found, notices = [], []
    while (step := reader.step()) is not None:
        found += [found.text.partition("event=")[2].partition(" ")[0] for found in step.lines]
        notices += step.notices
    return found, notices


def test_several_logs_in_order_of_time(tmp_path: Path) -> None:
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    one.write_text(line(1, "a") + line(4, "d") + line(5, "x", OTHER))
    two.write_text(line(2, "b") + line(3, "c") + line(6, "e").rstrip("\n"))
    files = {one: LogFile(), two: LogFile(task_executor_id="t1"), tmp_path / "none.log": LogFile()}
    assert read(files, Selection(job_id=JOB)) == (["a", "b", "c", "d", "e"], [])


def test_a_process_whose_log_was_deleted_reports_it_once(tmp_path: Path) -> None:
    own, other = tmp_path / "dispatcher.log", tmp_path / "jobmaster.log"
    own.write_text(line(1, "a"))
    other.write_text(line(2, "b"))
    files = {own: LogFile(own=True), other: LogFile()}
    assert read(files, Selection(job_id=JOB)) == (["a", "b"], [])
    own.unlink()
    other.unlink()  # logs of other processes may be removed
    deleted = [f"the log {own} was deleted: lines are missing"]
    assert read(files, Selection(job_id=JOB)) == ([], deleted)

    following = JobLogReader(Selection(job_id=JOB), lambda: files, follow=True)
    steps = [following.step() for _ in range(2)]
    assert [step.notices for step in steps if step is not None] == [deleted, []]


def test_a_log_that_lost_its_beginning_after_the_job_started_says_so(tmp_path: Path) -> None:
    path = tmp_path / "slot-0.log"
    over = 'timestamp=2026-11-22T02:00:{:02}Z level=info process=p[1] event="the log starts over"\n'
    path.write_text(line(1, "a"))
    for second in (2, 5):
        empty(path, over.format(second).encode())
        with open(path, "a") as file:
            file.write(line(second + 1, "b"))
    found, notices = read(
        {path: LogFile(task_executor_id="t1")},
        Selection(job_id=JOB, started_us=parse_us(b"2026-11-22T02:00:00Z")),
    )
    assert found == ["b", "b"]
    assert notices == [
        "the log slot-0 of TaskExecutor t1 is limited to a length: what it had before"
        " 2026-11-22T02:00:02Z is gone (env.log.max-size)"
    ]
    started_later = Selection(job_id=JOB, started_us=parse_us(b"2026-11-22T02:00:04Z"))
    assert read({path: LogFile()}, started_later) == (["b", "b"], [])


def test_a_reader_that_follows_finds_new_lines_and_new_logs(tmp_path: Path) -> None:
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    one.write_text(line(1, "a"))
    files = {one: LogFile()}
    reader = JobLogReader(Selection(job_id=JOB), lambda: files, follow=True)

    def found() -> list[str]:
        texts: list[str] = []
        while True:
            step = reader.step()
            assert step is not None
            texts += [li.text.partition("event=")[2].partition(" ")[0] for li in step.lines]
            if step.at_end:
                return texts

    assert found() == ["a"]
    assert found() == []
    two.write_text(line(3, "c"))
    files[two] = LogFile()
    with open(one, "a") as file:
        file.write(line(2, "b"))
    assert found() == ["b", "c"]


def test_a_log_that_another_process_reads_from_now_on_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "one.log"
    path.write_text(line(1, "a"))
    files = {path: LogFile()}
    reader = JobLogReader(Selection(job_id=JOB), lambda: files, follow=True)
    step = reader.step()
    assert step is not None
    assert len(step.lines) == 1
    del files[path]
    with open(path, "a") as file:
        file.write(line(2, "b"))
    step = reader.step()
    assert step is not None
    assert step.lines == []
    assert step.at_end


def test_the_log_of_another_jobs_master_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "jobmaster-1-1.log"
    path.write_text(line(1, "x", OTHER) * 10_000)
    files = {path: LogFile(one_job=True)}
    reader = JobLogReader(Selection(job_id=JOB), lambda: files, follow=True)
    reader.step()
    with open(path, "a") as file:
        file.write(line(2, "a"))
    step = reader.step()
    assert step is not None
    assert (step.lines, step.at_end) == ([], True)
