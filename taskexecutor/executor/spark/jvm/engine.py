"""The slot's SparkSession: one per process, shared by the process' task threads.

PySpark's pinned thread mode gives every Python thread a JVM thread of its own, so job groups are
per task: a cancelled task cancels its own Spark jobs and nobody else's.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from firesteel.common.process import temporary
from firesteel.errors import FiresteelError
from taskexecutor.executor.spark.bundles import BundleStore
from taskexecutor.executor.spark.jvm import archive, mllib
from taskexecutor.executor.spark.jvm.archive import Prepared
from taskexecutor.executor.spark.jvm.launch import Jvm, start_jvm
from taskexecutor.executor.spark.jvm.local_tasks import LocalTasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

_CANCEL_INTERVAL_S = 0.05


_ENGINES: dict[int, SparkEngine] = {}  # by session; a process has one


def engine_of(session: Any) -> SparkEngine:
    """The engine that owns `session`, which is all that a task's operators are given."""
    engine = _ENGINES.get(id(session))
    if engine is None:
        raise FiresteelError("the slot's Spark has not been started, or was stopped")
    return engine


class SparkLost(FiresteelError):
    """The slot's Spark JVM has ended under a task."""


class SparkEngine:
    """Owns the JVM, the session, the bundles' shared memory and the temporary folder of one slot."""

    local_tasks: LocalTasks

    def __init__(self) -> None:
        self._jvm: Jvm | None = None
        self._session: SparkSession | None = None
        self._bundles: BundleStore | None = None
        self._temp_dir: Path | None = None
        self._heap_bytes = 0
        self._stopped = False
        self.cores = 1
        self._running = _RunningGroups(self)
        self._mllib: MetaPathFinder | None = None

    def start(
        self,
        conf: Mapping[str, str],
        cores: int = 1,
        heap_bytes: int = 512 * 2**20,
        *,
        prepared: Prepared | None = None,
    ) -> None:
        """Starts the JVM and runs the typical paths once; blocks until the session is warm.

        `conf`'s spark.* values win over ours. Raises FiresteelError if the JVM does not come up.
        """
        self.cores = max(1, cores)
        self._heap_bytes = heap_bytes
        self._temp_dir = temporary.make("spark")
        self._bundles = BundleStore()
        settings = self._settings(conf)
        prepared = prepared or archive.prepared()
        if prepared is None:
            log.warning(
                "Spark's classes are not archived: slots take twice as long to start",
                mend=archive.COMMAND,
            )
            prepared = Prepared()
        try:
            self._jvm = start_jvm(
                settings,
                cores=self.cores,
                heap_bytes=heap_bytes,
                temp_dir=self._temp_dir,
                archive_options=prepared.options,
                jar_copies=prepared.jars,
            )
            self._session = _session(settings, self._jvm)
            _ENGINES[id(self._session)] = self
            self.local_tasks = LocalTasks(self._session)
            self._mllib = mllib.register_when_imported(self._session._jvm)
            self.warm()
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
    def jvm_pid(self) -> int:
        return self._jvm.process.pid if self._jvm else 0

    @property
    def is_local(self) -> bool:
        """Whether all of Spark is on this machine. Executors elsewhere cannot read what is in our
        folders.
        """
        return self.session.sparkContext.master.startswith("local")

    def is_alive(self) -> bool:
        return self._jvm is not None and self._jvm.alive

    def warm(self) -> None:
        """Runs small plans of the kinds that jobs run, so that a job's first bundle meets loaded
        and compiled code.
        """
        from taskexecutor.executor.spark.jvm.warm import warm_up

        assert self._temp_dir is not None
        warm_up(self, self._temp_dir)
        # What the start has left behind goes before the first job's data comes.
        assert self.session._jvm is not None
        self.session._jvm.System.gc()

    @contextlib.contextmanager
    def job_group(
        self, group: str, description: str, cancelled: Callable[[], bool]
    ) -> Iterator[None]:
        """Spark jobs of this thread belong to `group`, have the session's values, and are cancelled
        once `cancelled()` is true.

        What Spark raises because its JVM is gone becomes SparkLost.
        """
        with self.telling_of_its_end():
            # As Spark's own actions do: where tasks run, the session's values are known only as
            # properties of the job.
            self.session._jsc.sc().setLocalProperties(self.values())
            self.session.sparkContext.setJobGroup(group, description, interruptOnCancel=True)
            with self.cancelling(group, cancelled):
                yield

    @contextlib.contextmanager
    def cancelling(self, group: str, cancelled: Callable[[], bool]) -> Iterator[None]:
        """What Spark does for `group` is cancelled once `cancelled()` is true, or if this thread
        gives it up.
        """
        with self.telling_of_its_end():
            self._running.add(group, cancelled)
            try:
                yield
            except BaseException:
                self.cancel(group)  # nobody reads what it may still be computing
                raise
            finally:
                self._running.remove(group)

    @contextlib.contextmanager
    def telling_of_its_end(self) -> Iterator[None]:
        """What Spark raises because its JVM is gone becomes SparkLost."""
        try:
            yield
        except Exception as error:
            if self._end_if_stopped() or (
                _about_the_jvm(error) and not (self._jvm is not None and _still_alive(self._jvm))
            ):
                raise self.lost() from error
            raise

    def _end_if_stopped(self) -> bool:
        """A session that was stopped, by its cluster or by a function of the program, is of no use,
        and neither is its JVM.
        """
        if self._jvm is None or self._session is None or not self._jvm.alive:
            return False
        try:
            context: Any = self._session.sparkContext._jsc
            stopped = context is None or context.sc().isStopped()
        except Exception:
            return False  # the JVM is about to end
        if stopped:
            self._stopped = True
            self._jvm.process.kill()
        return bool(stopped)

    def values(self) -> Any:
        """The session's settings, as Java properties of their own."""
        session: Any = self.session
        properties = session._jvm.java.util.Properties()
        properties.putAll(session._jsparkSession.sessionState().conf().settings())
        return properties

    def cancel(self, group: str) -> None:
        """From any thread: cancels the jobs of `group`."""
        with contextlib.suppress(
            Exception
        ):  # a dying JVM, or a session that is being stopped: nothing to cancel
            if self.local_tasks.interrupt(group):
                return
            self.session.sparkContext.cancelJobGroup(group)

    def lost(self) -> SparkLost:
        """Why the JVM has ended, for whoever has noticed."""
        code = None
        if self._jvm is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._jvm.process.wait(1.0)  # another thread may be about to take note of it
        heap_mib = self._heap_bytes // 2**20
        if self._stopped:
            reason = "its SparkContext was stopped, by the cluster of spark.master or by the program; the slot's log says why"
        elif code == 3:  # -XX:+ExitOnOutOfMemoryError
            reason = f"its heap of {heap_mib} MiB is used up; raise taskmanager.slot.heap.size or use smaller bundles"
        elif code is not None and code < 0:
            reason = f"it was killed by signal {-code}"
        else:
            reason = f"it ended with code {code}; the slot's log says why"
        return SparkLost(f"the slot's Spark JVM (pid {self.jvm_pid}) is gone: {reason}")

    def stop(self, grace_s: float = 3.0) -> None:
        """Ends the JVM and removes every file. Harmless when repeated."""
        self._running.stop()
        mllib.forget(self._mllib)
        if self._jvm is not None:
            if grace_s > 0 and self._jvm.alive and self._session is not None:
                with contextlib.suppress(Exception):
                    self._session.stop()
            self._jvm.stop(grace_s)
            _forget_gateway(self._jvm)
            self._jvm = None
        _ENGINES.pop(id(self._session), None)
        self._session = None
        if self._bundles is not None:
            self._bundles.close()
        if self._temp_dir is not None:
            temporary.remove(self._temp_dir)

    def _settings(self, conf: Mapping[str, str]) -> dict[str, str]:
        given = {
            key: value for key, value in conf.items() if key.startswith("spark.") and value != ""
        }
        temp_dir = str(self._temp_dir)
        local = {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
        ours = {
            "spark.master": f"local[{self.cores}]",
            "spark.app.name": "firesteel slot",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.eventLog.enabled": "false",
            "spark.sql.warehouse.dir": f"{temp_dir}/warehouse",
            "spark.driver.maxResultSize": "0",  # results are streamed, and bounded by the bundle
            "spark.shuffle.compress": "false",  # a slot's shuffle stays in the page cache
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
            # Plans here are small and run often: no re-planning between stages, no partitions
            # beyond the slot's cores.
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": str(self.cores),
            "spark.default.parallelism": str(self.cores),
            "spark.sql.files.maxPartitionBytes": "33554432",
            "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
            "spark.sql.parquet.enableVectorizedReader": "true",
            "spark.sql.codegen.cache.maxEntries": "500",
            # Where both halves of an aggregation are one, it has the quick map, too, in which most
            # groups are found.
            "spark.sql.codegen.aggregate.map.twolevel.partialOnly": "false",
            # Plans that have been executed are not shown anywhere: keep as few as possible.
            "spark.ui.retainedJobs": "1",
            "spark.ui.retainedStages": "1",
            "spark.ui.retainedTasks": "10",
            "spark.sql.ui.retainedExecutions": "1",
            "spark.sql.maxPlanStringLength": "20000",
            # What Spark leaves to everything but its own sorts and shuffles. Its default of 300
            # MiB, of which it wants half as much again, is meant for larger JVMs than ours: an idle
            # session of ours lives on 60 MiB.
            "spark.testing.reservedMemory": str(min(300 * 2**20, self._heap_bytes // 4)),
            "spark.cleaner.periodicGC.interval": "30min",
            "spark.shuffle.mapOutput.dispatcher.numThreads": "1",  # of 16 in two pools, for a cluster's executors
            "spark.python.worker.reuse": "true",
            # Or every call of a Column function asks the JVM several times where it was called
            # from: two thirds of all that passes between the two while a plan is made.
            "spark.python.sql.dataFrameDebugging.enabled": "false",
        }
        master = given.get("spark.master", ours["spark.master"])
        return {**ours, **(local if master.startswith("local") else {}), **given}


class _RunningGroups:
    """Looks after tasks that wait inside Spark: a thread of its own, because theirs is not free to
    be told.
    """

    def __init__(self, engine: SparkEngine) -> None:
        self._engine = engine
        self._condition = threading.Condition()
        self._groups: dict[
            str, list[Callable[[], bool]]
        ] = {}  # a task whose operators call each other is in its group twice
        self._thread: threading.Thread | None = None
        self._stopped = False

    def add(self, group: str, cancelled: Callable[[], bool]) -> None:
        with self._condition:
            self._groups.setdefault(group, []).append(cancelled)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="spark-cancellation", daemon=True
                )
                self._thread.start()
            self._condition.notify()

    def remove(self, group: str) -> None:
        with self._condition:
            self._groups[group].pop()
            if not self._groups[group]:
                del self._groups[group]

    def stop(self) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(1.0)

    def _watch(self) -> None:
        # How often a group has been cancelled: repeated, because its job may have been about to
        # start, but ever less often.
        rounds: dict[str, tuple[int, int]] = {}  # group -> (looks to skip, times cancelled)
        while True:
            with self._condition:
                while not self._groups and not self._stopped:
                    self._condition.wait()
                if self._stopped:
                    return
                groups = [(group, calls[-1]) for group, calls in self._groups.items()]
            rounds = {group: rounds[group] for group, _ in groups if group in rounds}
            for group, cancelled in groups:
                if not cancelled():
                    continue
                skip, times = rounds.get(group, (0, 0))
                if skip == 0:
                    self._engine.cancel(group)
                    skip, times = min(2**times, 40), times + 1
                rounds[group] = (skip - 1, times)
            with self._condition:
                self._condition.wait_for(lambda: self._stopped, _CANCEL_INTERVAL_S)


def _session(settings: Mapping[str, str], jvm: Jvm) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    SparkContext(conf=conf, gateway=jvm.gateway)
    return (
        SparkSession.builder.getOrCreate()
    )  # also makes it the default one, which functions such as SparkSession.active() find


def _forget_gateway(jvm: Jvm) -> None:
    """PySpark keeps its gateway for ever; a second engine in the same process (tests) needs a new
    one.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._gateway is not None and SparkContext._gateway is jvm.gateway:
        SparkSession._instantiatedSession = (
            None  # a JVM that was killed could not be told to end it
        )
        with contextlib.suppress(Exception):
            SparkContext._gateway.shutdown()
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None


def _about_the_jvm(error: Exception) -> bool:
    from py4j.protocol import Py4JError

    return isinstance(error, (Py4JError, OSError, EOFError)) or type(error).__module__.startswith(
        "pyspark."
    )


def _still_alive(jvm: Jvm) -> bool:
    """A JVM that has just broken the connection needs a moment to be seen as ended."""
    try:
        jvm.process.wait(0.2)
    except Exception:
        return True
    return False
