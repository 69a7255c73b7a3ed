"""Runs a job for its program: submits it, waits for its end, cancels it on Ctrl-C."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from firesteel.client.client import Client, raise_unless_finished
from firesteel.client.execution_context import ExecutionContext, StopProgram
from firesteel.client.job_details import JobDetails
from firesteel.client.job_output import JobOutput, say_what_was_dropped
from firesteel.client.signals import InterruptedJob, Interrupts, counted_interrupts
from firesteel.common.ids import JobId
from firesteel.common.job_graph import JobGraph
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import FiresteelError, JobFailed, SubmissionRejected

BROKEN_PIPE = 128 + signal.SIGPIPE  # exit code after the reader of standard output has closed it
OUTPUT_SILENT_S = 20.0  # longer than the Dispatcher waits for a silent process


@dataclass(kw_only=True)
class JobResult:
    """The result of a job that has FINISHED, or that runs detached."""

    job_id: str
    name: str
    duration_s: float  # from submission to end, measured here; 0 if detached
    job_graph: JobGraph = field(repr=False)
    details: JobDetails | None = field(default=None, repr=False)  # None: detached
    cluster_start_s: float = 0.0  # embedded clusters only: until the services served
    _client: Client | None = field(default=None, repr=False)

    def table(self, sink: Any = None) -> pa.Table:
        """Returns the rows of a CollectSink: the result of `sink_to`, an operator id, or None for
        the only one.
        """
        return self._connected().fetch_table(self.job_id, self._collecting(sink))

    def results(self, sink: Any = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of `table` batch by batch."""
        return self._connected().fetch_results(self.job_id, self._collecting(sink))

    def print_timing(self) -> None:
        """Prints the duration of each part of the job."""
        if self.details is None:
            print(
                f"Job {self.job_id} runs detached;"
                f" `firesteel show {self.job_id}` shows where its time goes."
            )
            return
        # Rich takes a while to import, and few programs need it.
        from firesteel.client.render import console, timing

        console().print(timing(self.details, parts_s=self.parts_s(), duration_s=self.duration_s))

    def parts_s(self) -> dict[str, float]:
        """Returns the duration of each part of the job, in order: seconds by name."""
        if self.details is None:
            return {}
        details = self.details
        entered = [
            a.entered_ms
            for v in details.vertices
            for s in v.subtasks
            if (a := s.current) is not None
        ]
        parts = (
            {"starting the cluster's services": self.cluster_start_s}
            if self.cluster_start_s
            else {}
        )
        deploying = max((ms for e in entered if (ms := e.get(ExecutionState.DEPLOYING))), default=0)
        running = max((ms for e in entered if (ms := e.get(ExecutionState.RUNNING))), default=0)
        last = details.end_ms or running
        if deploying and running:
            parts["waiting for slots and analysing the plan"] = (
                deploying - details.start_ms
            ) / 1000
            parts["opening the tasks"] = (running - deploying) / 1000
            parts["running"] = (last - running) / 1000
        else:
            parts["running"] = (last - details.start_ms) / 1000
        return parts

    def _connected(self) -> Client:
        if self._client is None:
            raise FiresteelError(
                f"job {self.job_id} runs detached: its results cannot be read here"
            )
        return self._client

    def _collecting(self, sink: Any) -> str:
        collecting = [
            o.operator_id
            for v in self.job_graph.vertices
            for o in v.operators
            if o.coordinator_kind == "collect"
        ]
        if isinstance(sink, str):
            operator_id = sink
        elif sink is not None:
            from firesteel.plan.job_graph_generator import operator_id_of

            operator_id = operator_id_of(sink._node)
        elif len(collecting) == 1:
            operator_id = collecting[0]
        else:
            raise FiresteelError(
                f"the job has {len(collecting)} collecting sinks; pass the one to read"
            )
        if operator_id not in collecting:
            raise FiresteelError(f"{sink!r} is not a collecting sink of job {self.job_id}")
        return operator_id


@dataclass(kw_only=True)
class JobClient:
    """A handle of a job that `Environment.execute_async` submitted, like PyFlink's JobClient.

    The job belongs to its cluster: it keeps running when the program ends, unless the cluster is
    embedded (`python job.py`, `firesteel run -t local`) and ends with the program. In that case,
    wait for its `result()`.
    """

    job_id: str
    name: str
    job_graph: JobGraph = field(repr=False)
    _context: ExecutionContext = field(repr=False)
    _submitted_s: float = field(repr=False)
    _output: JobOutput | None = field(default=None, repr=False)

    def status(self) -> JobStatus:
        """Returns the job's current status."""
        return self.details().status

    def details(self) -> JobDetails:
        """Returns the job's tasks, their current states and metrics, and its failures."""
        return self._client().job_details(self.job_id)

    def cancel(self) -> None:
        """Requests the cancellation; the job is CANCELED later.

        Raises FiresteelError if it has already ended.
        """
        self._client().cancel(self.job_id)

    def watch(self) -> Iterator[JobDetails]:
        """Yields the job's details at every change, until it has ended: see `Client.watch_job`."""
        return self._client().watch_job(self.job_id)

    def await_output(self, timeout_s: float) -> bool:
        """Waits until the lines that the ended job has printed are written; returns whether they
        are.
        """
        return self._output is None or self._output.is_complete(timeout_s)

    def savepoint(self, directory: str = "") -> str:
        """Takes a savepoint, and returns its path: see `Client.savepoint`."""
        return self._client().savepoint(self.job_id, directory)

    def stop(self, directory: str = "", *, drain: bool = False) -> str:
        """Ends the job with a savepoint, and returns its path: see `Client.stop`."""
        return self._client().stop(self.job_id, directory, drain=drain)

    def result(self, timeout_s: float | None = None) -> JobResult:
        """Waits until the job has FINISHED. Ctrl-C, SIGTERM and SIGHUP cancel the job, as in
        `execute`.

        Raises JobFailed, JobCanceled, or TimeoutError if it has not ended after `timeout_s`; the
        job then keeps running, and `result` may be called again.
        """
        context = self._context
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        details = _ended(self.job_id, context, self._output, deadline_s)
        duration_s = time.monotonic() - self._submitted_s
        embedded = context.embedded_cluster
        try:
            raise_unless_finished(details)
        except JobFailed as failure:
            if embedded is not None:
                folder = embedded.cluster().keep_logs()
                failure.add_note(f"The logs of this run are kept in {folder}")
            raise
        say_what_was_dropped(details)
        return JobResult(
            job_id=self.job_id,
            name=self.name,
            duration_s=duration_s,
            job_graph=self.job_graph,
            details=details,
            cluster_start_s=embedded.cluster().start_duration_s if embedded is not None else 0.0,
            _client=self._client(),
        )

    def _client(self) -> Client:
        return self._context.client()


def submit_job(
    job_graph: JobGraph, context: ExecutionContext, submitted: Callable[[], None]
) -> JobClient:
    """Submits the job and calls `submitted` once the cluster has it. Raises the error of a failed
    submission.
    """
    if context.one_job and context.executed:
        raise SubmissionRejected(
            "an application cluster runs one job, and this program executes a second one; run it on"
            " a session cluster"
        )
    if context.job_id and not context.executed:
        job_graph = dataclasses.replace(job_graph, job_id=JobId(context.job_id))
    context.executed.append(job_graph.job_id)
    if context.mode == "plan-only":
        if context.on_job_graph is not None:
            context.on_job_graph(job_graph)
        raise StopProgram
    with context.ending_quietly():
        client = context.client()
        begin_s = time.monotonic()
        with context.cancelling_when_interrupted(client, job_graph.job_id):
            job_id = context.submit(client, job_graph)
            submitted()
            context.unfinished.add(job_id)
            if context.on_submitted is not None:
                context.on_submitted(job_id, job_graph)
    return JobClient(
        job_id=job_id,
        name=job_graph.name,
        job_graph=job_graph,
        _context=context,
        _submitted_s=begin_s,
        _output=context.output_of(job_id),
    )


def run_job(
    job_graph: JobGraph, context: ExecutionContext, submitted: Callable[[], None]
) -> JobResult:
    """Submits the job like `submit_job`; in attached mode, waits for the job's end.

    Raises JobFailed, JobCanceled, or the error of a failed submission.
    """
    job = submit_job(job_graph, context, submitted)
    if context.attached:
        return job.result()
    return JobResult(job_id=job.job_id, name=job.name, duration_s=0.0, job_graph=job_graph)


def await_end(job_id: str, context: ExecutionContext, output: JobOutput | None) -> JobDetails:
    """Waits for the end of a job of another program, as `JobClient.result` does."""
    details = _ended(job_id, context, output, None)
    raise_unless_finished(details)
    say_what_was_dropped(details)
    return details


def _ended(
    job_id: str, context: ExecutionContext, output: JobOutput | None, deadline_s: float | None
) -> JobDetails:
    """Shows the job and returns its details once it has ended."""
    client = context.client()
    exits = context.ends_program
    with context.ending_quietly(), counted_interrupts(exits=exits) as interrupts:
        if context.display is not None:
            context.display.begin()
        try:
            details = _watch(client, job_id, context, interrupts, deadline_s, output)
        except (KeyboardInterrupt, SystemExit):
            context.unfinished.discard(job_id)
            raise
        finally:
            if context.display is not None:
                context.display.end()
    context.unfinished.discard(job_id)
    return details


def _watch(
    client: Client,
    job_id: str,
    context: ExecutionContext,
    interrupts: Interrupts,
    deadline_s: float | None,
    output: JobOutput | None = None,
) -> JobDetails:
    """Waits until the job has ended and its output is written. The first of `interrupts` cancels
    the job; the second one stops waiting.

    Raises KeyboardInterrupt, also after the first one if that ends or interrupts the program,
    TimeoutError, or SystemExit if standard output is closed, which cancels the job.
    """
    news: queue.Queue[JobDetails | BaseException] = queue.Queue()

    def read() -> None:
        try:
            for details in client.watch_job(job_id):
                news.put(details)
        except BaseException as error:
            news.put(error)

    threading.Thread(target=read, name=f"watch-{job_id}", daemon=True).start()
    asked = False
    while True:
        if interrupts.count and not asked:  # even if both arrived together
            asked = True
            _ask_to_cancel(client, job_id, context)
        if interrupts.count >= 2:
            raise KeyboardInterrupt
        if output is not None and output.failure is not None:
            with contextlib.suppress(FiresteelError):  # it may have ended
                client.cancel(job_id)
            raise _output_closed(output.failure)
        try:
            item = news.get(timeout=0.1)
        except queue.Empty:
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise TimeoutError(f"job {job_id} has not ended yet; it keeps running") from None
            continue
        if isinstance(item, BaseException):
            raise item
        if item.status.globally_terminal and output is not None:
            _await_output(output, interrupts)
            if output.failure is not None:
                raise _output_closed(output.failure)
        if context.display is not None:
            context.display.update(item)
        if item.status.globally_terminal:
            if asked and item.status is not JobStatus.FAILED:
                canceled = item.status is JobStatus.CANCELED
                if context.ends_program and canceled:
                    print(f"Cancelled job {job_id}.", file=sys.stderr)
                if context.ends_program or context.interrupts_program:
                    raise InterruptedJob(job_id, canceled=canceled)
            return item


def _await_output(output: JobOutput, interrupts: Interrupts) -> None:
    """Waits until the output of an ended job is written, unless Ctrl-C is pressed or nothing is
    written for OUTPUT_SILENT_S.
    """
    seen, seen_at = output.progress, time.monotonic()
    pressed = interrupts.count
    while not output.is_complete(0.05) and interrupts.count == pressed:
        if output.progress != seen:
            seen, seen_at = output.progress, time.monotonic()
        elif time.monotonic() - seen_at > OUTPUT_SILENT_S:
            print("Note: the end of the job's output is missing.", file=sys.stderr)
            return


def _output_closed(failure: OSError) -> BaseException:
    """Ends the program as the reader, such as `head`, expects; returns the error of other
    failures.
    """
    if not isinstance(failure, BrokenPipeError):
        return failure
    with contextlib.suppress(OSError, ValueError):  # buffered text cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return SystemExit(BROKEN_PIPE)


def _ask_to_cancel(client: Client, job_id: str, context: ExecutionContext) -> None:
    if context.display is not None:
        context.display.cancelling(job_id)
    try:
        client.cancel(job_id)
    except FiresteelError as error:
        if client.job_details(job_id).status is JobStatus.CANCELED:
            return
        print(f"{error}", file=sys.stderr)  # it has just ended; the watch shows how
