"""Defines how `Environment.execute` runs a program: set by `firesteel run`, embedded by default."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from firesteel.client.files import (
    ProgramModules,
    UserFile,
    python_archive,
    python_file,
    python_requirements,
)
from firesteel.client.signals import INTERRUPTED
from firesteel.common.config import Configuration, absolute_directories, options
from firesteel.common.resources import slot_resources
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from firesteel.client.client import Client
    from firesteel.client.cluster import LocalCluster
    from firesteel.client.job_details import JobDetails
    from firesteel.client.job_output import JobOutput
    from firesteel.common.job_graph import JobGraph
    from firesteel.plan.stream_graph import StreamGraph

Mode = Literal["embedded", "remote", "plan-only"]

TASK_EXECUTORS = 2  # that an embedded cluster starts with at most, if its number is not given
OUTPUT_END_S = 2.0  # after the end of the cluster


class Display(Protocol):
    """Shows the job that the program waits for on standard error."""

    def begin(self) -> None:
        """Called when the program starts to wait for a job."""

    def update(self, details: JobDetails) -> None:
        """Called when the job has changed; the last details have a final state."""

    def cancelling(self, job_id: str) -> None:
        """Called when Ctrl-C was pressed."""

    def write(self, text: str) -> None:
        """Writes whole lines of a job's output to standard output. Called in any thread."""

    def end(self) -> None:
        """Called when the program no longer waits. May be called twice."""


class Rows(Protocol):
    """The rows of a job, which the program reads."""

    @property
    def ended(self) -> bool:
        """Whether all rows have been read, or the job was cancelled."""

    def close(self) -> None:
        """Cancels the job if it still runs, and waits for its end."""


class StopProgram(BaseException):
    """Stops a program that executes a job when only its plan is required.

    Not an Exception, so that programs do not catch it.
    """


class EmbeddedCluster:
    """A cluster of this process, which starts in the background while the program does its own
    work.

    `begin` starts it, as does the first use. Without `task_executors`, it starts those that a job
    of `parallelism` (None: the default) needs, and others on demand while the machine has memory
    for their slots: a program may run several queries.
    """

    def __init__(
        self,
        conf: Configuration,
        *,
        task_executors: int | None = None,
        slots: int | None = None,
        parallelism: int | None = None,
    ) -> None:
        from firesteel.client.cluster import LocalCluster

        if task_executors is None:
            if slots is not None:
                conf = conf.with_overrides({options.TASK_SLOTS.key: str(slots)})
            each = conf.get(options.TASK_SLOTS)
            needed = -(-(parallelism or conf.get(options.PARALLELISM)) // each)
            task_executors = min(needed, TASK_EXECUTORS)
            if not conf.is_set(options.MAX_SLOTS):
                import psutil  # takes a while, and few programs need it

                fitting = psutil.virtual_memory().total // slot_resources(conf).total.total_bytes
                most = max(TASK_EXECUTORS, fitting) * each
                conf = conf.with_overrides({options.MAX_SLOTS.key: str(most)})
        self._cluster = LocalCluster(conf, task_executors=task_executors, slots=slots)
        self.conf = self._cluster.conf
        self.task_executors = task_executors
        self._failure: BaseException | None = None
        self._client: Client | None = None
        self._starting: threading.Thread | None = None

    def begin(self) -> None:
        if self._starting is None:
            self._starting = threading.Thread(
                target=self._start, name="embedded-cluster", daemon=True
            )
            self._starting.start()

    def _start(self) -> None:
        try:
            self._cluster.start()
        except BaseException as error:
            self._failure = error

    def cluster(self) -> LocalCluster:
        """Waits until the cluster serves. Raises FiresteelError if it does not start."""
        self.begin()
        starting = self._starting
        while starting is not None and starting.is_alive():
            starting.join(0.1)  # in steps, so that Ctrl-C works
        if self._failure is not None:
            raise FiresteelError(
                f"the embedded cluster did not start: {self._failure}"
            ) from self._failure
        return self._cluster

    def client(self) -> Client:
        if self._client is None:
            self._client = self.cluster().client()
        return self._client

    def close(self) -> None:
        if self._starting is not None:
            self._starting.join()
            self._cluster.stop()


@dataclass(kw_only=True)
class ExecutionContext:
    mode: Mode
    conf: Configuration = field(default_factory=Configuration.load)
    address: str = ""  # remote: the Dispatcher's
    token: Callable[[], str] | None = None  # of the user; None: the one of this process
    job_id: str = ""  # of the first job; empty: a random one
    one_job: bool = False  # the cluster runs one job only
    on_cluster: bool = False  # the program runs in a temporary folder of the cluster
    # Take precedence over the job's configuration.
    overrides: dict[str, str] = field(default_factory=dict)
    files: tuple[UserFile, ...] = ()
    attached: bool = True
    on_submitted: Callable[[str, JobGraph], None] | None = None  # job id
    display: Display | None = None  # attached mode: shows the job that the program waits for
    follows_output: bool = False  # attached mode: writes the jobs' output to sys.stdout
    on_job_graph: Callable[[JobGraph], None] | None = None  # plan-only
    embedded_cluster: EmbeddedCluster | None = None
    ends_program: bool = False  # Ctrl-C while a job is submitted or awaited ends the program
    # Ctrl-C cancels the awaited job, and then raises KeyboardInterrupt in the program.
    interrupts_program: bool = False
    # Ids of the jobs so far, and of those whose end was not awaited; shared by all copies that
    # `with_files` returns.
    executed: list[str] = field(default_factory=list)
    unfinished: set[str] = field(default_factory=set)
    outputs: list[JobOutput] = field(default_factory=list)  # normally of jobs that have not ended
    collecting: list[Rows] = field(default_factory=list)  # jobs whose rows are read
    graphs: list[StreamGraph] = field(default_factory=list)  # of the program's Environments
    _client: list[Client] = field(default_factory=list)

    @classmethod
    def embedded(cls) -> ExecutionContext:
        """Returns the context of a program that `python` runs: one cluster per process."""
        global _own
        if _own is None:
            conf = Configuration.load()
            cluster = EmbeddedCluster(conf)
            cluster.begin()
            # The cluster starts while Rich is imported, which is slow.
            from firesteel.client.progress import program_display

            _own = cls(
                mode="embedded",
                conf=conf,
                embedded_cluster=cluster,
                display=program_display(lambda: cluster.cluster().address),
                follows_output=True,
                ends_program=_is_script(),
            )
            atexit.register(_close_at_exit)
        return _own

    def with_files(
        self,
        files: list[str] | tuple[str, ...] = (),
        archives: list[str] | tuple[str, ...] = (),
        requirements: str | None = None,
    ) -> ExecutionContext:
        """Returns a copy with the program's own files added."""
        own = [python_file(path) for path in files] + [python_archive(path) for path in archives]
        own += [python_requirements(requirements)] if requirements else []
        return dataclasses.replace(self, files=(*self.files, *own))

    def submit(self, client: Client, job_graph: JobGraph) -> str:
        """Submits the job; returns its id. Relative directories of checkpoints are below the
        program's current directory, unless that is a temporary one of the cluster.
        """
        if not self.on_cluster:
            config = absolute_directories(job_graph.config)
            job_graph = dataclasses.replace(job_graph, config=config)
        return client.submit(job_graph, self.files)

    def describes(self, graph: StreamGraph) -> None:
        """Called when the program has created an Environment, so it will need the cluster."""
        self.graphs.append(graph)
        if self.embedded_cluster is not None:
            self.embedded_cluster.begin()

    def with_modules(self, modules: ProgramModules) -> ExecutionContext:
        """Returns a copy with the program's modules after the files that it names itself."""
        return dataclasses.replace(self, files=(*self.files, *modules.files))

    def client(self) -> Client:
        """Returns a client of the cluster that runs the program's jobs. Raises
        ClusterUnreachable.
        """
        if self.embedded_cluster is not None:
            return self.embedded_cluster.client()
        if not self._client:
            from firesteel.client.client import Client

            self._client.append(Client(self.address, conf=self.conf, token=self.token))
        return self._client[0]

    def output_of(self, job_id: str) -> JobOutput | None:
        """Follows the printed lines of a job just submitted; returns None if they are not shown."""
        if not (self.follows_output and self.attached):
            return None
        from firesteel.client.job_output import JobOutput, write_to_stdout

        write = write_to_stdout if self.display is None else self.display.write
        output = JobOutput(self.client(), job_id, write)
        self.outputs[:] = [other for other in self.outputs if not other.is_complete(0.0)]
        self.outputs.append(output)
        return output

    @contextmanager
    def ending_quietly(self) -> Iterator[None]:
        """Ends a program of `ends_program` without a traceback on Ctrl-C inside the `with`
        block.
        """
        try:
            yield
        except KeyboardInterrupt:
            if self.ends_program:
                self.unfinished.clear()  # the user ends the program, and all of its jobs
                raise SystemExit(INTERRUPTED) from None
            raise

    @contextmanager
    def cancelling_when_interrupted(self, client: Client, job_id: str) -> Iterator[None]:
        """Cancels the job on a signal during its submission, if the job ends with its program."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            if self.attached and self.embedded_cluster is None:
                with contextlib.suppress(FiresteelError):
                    client.cancel(job_id)
            raise

    def cancel_collecting(self) -> None:
        """Cancels, for an interrupted program, the jobs whose rows it has not read to the end."""
        for batches in self.collecting if self.embedded_cluster is None else ():
            with contextlib.suppress(FiresteelError):
                batches.close()
        self.collecting.clear()

    def close(self) -> None:
        self._say_what_ends()
        for client in self._client:
            client.close()
        self._client.clear()
        if self.embedded_cluster is not None:
            self.embedded_cluster.close()
            self.embedded_cluster = None
        for output in self.outputs:
            # No thread may write during the interpreter's shutdown.
            output.is_complete(OUTPUT_END_S)

    def _say_what_ends(self) -> None:
        """Names the jobs that end only because the program's embedded cluster ends."""
        if self.embedded_cluster is None:
            return
        for job_id in sorted(self.unfinished):
            try:
                status = self.client().job_details(job_id).status
            except FiresteelError:
                continue  # the cluster did not start, or is gone
            if not status.globally_terminal:
                print(
                    f"job {job_id} was {status.name} when the program ended, and ended with the"
                    " embedded cluster: wait for execute_async(...).result(), or run the"
                    " program on a cluster that outlives it (firesteel run -m)",
                    file=sys.stderr,
                )


# One per process, because a program may call execute in any of its threads.
_current: ExecutionContext | None = None
_own: ExecutionContext | None = None


# Takes precedence, in the threads of a process that runs queries of several users.
_of_this_call: ContextVar[ExecutionContext | None] = ContextVar("execution_context", default=None)


def current() -> ExecutionContext | None:
    return _of_this_call.get() or _current


@contextmanager
def within(context: ExecutionContext) -> Iterator[None]:
    """Makes the context the current one of this thread; leaves it open."""
    token = _of_this_call.set(context)
    try:
        yield
    finally:
        _of_this_call.reset(token)


@contextmanager
def active(context: ExecutionContext) -> Iterator[ExecutionContext]:
    """Makes the context the current one; closes it at the end."""
    global _current
    before, _current = _current, context
    try:
        yield context
    finally:
        _current = before
        context.close()


def close_embedded() -> None:
    """Stops the embedded cluster of this process; the next `execute` starts another."""
    global _own
    if _own is not None:
        atexit.unregister(_close_at_exit)
        own, _own = _own, None
        own.close()


def _close_at_exit() -> None:
    """Ignores Ctrl-C from now on: every process is stopped within seconds."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    close_embedded()


def _is_script() -> bool:
    """Whether `python` runs a program; an interactive session continues after Ctrl-C."""
    return hasattr(sys.modules.get("__main__"), "__file__") and not sys.flags.interactive
