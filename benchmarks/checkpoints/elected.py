"""The effect on a job and its clients of the deaths of elected masters, of ZooKeeper's leader, and
of machines.

Three ZooKeeper servers, two Dispatchers, two ResourceManagers and two TaskExecutors of two slots
run a job that reads 1,000 numbers per second and writes them, and how many there were of each key,
into files, exactly once, with a checkpoint every second. Each TaskExecutor has one of its subtasks.

* The leading Dispatcher or ResourceManager is killed (-9): from the end of its session in ZooKeeper
  until a client is served; or it is stopped (SIGTERM): in all. A ResourceManager serves when it
  knows all slots.
* ZooKeeper's leader is killed: how long there were no new files.
* A machine dies: the JobMaster, half of the TaskExecutors and standbys are killed together. From
  then until all tasks are RUNNING; if the leading Dispatcher also dies, from its session's end.

At the end the job is stopped with a savepoint, and each number must be there once, and be counted.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow.dataset as ds

from benchmarks.checkpoints import jobs
from firesteel import Environment
from firesteel.client.job_details import Attempt, JobDetails
from firesteel.common.config import options
from firesteel.common.leader import Leader, Office
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.connectors import FileSink, SequenceSource
from tests.highly_available import HighlyAvailableCluster, Service
from tests.zookeeper import ZooKeeper

KILLS = 4  # of each master
STOPS = 5
ZOOKEEPER_KILLS = 3
MACHINES = 2  # of each kind
KEYS = 100
SPLIT_ROWS = 100
PARALLELISM = 2
SESSION_S = 6.0
TICK_MS = 1_000  # half of ZooKeeper's default
POLL_S = 0.005
WARM_S = 600.0
SERVED_GOAL_MS = 1_000
MACHINE_GOAL_MS = 3_000


class Change(NamedTuple):
    """Times in milliseconds."""

    leaderless: float  # from the signal until the end of the old leader's session
    served: float  # from then until a client was served


def program(directory: Path) -> Environment:
    env = Environment(
        parallelism=PARALLELISM, configuration=jobs.settings(directory / "checkpoints", "1 s")
    )
    rows = env.from_source(
        SequenceSource(0, 10**12, split_rows=SPLIT_ROWS, rate_per_s=1_000)
    ).transform(lambda df: df.selectExpr(f"value % {KEYS} AS k", "value"))
    rows.sink_to(FileSink(str(directory / "values")))
    rows.key_by("k").aggregate("count(*) AS n").sink_to(FileSink(str(directory / "counts")))
    return env


def check_ledger(directory: Path) -> int:
    """Returns the number of rows. Raises RuntimeError if one is lost or duplicated."""
    values = sorted(ds.dataset(directory / "values").to_table(["value"])["value"].to_pylist())
    if len(set(values)) < len(values):
        raise RuntimeError(f"{len(values) - len(set(values))} rows are doubled")
    splits = Counter(value // SPLIT_ROWS for value in values)
    begun = [split for split in range(max(splits)) if splits[split] < SPLIT_ROWS]
    # A reader had one of them when the job was stopped, and reads each from its start.
    if len(begun) > PARALLELISM or values != sorted(
        split * SPLIT_ROWS + n for split, count in splits.items() for n in range(count)
    ):
        raise RuntimeError(f"rows are lost; incomplete splits: {begun}")
    counted: Counter[int] = Counter()
    for row in ds.dataset(directory / "counts").to_table().to_pylist():
        counted[row["k"]] = max(counted[row["k"]], row["n"])
    if counted != Counter(value % KEYS for value in values):
        raise RuntimeError("the counts do not match the rows")
    return len(values)


class Measured:
    """The job in its cluster."""

    def __init__(
        self, cluster: HighlyAvailableCluster, zookeeper: ZooKeeper, directory: Path
    ) -> None:
        self._cluster, self._zookeeper, self._directory = cluster, zookeeper, directory
        self._client = cluster.client()
        self.job_id = self._client.submit(program(directory).job_graph("elected"))
        self.await_files()
        self.attempts = self._attempts()

    # ---- one master

    def change(self, office: Office, number: signal.Signals) -> Change:
        service, before = self._cluster.leading(office), self._cluster.leader(office)
        assert before is not None
        served = self._dispatcher_serves if office is Office.DISPATCHER else self._slots_known
        with self._gone(before, office) as gone:
            begun_ns = time.time_ns()
            service.process.send_signal(number)
            served(before)
            served_ns = time.time_ns()
        service.wait()
        self._in_order()
        return Change((gone[0] - begun_ns) / 1e6, (served_ns - gone[0]) / 1e6)

    @contextlib.contextmanager
    def _gone(self, before: Leader, office: Office = Office.DISPATCHER) -> Iterator[list[int]]:
        """Yields a list that holds at the end when (ns) the leader's node was removed from
        ZooKeeper.
        """
        at: list[int] = []

        def look() -> None:
            while self._cluster.leader(office) == before:
                time.sleep(POLL_S)
            at.append(time.time_ns())

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        yield at
        looking.join()

    def _dispatcher_serves(self, before: Leader) -> None:
        while self._cluster.leader(Office.DISPATCHER) == before:
            time.sleep(POLL_S)
        self._client.list_jobs()  # served by the next leader, for which it waits

    def _slots_known(self, before: Leader) -> None:
        def known() -> bool:
            overview = self._client.cluster_overview()
            return (
                not overview.resource_manager_problem
                and overview.resource_manager_address != before.address
                and overview.slots_total == self._cluster.slots
            )

        jobs.wait(known, "the next ResourceManager knows all slots")

    # ---- ZooKeeper

    def without_zookeepers_leader(self) -> float:
        """Returns for how many milliseconds beyond the interval no new files appeared. Raises
        RuntimeError if a service ended.
        """
        leaders = self._leaders()
        starts = [service.starts for service in self._cluster.services]
        index = self._zookeeper.leader()
        assert index is not None
        begun_ns = time.time_ns()
        self._zookeeper.crash(index)
        time.sleep(SESSION_S + 1)  # services that lose an office because of it have lost it by then
        self._zookeeper.start(index)
        self._zookeeper.wait_until_serving()
        self.await_files()
        if not all(service.runs for service in self._cluster.services):
            raise RuntimeError("a service has ended")
        if self._leaders() != leaders:
            raise RuntimeError(f"the leaders changed: {leaders}, then {self._leaders()}")
        assert starts == [service.starts for service in self._cluster.services]
        shown = self._shown_ns()
        last = max(at for at in shown if at <= begun_ns)
        after = [last, *(at for at in shown if at > begun_ns)]
        gaps = (later - earlier for earlier, later in itertools.pairwise(after))
        return max(gaps) / 1e6 - 1000

    def _leaders(self) -> dict[Office, Leader | None]:
        return {office: self._cluster.leader(office) for office in Office}

    # ---- machines

    def machine(self, *, with_leader: bool) -> float:
        """Returns after how many milliseconds from the detection of the death all tasks were
        RUNNING.
        """
        if not with_leader:  # the Dispatcher that started the JobMaster is a standby then
            self.change(Office.DISPATCHER, signal.SIGTERM)
        leader = self._cluster.leader(Office.DISPATCHER)
        assert leader is not None
        dies = self._dying(with_leader=with_leader)
        task_executor_id = dies[-1].ready["task_executor_id"]
        job_master = max(masters := self._job_masters())
        # The Dispatcher first: it would assign the job to another JobMaster of this machine.
        victims = [each.process for each in dies]
        victims += [child for each in victims for child in each.children(recursive=True)]
        victims.append(psutil.Process(masters[job_master]))
        with contextlib.ExitStack() as stack:
            gone = stack.enter_context(self._gone(leader)) if with_leader else []
            killed_ns = time.time_ns()
            for victim in victims:
                with contextlib.suppress(psutil.NoSuchProcess):  # it has lost its lifeline
                    victim.kill()
        known_ns = gone[0] if gone else killed_ns
        jobs.wait(lambda: max(self._job_masters()) > job_master, "a new JobMaster has the job")
        details = jobs.wait_until(
            self._client,
            self.job_id,
            lambda found: (
                found.status is JobStatus.RUNNING
                and jobs.all_running(found)
                and all(a.task_executor_id != task_executor_id for a in current(found))
            ),
        )
        running_ms = max(
            *(attempt.entered_ms[ExecutionState.RUNNING] for attempt in current(details)),
            *(c.timestamp_ms for c in details.entered_ms if c.status is JobStatus.RUNNING),
        )
        self._in_order()
        self.attempts = self._attempts()
        return running_ms - known_ns / 1e6

    def _dying(self, *, with_leader: bool) -> list[Service]:
        """Returns half of all services; the last one is a TaskExecutor that runs tasks of the
        job.
        """
        leading = {self._cluster.leading(office).address for office in Office}
        dispatchers, resource_managers, task_executors = (
            self._cluster.of(module) for module in ("dispatcher", "resourcemanager", "taskexecutor")
        )
        return [
            next(d for d in dispatchers if (d.address in leading) is with_leader),
            next(r for r in resource_managers if r.address not in leading),
            task_executors[0],
        ]

    # ---- common checks

    def restarted(self) -> int:
        """Returns the number of restarted tasks, since the start or the latest machine."""
        return len(self._attempts() - self.attempts)

    def await_files(self) -> None:
        now_ns = time.time_ns()
        jobs.wait(lambda: (self._shown_ns() or [0])[-1] > now_ns, "new files")

    def end(self) -> int:
        """Returns the number of rows, after checking that each exists once."""
        self._client.stop(self.job_id, str(self._directory / "savepoints"))
        self._client.wait(self.job_id)
        return check_ledger(self._directory)

    def _shown_ns(self) -> list[int]:
        """Returns when each file appeared, in order."""
        return sorted(
            path.stat().st_ctime_ns for path in (self._directory / "values").glob("part-*")
        )

    def _in_order(self) -> None:
        """Waits until everything is in the state before the next death."""
        self._cluster.start_what_ended()
        jobs.wait(
            lambda: self._client.cluster_overview().slots_warm == self._cluster.slots,
            "all slots are warm",
            timeout_s=WARM_S,
        )
        self.await_files()

    def _attempts(self) -> set[str]:
        details = jobs.wait_until(self._client, self.job_id, jobs.all_running)
        return {attempt.attempt_id for attempt in current(details)}

    def _job_masters(self) -> dict[int, int]:
        return jobs.job_masters(self._cluster.directory, self.job_id)


def current(details: JobDetails) -> list[Attempt]:
    found = (subtask.current for vertex in details.vertices for subtask in vertex.subtasks)
    return [attempt for attempt in found if attempt is not None]


def run(share: float = 1.0) -> list[dict[str, Any]]:
    kills = jobs.scaled(KILLS, share, least=1)
    stops = jobs.scaled(STOPS, share, least=1)
    zookeeper_kills = jobs.scaled(ZOOKEEPER_KILLS, share, least=1)
    machines = jobs.scaled(MACHINES, share, least=1)
    with contextlib.ExitStack() as stack:
        zookeeper = ZooKeeper(tick_ms=TICK_MS)
        stack.callback(zookeeper.close)
        directory = stack.enter_context(jobs.folder())
        cluster = stack.enter_context(
            HighlyAvailableCluster(
                zookeeper,
                directory,
                keeps=False,
                overrides={
                    options.ZOOKEEPER_SESSION_TIMEOUT.key: f"{SESSION_S:g} s",
                    options.SPREAD_SLOTS.key: "true",
                },
            )
        )
        cluster.wait_for_slots(timeout_s=WARM_S)
        measured = Measured(cluster, zookeeper, directory)
        rows = []
        for office in Office:
            killed = [measured.change(office, signal.SIGKILL) for _ in range(kills)]
            stopped = [measured.change(office, signal.SIGTERM) for _ in range(stops)]
            restarted = measured.restarted()
            rows += [
                killed_row(office, killed, restarted),
                stopped_row(office, stopped, restarted),
            ]
        gaps = [measured.without_zookeepers_leader() for _ in range(zookeeper_kills)]
        rows.append(zookeeper_row(gaps, measured.restarted()))
        standby = [measured.machine(with_leader=False) for _ in range(machines)]
        leading = [measured.machine(with_leader=True) for _ in range(machines)]
        count = measured.end()
    return [
        *rows,
        machine_row("", standby, count),
        machine_row(" with the leading Dispatcher", leading, count),
    ]


def killed_row(office: Office, changes: Sequence[Change], restarted: int) -> dict[str, Any]:
    times = [each.served for each in changes]
    gone = [each.leaderless / 1000 for each in changes]
    return jobs.row(
        f"kill -9 of the leading {office.holder} -> end of its session -> served, worst",
        f"{max(times):.0f}",
        f"ms (of {len(times)}: median {jobs.percentile(times, 50):.0f}; the session ended after"
        f" {min(gone):.1f} to {max(gone):.1f} s; {restarted} tasks were restarted)",
        f"<= {SERVED_GOAL_MS} ms, no task restarted",
        met=max(times) <= SERVED_GOAL_MS and not restarted,
    )


def stopped_row(office: Office, changes: Sequence[Change], restarted: int) -> dict[str, Any]:
    times = [each.leaderless + each.served for each in changes]
    return jobs.row(
        f"SIGTERM to the leading {office.holder} -> served, worst",
        f"{max(times):.0f}",
        f"ms (of {len(times)}: median {jobs.percentile(times, 50):.0f};"
        f" {restarted} tasks were restarted)",
        f"<= {SERVED_GOAL_MS} ms, no task restarted",
        met=max(times) <= SERVED_GOAL_MS and not restarted,
    )


def zookeeper_row(gaps: Sequence[float], restarted: int) -> dict[str, Any]:
    return jobs.row(
        "kill -9 of ZooKeeper's leader -> no new files for longer than the interval, worst",
        f"{max(gaps):.0f}",
        f"ms (of {len(gaps)}; no service ended, no leader changed,"
        f" {restarted} tasks were restarted)",
        "nothing ends, nothing restarts",
        met=not restarted,
    )


def machine_row(with_whom: str, times: Sequence[float], count: int) -> dict[str, Any]:
    known = "end of its session -> " if with_whom else ""
    return jobs.row(
        f"kill -9 of a machine with the JobMaster and half of the TaskExecutors{with_whom}"
        f" -> {known}all tasks RUNNING, worst",
        f"{max(times):.0f}",
        f"ms (of {len(times)}: median {jobs.percentile(times, 50):.0f};"
        f" {count} rows, each once and counted)",
        f"<= {MACHINE_GOAL_MS} ms, ledger equal",
        met=max(times) <= MACHINE_GOAL_MS,
    )


if __name__ == "__main__":
    for row in run():
        print(row)
