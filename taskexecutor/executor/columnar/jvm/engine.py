"""The slot's Spark: one JVM and one session per process, shared by the process's task threads.

In PySpark's pinned thread mode every Python thread has a dedicated JVM thread, so job groups are
per task: cancelling a task cancels only its own Spark jobs.
"""

from __future__ import annotations

import contextlib
import gc
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firesteel.common.logs import get_logger
from firesteel.common.process import temporary
from firesteel.common.units import MIB
from firesteel.errors import FiresteelError
from firesteel.plan.java_calls import release_garbage
from taskexecutor.executor.columnar.jvm import archive, gateway, heartbeat, mllib
from taskexecutor.executor.columnar.jvm.archive import ArchivedStart
from taskexecutor.executor.columnar.jvm.cancellation import CancellationWatch
from taskexecutor.executor.columnar.jvm.code import Code
from taskexecutor.executor.columnar.jvm.launch import (
    HEAP_FREE,
    FreeHeap,
    Jvm,
    compiler_waiting,
    start_jvm,
)
from taskexecutor.executor.columnar.jvm.local_tasks import LocalTasks
from taskexecutor.executor.columnar.jvm.plan_cache import PlanCache
from taskexecutor.executor.columnar.jvm.session import create_session, session_settings
from taskexecutor.executor.columnar.jvm.transfer import BundleStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger(__name__)

_END_S = 5.0  # a JVM that was killed, or has broken its connections, ends within this time
_IDLE_HEAP_FREE = FreeHeap(1, 3)
_FILLED_HEAP_FREE = FreeHeap(75, 90)
_OUT_OF_MEMORY = 3  # the exit code of -XX:+ExitOnOutOfMemoryError
_OUT_OF_BUFFERS = 52  # Spark's exit code, for memory outside of the heap

_ENGINES: dict[int, SparkEngine] = {}  # by session; a process has one


def engine_of(session: Any) -> SparkEngine:
    """Returns the engine that owns `session`; operators only get the session."""
    engine = _ENGINES.get(id(session))
    if engine is None:
        raise FiresteelError("the slot's Spark has not been started, or was stopped")
    return engine


class SparkLost(FiresteelError):
    """The slot's Spark JVM has ended while a task was running."""

    of_program = False  # it would end again


class SparkEngine:
    """Owns a slot's JVM and session, its bundles in shared memory and its temporary folder."""

    code: Code
    local_tasks: LocalTasks

    def __init__(self) -> None:
        self._jvm: Jvm | None = None
        self._session: SparkSession | None = None
        self._bundles: BundleStore | None = None
        self._temp_dir: Path | None = None
        self.heap_bytes = 0
        self.host = "localhost"  # the address of the slot
        self.plan_cache = PlanCache()
        self._context_stopped = False
        self._silent_s = 0.0  # how long the JVM had not responded when it was killed for that
        self.cores = 1
        self._watch = CancellationWatch(self.cancel)
        self._growing = threading.Lock()  # guards the heap's growth settings
        self._growing_fast = 0  # tasks that need fast growth
        self._mllib: MetaPathFinder | None = None

    def start(
        self,
        conf: Mapping[str, str],
        cores: int = 1,
        heap_bytes: int = 512 * MIB,
        *,
        archived: ArchivedStart | None = None,
    ) -> None:
        """Starts the JVM and its session without a warm-up; `warm_up.start_warm` also warms them
        up.

        The spark.* values of `conf` override Firesteel's. Raises FiresteelError if the JVM does not
        start.
        """
        self.cores = max(1, cores)
        self.heap_bytes = heap_bytes
        self._temp_dir = temporary.make("spark")
        self._bundles = BundleStore()
        settings = session_settings(
            conf, cores=self.cores, heap_bytes=heap_bytes, temp_dir=self._temp_dir
        )
        archived = archived or archive.archived_start()
        if archived is None:
            log.warning(
                "Spark's classes are not archived: slots take twice as long to start",
                remedy=archive.COMMAND,
            )
            archived = ArchivedStart()
        try:
            self._jvm = start_jvm(
                settings,
                cores=self.cores,
                heap_bytes=heap_bytes,
                temp_dir=self._temp_dir,
                archive_options=archived.jvm_options,
                jar_copies=archived.jars,
            )
            with self.compiler_waiting():
                self._session = create_session(settings, self._jvm)
            _ENGINES[id(self._session)] = self
            self.code = Code(self._jvm.gateway)
            self.local_tasks = LocalTasks(self._session, self.code)
            self._mllib = mllib.register_when_imported(self._session._jvm)
        except BaseException:
            self.stop(grace_s=0)
            raise

    @property
    def session(self) -> SparkSession:
        if self._session is None:
            raise FiresteelError("the slot's Spark has not been started")
        return self._session

    @property
    def bundles(self) -> BundleStore:
        assert self._bundles is not None, "start first"
        return self._bundles

    @property
    def temp_dir(self) -> Path:
        assert self._temp_dir is not None, "start first"
        return self._temp_dir

    @property
    def jvm_pid(self) -> int:
        return self._jvm.process.pid if self._jvm else 0

    @property
    def is_local(self) -> bool:
        """Whether all of Spark runs on this machine; executors on other machines cannot read local
        files.
        """
        return str(self.session.sparkContext.master).startswith("local")

    def setting(self, name: str) -> str:
        """Returns the session's value of a setting of Spark."""
        return str(self.session.conf.get(name))

    def is_alive(self) -> bool:
        return self._jvm is not None and self._jvm.alive

    @property
    def has_ended(self) -> bool:
        """Whether the JVM was started and has ended."""
        return self._jvm is not None and not self._jvm.alive

    def compiler_waiting(self) -> AbstractContextManager[None]:
        """Lowers the compiler's priority while the slot starts: see `launch.compiler_waiting`."""
        return compiler_waiting(self.jvm_pid)

    def collect_garbage(self) -> None:
        """Collects Python's garbage first, because its references, including those in cycles, keep
        Java objects alive.

        The heap then shrinks to the remaining objects, and grows again as needed.
        """
        gc.collect()
        client = self.session._jvm._gateway_client  # type: ignore[union-attr]
        release_garbage(client)
        self._collect_and_shrink()
        gc.collect(0)  # objects referenced by the collected ones
        release_garbage(client)

    @contextlib.contextmanager
    def in_larger_steps(self) -> Iterator[None]:
        """The heap grows in a few large steps: for work that fills it with sorts and tables."""
        with self._growing:
            self._growing_fast += 1
            self._set_heap_free(_FILLED_HEAP_FREE)
        try:
            yield
        finally:
            with self._growing:
                self._growing_fast -= 1
                if not self._growing_fast and self.is_alive():
                    self._set_heap_free(HEAP_FREE)

    def _collect_and_shrink(self) -> None:
        with self._growing:
            self._set_heap_free(_IDLE_HEAP_FREE)
            try:
                self.session._jvm.System.gc()  # type: ignore[union-attr]
            finally:
                self._set_heap_free(_FILLED_HEAP_FREE if self._growing_fast else HEAP_FREE)

    def _set_heap_free(self, free: FreeHeap) -> None:
        jvm: Any = self.session._jvm
        bean = jvm.java.lang.Class.forName("com.sun.management.HotSpotDiagnosticMXBean")
        options = jvm.java.lang.management.ManagementFactory.getPlatformMXBean(bean)
        options.setVMOption("MinHeapFreeRatio", "0")  # must not exceed the other option
        options.setVMOption("MaxHeapFreeRatio", str(free.most))
        options.setVMOption("MinHeapFreeRatio", str(free.least))

    @contextlib.contextmanager
    def job_group(
        self, group: str, description: str, cancelled: Callable[[], bool]
    ) -> Iterator[None]:
        """Spark jobs of this thread belong to `group`, use the session's settings, and are
        cancelled once `cancelled()` is true.

        Raises SparkLost if the JVM has ended.
        """
        with self.raising_spark_lost():
            # As Spark's own actions do: tasks read the session's settings only from properties of
            # their job.
            self.session._jsc.sc().setLocalProperties(self.session_properties())
            self.session.sparkContext.setJobGroup(group, description, interruptOnCancel=True)
            with self.cancelling(group, cancelled):
                yield

    @contextlib.contextmanager
    def cancelling(self, group: str, cancelled: Callable[[], bool]) -> Iterator[None]:
        """Cancels Spark's work for `group` once `cancelled()` is true, or if the block raises."""
        with self.raising_spark_lost():
            self._watch.add(group, cancelled)
            try:
                yield
            except BaseException:
                self.cancel(group)  # its results are no longer needed
                raise
            finally:
                self._watch.remove(group)

    @contextlib.contextmanager
    def raising_spark_lost(self) -> Iterator[None]:
        """Converts Spark's errors to SparkLost if its JVM has ended."""
        try:
            yield
        except Exception as error:
            if self._kill_if_context_stopped() or (
                _may_be_lost_connection(error)
                and not (self._jvm is not None and _still_alive(self._jvm, error))
            ):
                raise self.lost() from error
            raise

    def _kill_if_context_stopped(self) -> bool:
        """Returns whether the SparkContext was stopped. Kills the JVM then, unless it is exiting
        already: its exit code gives the reason.
        """
        if self._jvm is None or self._session is None or not self._jvm.alive:
            return False
        try:
            context: Any = self._session.sparkContext._jsc
            stopped = context is None or context.sc().isStopped()
            java: Any = self._jvm.gateway.jvm
            exiting = stopped and java.org.apache.spark.util.ShutdownHookManager.inShutdown()
        except Exception:
            return False  # the JVM is about to end
        if stopped and not exiting:
            self._context_stopped = True
            self._jvm.process.kill()
        return bool(stopped)

    def session_properties(self) -> Any:
        """Returns a copy of the session's settings as java.util.Properties."""
        session: Any = self.session
        properties = session._jvm.java.util.Properties()
        properties.putAll(session._jsparkSession.sessionState().conf().settings())
        return properties

    def kill_if_silent(self, *, interval_s: float, timeout_s: float) -> None:
        """Kills the JVM once it has not responded for `timeout_s`; returns when it has ended."""
        jvm = self._jvm
        assert jvm is not None, "start first"
        if heartbeat.await_silence(jvm.gateway, interval_s=interval_s, timeout_s=timeout_s):
            self._silent_s = timeout_s
            jvm.process.kill()

    def cancel(self, group: str) -> None:
        """Cancels the jobs of `group`. May be called from any thread."""
        # A JVM that is ending, or a session that is being stopped, has no jobs to cancel.
        with contextlib.suppress(Exception):
            if self.local_tasks.interrupt(group):
                return
            self.session.sparkContext.cancelJobGroup(group)

    def lost(self) -> SparkLost:
        """Returns an error with the reason why the JVM has ended."""
        jvm = f"the slot's Spark JVM (pid {self.jvm_pid})"
        if self._silent_s:
            return SparkLost(
                f"{jvm} has not answered for {self._silent_s:g} s (heartbeat.timeout) and was "
                "killed"
            )
        code = None
        if self._jvm is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._jvm.process.wait(_END_S)  # another thread may be reaping it
        heap_mib = self.heap_bytes // MIB
        if self._context_stopped:
            reason = (
                "its SparkContext was stopped, by the cluster of spark.master or by the program; "
                "see the slot's log for the cause"
            )
        elif code == _OUT_OF_MEMORY:
            reason = (
                f"its heap of {heap_mib} MiB is used up; raise taskmanager.slot.heap.size or use "
                "smaller bundles"
            )
        elif code == _OUT_OF_BUFFERS:
            reason = (
                "its memory for Arrow buffers, which is limited to the size of the heap, "
                f"{heap_mib} MiB, is used up; raise taskmanager.slot.heap.size or use fewer "
                "columns or smaller bundles"
            )
        elif code is not None and code < 0:
            reason = f"it was killed by signal {-code}"
        else:
            reason = f"it ended with code {code}; see the slot's log for the cause"
        lost = SparkLost(f"{jvm} is gone: {reason}")
        lost.of_program = self._context_stopped or code in (_OUT_OF_MEMORY, _OUT_OF_BUFFERS)
        return lost

    def stop(self, grace_s: float = 3.0) -> None:
        """Ends the JVM, which has `grace_s` to stop its SparkContext, and removes every file.
        Idempotent.
        """
        self._watch.stop()
        self.plan_cache.close()
        mllib.forget(self._mllib)
        if self._jvm is not None:
            # The session is not stopped explicitly, which could take arbitrarily long: a JVM that
            # exits stops its SparkContext.
            self._jvm.stop(grace_s)
            gateway.forget(self._jvm.gateway)
            self._jvm = None
        _ENGINES.pop(id(self._session), None)
        self._session = None
        if self._bundles is not None:
            self._bundles.close()
        if self._temp_dir is not None:
            temporary.remove(self._temp_dir)


def _may_be_lost_connection(error: Exception) -> bool:
    from py4j.protocol import Py4JError

    return isinstance(error, (Py4JError, OSError, EOFError)) or type(error).__module__.startswith(
        "pyspark."
    )


def _is_broken_connection(error: Exception) -> bool:
    """Returns whether the JVM did not respond; Py4J raises other classes for error responses."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    return isinstance(error, (ConnectionError, EOFError)) or type(error) in (
        Py4JError,
        Py4JNetworkError,
    )


def _still_alive(jvm: Jvm, error: Exception) -> bool:
    """Waits a moment, because a JVM may break its connections shortly before its process ends."""
    try:
        jvm.process.wait(_END_S if _is_broken_connection(error) else 0.2)
    except Exception:
        return True
    return False
