"""A job prints to the program that waits for it; without a cluster."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from firesteel.client import job_output
from firesteel.client.execution import _watch
from firesteel.client.execution_context import ExecutionContext
from firesteel.client.job_details import JobDetails
from firesteel.client.job_output import JobOutput, write_to_stdout
from firesteel.client.progress import LiveDisplay, PlainDisplay
from firesteel.client.signals import Interrupts
from firesteel.common.config import Configuration
from firesteel.common.job_log.lines import LogLine
from firesteel.common.states import JobStatus
from firesteel.errors import ClusterUnreachable, FiresteelError

JOB = "a" * 32
LOCAL = "localhost:1"
WAIT_S = 60.0


class Printing:
    """A client of a job that prints; it ends when `ending` is set."""

    def __init__(self, *batches: list[LogLine] | BaseException) -> None:
        self.batches = batches
        self.ending = threading.Event()
        self.last_batch = threading.Event()
        self.cancelled: list[str] = []

    def log_batches(self, job_id: str, **how: bool) -> Iterator[list[LogLine]]:
        assert how == {"follow": True, "output": True}
        *first, last = self.batches
        for batch in (*first, last):
            if batch is last:
                self.last_batch.wait(WAIT_S)
            if isinstance(batch, BaseException):
                raise batch
            yield batch

    def watch_job(self, job_id: str) -> Iterator[JobDetails]:
        yield JobDetails(job_id=job_id, name="job", status=JobStatus.RUNNING, start_ms=1)
        self.ending.wait(WAIT_S)
        yield JobDetails(job_id=job_id, name="job", status=JobStatus.FINISHED, start_ms=1, end_ms=2)

    def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)


def lines(*texts: str) -> list[LogLine]:
    return [LogLine(text=text, process="slot-0[1]") for text in texts]


def watched(client: Any, output: JobOutput, display: Any = None) -> JobDetails:
    context = ExecutionContext(mode="remote", conf=Configuration(), display=display)
    return _watch(client, JOB, context, Interrupts(), None, output)


def test_a_job_is_awaited_until_all_that_it_printed_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = Printing(lines("1> a", ""), [LogLine(text="lines are missing")], lines("last"))
    shown: list[str] = []

    class Watching(PlainDisplay):
        def update(self, details: JobDetails) -> None:
            shown.append(details.status.name)
            client.last_batch.set()

        def write(self, text: str) -> None:
            shown.append(text)
            super().write(text)

    client.ending.set()
    display = Watching(lambda: LOCAL)
    assert watched(client, JobOutput(client, JOB, display.write), display)  # type: ignore[arg-type]
    written = capsys.readouterr()
    assert written.out == "1> a\n\nlast\n"
    assert written.err == "Note: lines are missing.\n"
    assert shown.index("last\n") < shown.index("FINISHED")


def test_a_closed_pipe_cancels_the_job_and_ends_the_program_quietly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Printing(lines("a"))
    client.last_batch.set()

    def gone(text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("sys.stdout", io.StringIO())
    with pytest.raises(SystemExit) as ended:
        watched(client, JobOutput(client, JOB, gone))  # type: ignore[arg-type]
    assert ended.value.code == 141
    assert client.cancelled == [JOB]
    client.ending.set()


def test_a_reader_that_leaves_at_the_jobs_end_also_ends_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Printing(lines("a"))
    client.ending.set()

    class Ending(PlainDisplay):
        def update(self, details: JobDetails) -> None:
            client.last_batch.set()

    def gone(text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    def ended(job_id: str) -> None:
        raise FiresteelError(f"job {job_id} has already ended")

    monkeypatch.setattr(client, "cancel", ended)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    output = JobOutput(client, JOB, gone)  # type: ignore[arg-type]
    with pytest.raises(SystemExit) as left:
        watched(client, output, Ending(lambda: LOCAL))
    assert left.value.code == 141


def test_another_failure_of_standard_output_is_the_programs_error() -> None:
    client = Printing(lines("a"))
    client.last_batch.set()

    def full(text: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        watched(client, JobOutput(client, JOB, full))  # type: ignore[arg-type]
    assert client.cancelled == [JOB]
    client.ending.set()


def test_a_cluster_that_is_gone_ends_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    client = Printing(lines("a"), ClusterUnreachable("nothing answers"))
    client.last_batch.set()
    output = JobOutput(client, JOB, write_to_stdout)  # type: ignore[arg-type]
    assert output.is_complete(WAIT_S)
    assert output.failure is None
    assert capsys.readouterr() == ("a\n", "")


def test_output_that_does_not_end_is_not_awaited_for_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("firesteel.client.execution.OUTPUT_SILENT_S", 0.1)
    client = Printing(lines("a"))
    client.ending.set()
    watched(client, JobOutput(client, JOB, write_to_stdout))  # type: ignore[arg-type]
    assert "the end of the job's output is missing" in capsys.readouterr().err
    client.last_batch.set()


def test_text_that_the_terminal_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    job_output.write_to_stdout("ünicode\n")
    assert written.getvalue() == b"\\xfcnicode\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stdout_is_terminal", [True, False])
def test_lines_go_above_the_live_table_or_to_redirected_output(
    monkeypatch: pytest.MonkeyPatch, stdout_is_terminal: bool
) -> None:
    terminal, elsewhere = Terminal(), io.StringIO()
    monkeypatch.setattr("sys.stdout", terminal if stdout_is_terminal else elsewhere)
    display = LiveDisplay(
        Console(file=terminal, force_terminal=True, width=80, highlight=False, markup=False),
        lambda: LOCAL,
    )
    details = JobDetails(job_id=JOB, name="my job", status=JobStatus.RUNNING, start_ms=1)
    display.begin()
    display.update(details)
    row = "1> {'text': '[bold]" + "x" * 100 + "'}\n"
    display.write(row)
    display.update(details)
    display.end()
    shown = terminal.getvalue()
    assert "firesteel show -m localhost:1 aaaaaaaa" in shown
    if stdout_is_terminal:
        above = shown.index(row)
        assert shown.index("RUNNING", above + len(row)) > above, "the table is shown again"
        assert shown[above + len(row) :].startswith(("Job", "\x1b"))
    else:
        assert elsewhere.getvalue() == row
        assert "[bold]" not in shown


def test_a_short_job_of_a_program_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay(lambda: LOCAL, quiet_s=WAIT_S)
    display.begin()
    for status in (JobStatus.RUNNING, JobStatus.FINISHED):
        display.update(JobDetails(job_id=JOB, name="job", status=status, start_ms=1))
    assert capsys.readouterr() == ("", "")
