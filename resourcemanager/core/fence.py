"""The fence: which connection belongs to which peer, and which messages on it are stale.

The fence drops stale messages and counts them, by reason, in `dropped`; no code after the fence
checks epochs, sequences or connections again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from firesteel.common.fencing import Refusals
from firesteel.common.ids import Epoch, JobId, TaskExecutorId
from resourcemanager.core.events import (
    Connection,
    FromJobMaster,
    FromTaskExecutor,
    JobMasterRegistered,
    RequirementsDeclared,
    SlotsReported,
    TaskExecutorRegistered,
)
from resourcemanager.core.registered_jobs import RegisteredJob
from resourcemanager.core.slots import TaskExecutor

EPOCHS_REMEMBERED = 10_000


class Fence:
    def __init__(self, epoch: Epoch) -> None:
        self.dropped: Counter[str] = Counter()
        self.refusals = Refusals()  # messages of JobMasters that were replaced
        self.executor_on: dict[Connection, TaskExecutorId] = {}
        self.job_on: dict[Connection, JobId] = {}
        self._epoch = epoch
        # By job, also after the end of its JobMasters; the oldest jobs are dropped.
        self._newest_epoch: dict[JobId, Epoch] = {}

    def drop(self, why: str) -> None:
        self.dropped[why] += 1

    # ------------------------------------------------------------ registrations

    def repeats(self, event: TaskExecutorRegistered | JobMasterRegistered) -> bool:
        """Whether this peer has already registered on this connection: the event may be stale."""
        if isinstance(event, TaskExecutorRegistered):
            same = self.executor_on.get(event.connection) == event.task_executor_id
        else:
            same = self.job_on.get(event.connection) == event.job_id
        if not same:
            return False
        self.drop("registration repeated on its connection")
        return True

    def superseded(self, event: JobMasterRegistered) -> bool:
        """Whether a JobMaster with a higher epoch has registered for this job. If not, records this
        one as the newest.
        """
        newest = self._newest_epoch.get(event.job_id, 0)
        if event.epoch < newest:
            self.drop("epoch of another JobMaster")
            self._refuse_job_master("registration", event.job_id, event.epoch, newest)
            return True
        self._newest_epoch.pop(event.job_id, None)
        self._newest_epoch[event.job_id] = event.epoch
        if len(self._newest_epoch) > EPOCHS_REMEMBERED:
            del self._newest_epoch[next(iter(self._newest_epoch))]
        return False

    # ------------------------------------------------------------ everything else

    def admit_executor(
        self, event: FromTaskExecutor, executors: Mapping[TaskExecutorId, TaskExecutor], now: float
    ) -> TaskExecutor | None:
        task_executor_id = self.executor_on.get(event.connection)
        if task_executor_id is None:
            self.drop("TaskExecutor's connection is superseded or not registered")
            return None
        # 0: sent before the TaskExecutor read the Welcome.
        if event.epoch not in (0, self._epoch):
            self.drop("epoch of another ResourceManager")
            return None
        executor = executors[task_executor_id]
        executor.heard_at = now
        if isinstance(event, SlotsReported) and event.sequence <= executor.report_sequence:
            self.drop("slot report is older than the last")
            return None
        return executor

    def admit_job(
        self, event: FromJobMaster, jobs: Mapping[JobId, RegisteredJob], now: float
    ) -> RegisteredJob | None:
        job_id = self.job_on.get(event.connection)
        if job_id is None or job_id != event.job_id:
            self.drop("JobMaster's connection is superseded or not registered")
            return None
        job = jobs[job_id]
        if event.epoch != job.epoch:
            self.drop("epoch of another JobMaster")
            self._refuse_job_master(type(event).__name__, job_id, event.epoch, job.epoch)
            return None
        job.heard_at = now
        if isinstance(event, RequirementsDeclared) and event.sequence <= job.sequence:
            self.drop("declaration is older than the last")
            return None
        return job

    def _refuse_job_master(self, what: str, job_id: JobId, epoch: int, in_force: int) -> None:
        self.refusals.refuse(
            what, sender="JobMaster", epoch=epoch, in_force=in_force, job_id=job_id
        )

    # ------------------------------------------------------------ connections

    def connect_executor(self, executor: TaskExecutor, connection: Connection, now: float) -> None:
        executor.connection, executor.heard_at, executor.report_sequence = connection, now, 0
        self.executor_on[connection] = executor.task_executor_id

    def connect_job(self, job: RegisteredJob, connection: Connection, now: float) -> None:
        job.connection, job.heard_at = connection, now
        self.job_on[connection] = job.job_id

    def disconnect(self, peer: TaskExecutor | RegisteredJob) -> Connection | None:
        """Stops admitting events from the peer's connection. Returns that connection, or None if
        the peer had none.
        """
        connection, peer.connection = peer.connection, None
        if connection is not None:
            self.executor_on.pop(connection, None)
            self.job_on.pop(connection, None)
        return connection

    def violations(
        self, executors: Mapping[TaskExecutorId, TaskExecutor], jobs: Mapping[JobId, RegisteredJob]
    ) -> list[str]:
        by_executor = {
            x.connection: x.task_executor_id for x in executors.values() if x.connection is not None
        }
        by_job = {job.connection: job.job_id for job in jobs.values() if job.connection is not None}
        found = []
        if by_executor != self.executor_on:
            found.append(
                f"connected TaskExecutors {by_executor}, known connections {self.executor_on}"
            )
        if by_job != self.job_on:
            found.append(f"connected JobMasters {by_job}, known connections {self.job_on}")
        return found
