"""Random deaths, and cuts, in a cluster that runs a job: who dies, when, and how long it takes until
the job commits rows again, or a batch ends. Everything is drawn from a seed, but for what the machine makes of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import psutil

from firesteel.client.job_details import Attempt, JobDetails
from firesteel.common.leader import Office
from firesteel.errors import FiresteelError
from tests.highly_available import HighlyAvailableCluster
from tests.tunnels import Ends, Tunnels
from tests.waiting import eventually
from tests.zookeeper import ZooKeeper

from .conftest import Session, command, job_masters, logs_below, services
from .kafka_both_ends import BothEndsJob

CUT_MAX_S = 8.0  # longer than a heartbeat may be missing
SHORT_S = 1.0  # a pause that no peer takes for a death
MODULES = {Office.DISPATCHER: "dispatcher", Office.RESOURCE_MANAGER: "resourcemanager"}
HEARTBEAT_TIMEOUT_S = 5.0  # of the job's: more than two of a TaskExecutor's heartbeats


class Fault(Enum):
    TASK = "a task fails"
    SLOT = "kill a slot's process"
    TASK_EXECUTOR = "kill a TaskExecutor"
    JOB_MASTER = "kill the JobMaster"
    DISPATCHER = "kill the Dispatcher"
    RESOURCE_MANAGER = "kill the ResourceManager"
    PAUSED_JOB_MASTER = "stop the JobMaster for a moment"
    PAUSED_SLOT = "stop a slot's process for a moment"
    ZOMBIE = "stop a TaskExecutor until the job continues without it"
    ZOMBIE_JOB_MASTER = "stop the JobMaster until another one has its job"
    RESET = "break the connections of two processes"
    CUT = "let nothing pass between two processes for a while"
    STANDBY = "kill a standby"
    HANDOVER = "stop a leader with SIGTERM"
    ZOMBIE_DISPATCHER = "stop the leading Dispatcher until another one leads"
    ZOOKEEPER = "kill a ZooKeeper server"
    NO_QUORUM = "kill two of three ZooKeeper servers for a while"
    BROKER = "kill the broker of Kafka, which starts again"


RESTARTS = (Fault.TASK, Fault.SLOT, Fault.TASK_EXECUTOR)
KILLS = (
    Fault.SLOT,
    Fault.TASK_EXECUTOR,
    Fault.JOB_MASTER,
    Fault.DISPATCHER,
    Fault.RESOURCE_MANAGER,
    Fault.ZOMBIE_JOB_MASTER,  # and the Dispatcher
)
ELECTED = (  # where masters are
    Fault.STANDBY,
    Fault.HANDOVER,
    Fault.ZOMBIE_DISPATCHER,
    Fault.ZOOKEEPER,
    Fault.NO_QUORUM,
)
OF_KAFKA = (Fault.BROKER,)  # at both ends
OF_MASTERS = (  # they restart no task of a stream
    Fault.JOB_MASTER,
    Fault.DISPATCHER,
    Fault.RESOURCE_MANAGER,
    Fault.PAUSED_JOB_MASTER,
    Fault.ZOMBIE_JOB_MASTER,
    *ELECTED,
)


class Job(Protocol):
    """The job under test: see `ExactlyOnceJob` and `BatchJobs`."""

    job_id: str
    parts: bool  # its tasks run one after the other

    @property
    def committed(self) -> int: ...

    @property
    def latest_attempt(self) -> int: ...

    def progress(self, what: str) -> None: ...

    def progress_of_attempt(self, number: int, what: str) -> None: ...

    def poison(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Happened:
    fault: Fault
    whom: str  # if it is not clear
    at_s: float  # since the start
    recovered_s: float  # until rows were committed again
    rows: int  # committed by then


def drawn(seed: int, faults: dict[Fault, int]) -> list[Fault]:
    """So many of each, in a random order."""
    order = [fault for fault, count in faults.items() for _ in range(count)]
    random.Random(seed).shuffle(order)
    return order


class Chaos:
    """On the processes of one job. `tunnels`: those of its cluster, for cuts; `zookeeper`: of three
    servers, where masters are elected.
    """

    def __init__(
        self,
        session: Session,
        job: Job,
        seed: int,
        tunnels: Tunnels | None = None,
        zookeeper: ZooKeeper | None = None,
    ) -> None:
        self._session, self._job, self._tunnels = session, job, tunnels
        self._zookeeper = zookeeper
        self._mend: Callable[[], None] = _nothing
        self._whom = ""
        self._random = random.Random(seed)
        self._began = time.monotonic()
        self.happened: list[Happened] = []

    def inject(self, fault: Fault) -> None:
        """Returns when the job has committed rows again."""
        before, self._whom = self._job.latest_attempt, ""
        adopted = fault in OF_MASTERS and not self._job.parts
        attempts = self._attempt_ids() if adopted else set()
        self._act(fault)
        at = time.monotonic()
        if fault in RESTARTS:
            self._job.progress_of_attempt(before + 1, fault.value)
        else:
            self._job.progress(fault.value)
        ended = time.monotonic()
        self.happened.append(
            Happened(fault, self._whom, at - self._began, ended - at, self._job.committed)
        )
        mend, self._mend = self._mend, _nothing
        mend()
        if adopted:
            # A Dispatcher that has just become the leader may not know the tasks yet.
            eventually(
                lambda: self._attempt_ids() == attempts, f"{fault.value} has restarted no task"
            )

    def inject_all(self, faults: Iterable[Fault]) -> None:
        """Injects one after another, and prints what happened."""
        try:
            for fault in faults:
                self.inject(fault)
        finally:
            print(report(self.happened))

    def _act(self, fault: Fault) -> None:
        match fault:
            case Fault.TASK:
                self._job.poison()
            case Fault.SLOT:
                self._signal(self._slot, signal.SIGKILL)
            case Fault.TASK_EXECUTOR:
                self._signal(self.task_executor, signal.SIGKILL)
            case Fault.JOB_MASTER:
                self._signal(self.job_master, signal.SIGKILL)
            case Fault.DISPATCHER:
                self._signal(self._dispatcher, signal.SIGKILL)
            case Fault.RESOURCE_MANAGER:
                self._signal(self._resource_manager, signal.SIGKILL)
            case Fault.PAUSED_JOB_MASTER:
                with stopped([self._found(self.job_master)]):
                    time.sleep(SHORT_S)
            case Fault.PAUSED_SLOT:
                with stopped([self._found(self._slot)]):
                    time.sleep(SHORT_S)
            case Fault.ZOMBIE:
                self.outlive(self._found(self.task_executor))
            case Fault.ZOMBIE_JOB_MASTER:
                self.replace(self._found(self.job_master))
            case Fault.RESET:
                assert self._tunnels is not None
                self._tunnels.reset(self._pair(self._tunnels))
            case Fault.CUT:
                assert self._tunnels is not None
                with self._tunnels.silent(self._pair(self._tunnels)):
                    time.sleep(self._random.uniform(0.1, CUT_MAX_S))
            case Fault.STANDBY:
                self._signal(self._standby, signal.SIGKILL)
            case Fault.HANDOVER:
                office = self._random.choice(list(Office))
                self._whom = office.holder
                self._signal(lambda: self._leader(office), signal.SIGTERM)
            case Fault.ZOMBIE_DISPATCHER:
                self.displace(self._found(self._dispatcher))
            case Fault.BROKER:
                assert isinstance(self._job, BothEndsJob)
                self._job.break_broker()
            case Fault.ZOOKEEPER:
                self._crash(self._random.randrange(3))
            case Fault.NO_QUORUM:
                self._crash(*self._random.sample(range(3), 2))
                time.sleep(self._random.uniform(0.1, CUT_MAX_S))
                self._mend()
                self._mend = _nothing

    def outlive(self, victim: psutil.Process) -> None:
        """It is stopped with all of its processes until the job runs without it. Then it acts on
        all that it had heard, and is left with nothing of the job.
        """
        job_id = self._job.job_id
        (mine,) = (name for name, worker in self._workers().items() if worker == victim)
        with stopped([victim, *victim.children(recursive=True)]):
            eventually(
                lambda: all(a.task_executor_id != mine for a in self._attempts()),
                "the job runs without the TaskExecutor that is stopped",
            )
            self._job.progress("others have taken over")
        verdict = ("TaskExecutor lost", job_id, f"tm_id={mine}")
        logs = logs_below(self._session.cluster.directory, "jobmaster-*.log")
        lines = (line for log in logs for line in log.splitlines())
        assert any(all(word in line for word in verdict) for line in lines), "it was given up"

    def replace(self, victim: psutil.Process) -> None:
        """Stops the JobMaster and kills the Dispatcher, which would end it: the next Dispatcher does
        not know its process, and assigns the job to another JobMaster. Once resumed, it believes that the
        job is its own: it must end, and nothing of it may count.
        """
        orphan(victim)
        with stopped([victim]):
            self._signal(self._dispatcher, signal.SIGKILL)
            self.succeeded(victim)
            self._job.progress("another JobMaster has taken over")
        eventually(lambda: _ended(victim), "the JobMaster that was replaced has ended")

    def displace(self, victim: psutil.Process) -> None:
        """Stops the process until another one leads. Once resumed, it has to end."""
        with stopped([victim]):
            eventually(lambda: self._found(self._dispatcher) != victim, "another Dispatcher leads")
            self._job.progress("another Dispatcher leads")
        eventually(lambda: _ended(victim), "the Dispatcher that was displaced has ended")

    def succeeded(self, victim: psutil.Process) -> None:
        """Waits until another JobMaster has the job."""

        def tried() -> bool:
            with contextlib.suppress(LookupError, psutil.Error):
                return self.job_master() != victim
            return False

        eventually(tried, "another JobMaster has the job")

    def job_master(self) -> psutil.Process:
        """The one with the highest epoch."""
        found = job_masters(self._session.cluster.directory, self._job.job_id)
        process = psutil.Process(found[max(found, default=0)])
        if _ended(process):
            raise LookupError("the next JobMaster has not started yet")
        return process

    # ---- inside

    def _signal(self, find: Callable[[], psutil.Process], number: signal.Signals) -> None:
        self._found(find).send_signal(number)

    def _found(self, find: Callable[[], psutil.Process]) -> psutil.Process:
        """While everything is in order: a Dispatcher may have to come back before it answers."""
        found: list[psutil.Process] = []

        def tried() -> bool:
            with contextlib.suppress(FiresteelError, LookupError, ValueError, psutil.Error):
                found.append(find())
            return bool(found)

        eventually(tried, "the process is there")
        return found[0]

    def _dispatcher(self) -> psutil.Process:
        return self._leader(Office.DISPATCHER)

    def _resource_manager(self) -> psutil.Process:
        return self._leader(Office.RESOURCE_MANAGER)

    def _leader(self, office: Office) -> psutil.Process:
        """Returns the leader, or the only process. Raises LookupError while there is none."""
        cluster = self._session.cluster
        if isinstance(cluster, HighlyAvailableCluster):
            return cluster.leading(office).process
        return services(self._session, MODULES[office])[0]

    def _standby(self) -> psutil.Process:
        """Raises LookupError while there is none."""
        cluster = self._session.cluster
        assert isinstance(cluster, HighlyAvailableCluster)
        office = self._random.choice(list(Office))
        leading = cluster.leading(office)
        standbys = [s for s in cluster.of(MODULES[office]) if s.runs and s is not leading]
        self._whom = office.holder
        return self._random.choice(standbys).process

    def _crash(self, *servers: int) -> None:
        """Crashes ZooKeeper servers, which `_mend` restarts."""
        zookeeper = self._zookeeper
        assert zookeeper is not None
        self._whom = "its leader" if zookeeper.leader() in servers else ""
        zookeeper.crash(*servers)

        def mend() -> None:
            for server in servers:
                zookeeper.start(server)
            zookeeper.wait_until_serving()

        self._mend = mend

    def _attempt_ids(self) -> set[str]:
        return {attempt.attempt_id for attempt in self._attempts()}

    def _attempts(self) -> list[Attempt]:
        """Returns the attempts of the running tasks; waits until all run if none has ended."""
        found: list[Attempt] = []

        def running(details: JobDetails) -> bool:
            current = [s.current for v in details.vertices for s in v.subtasks]
            found[:] = [
                attempt for attempt in current if attempt and attempt.state.name == "RUNNING"
            ]
            return bool(found) and (self._job.parts or len(found) == len(current))

        def tried() -> bool:
            with contextlib.suppress(FiresteelError):
                return running(self._session.client.job_details(self._job.job_id))
            return False

        eventually(tried, "all tasks run")
        return found

    def _slot(self) -> psutil.Process:
        """One that has tasks of the job."""
        attempt = self._random.choice(self._attempts())
        worker = self._workers()[attempt.task_executor_id]
        slots = {command(slot): slot for slot in worker.children()}
        (line,) = (line for line in slots if f"--slot {attempt.slot_index}" in line)
        return slots[line]

    def task_executor(self) -> psutil.Process:
        """The same."""
        return self._workers()[self._random.choice(self._attempts()).task_executor_id]

    def _pair(self, tunnels: Tunnels) -> Ends:
        """Two that are connected: first what they are is drawn, then who."""
        pairs: dict[str, list[Ends]] = {}
        for ends in tunnels.between():
            with contextlib.suppress(psutil.NoSuchProcess):
                kinds = " and ".join(sorted(program(psutil.Process(pid)) for pid in ends))
                pairs.setdefault(kinds, []).append(ends)
        self._whom = self._random.choice(sorted(pairs))
        return self._random.choice(pairs[self._whom])

    def _workers(self) -> dict[str, psutil.Process]:
        """By id: the TaskExecutors that the ResourceManager knows."""
        return {
            worker.task_executor_id: psutil.Process(worker.pid)
            for worker in self._session.overview().task_executors
        }


def _nothing() -> None:
    pass


def program(process: psutil.Process) -> str:
    """Which it runs. Raises psutil.NoSuchProcess."""
    line = " ".join(process.cmdline())
    found = re.search(r"-m (\S+) ", line)
    return found[1] if found else line


def orphan(copy: psutil.Process) -> None:
    """Ends the server that has forked it. A stopped process that loses its parent gets SIGHUP and
    SIGCONT of the kernel, if that leaves its group without one: it would die, or even resume. So
    this is for one that runs.
    """
    server = copy.parent()
    if server is not None and "fork_server" in command(server):
        server.kill()
        eventually(lambda: copy.ppid() != server.pid, "the JobMaster has another parent")


def _ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)


def report(happened: list[Happened]) -> str:
    """A line per fault, and the median and the worst of each kind."""
    lines = [
        f"{h.at_s:7.1f} s  {h.recovered_s:5.1f} s  {h.rows:8,} rows  {h.fault.value}"
        + (f": {h.whom}" if h.whom else "")
        for h in happened
    ]
    for fault in Fault:
        times = sorted(h.recovered_s for h in happened if h.fault is fault)
        if times:
            middle = times[len(times) // 2]
            lines.append(
                f"{fault.value}: {len(times)} x, recovered after {middle:.1f} s,"
                f" at most {times[-1]:.1f} s"
            )
    return "\n".join(lines)
