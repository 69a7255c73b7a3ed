"""Runs the program of an application cluster, waits for its job, and deletes the cluster.

The job's id follows from the cluster's id. Whenever this process starts, the job store decides:

    the job store has the job           the program does not run; wait for the end of the job
    it does not, and there is a program the leader's pod runs the program, which submits the job
    it does not, and there is none      wait for the client to submit it
    the Deployment has an outcome       the job has ended before; only delete the cluster
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import click

from firesteel.client.client import Client
from firesteel.client.job_details import JobDetails
from firesteel.common.config import Configuration, options
from firesteel.common.leader import Office
from firesteel.common.logs import get_logger
from firesteel.common.service.host import ServiceProcess, service_main
from firesteel.common.states import JobStatus
from firesteel.errors import ClusterUnreachable, FiresteelError, JobNotFound
from firesteel.high_availability import elected_address
from firesteel.high_availability.incumbent import LeadersUnreachable
from firesteel.high_availability.kubernetes import finder
from firesteel.high_availability.kubernetes.offices import LeaseOffices
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.cluster import job_id_of
from firesteel.kubernetes.cluster.deployed import DeployedCluster, Outcome, earlier_job
from firesteel.kubernetes.configuration import access_of, cluster_id_of

log = get_logger(__name__)

PAUSE_S = 1.0
RETRY_S = 5.0
LOCAL = "local://"
T = TypeVar("T")


@service_main("application", directory="required")
@click.option("--program", default="", metavar="FILE", help="The program that submits the job.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(process: ServiceProcess, program: str, arguments: Sequence[str]) -> None:
    """Runs the program of an application cluster; `firesteel service masters` starts it."""
    process.announce_ready()
    application = Application(
        process.conf,
        host=process.host,
        folder=process.directory,
        program=program.removeprefix(LOCAL),
        arguments=arguments,
    )
    application.run()


class Application:
    """Belongs to the main thread of its process."""

    def __init__(
        self,
        conf: Configuration,
        *,
        host: str,
        folder: Path,
        program: str,
        arguments: Sequence[str],
    ) -> None:
        self._conf = conf
        self._host = host
        self._folder = folder
        self._program = program
        self._arguments = arguments
        self._address = elected_address(conf)
        self._offices = LeaseOffices.of(conf)
        self.job_id = job_id_of(cluster_id_of(conf))

    def run(self) -> NoReturn:
        outcome = self._stored()
        if outcome is None:
            outcome = self._executed()
            self._record(outcome)
        log.info("the application has ended", job=self.job_id, outcome=outcome.text)
        time.sleep(self._conf.get(options.KUBERNETES_RETENTION))
        self._delete()
        while True:  # the pod ends next
            signal.pause()

    # ---- the job

    def _executed(self) -> Outcome:
        """Returns once the job has ended, or cannot be submitted."""
        deadline = time.monotonic() + self._conf.get(options.KUBERNETES_SUBMISSION_TIMEOUT)
        error = ""
        while True:
            try:
                with Client(self._address, conf=self._conf) as client:
                    if (found := self._found(client)) is not None:
                        return self._awaited(client, found)
                if error:
                    return Outcome(error=error)
                if self._program and self._leads():
                    error = self._submitted()
                    continue
            except (ClusterUnreachable, LeadersUnreachable) as away:
                log.info("waiting for the Dispatcher", reason=str(away))
            if not self._program and time.monotonic() > deadline:
                key = options.KUBERNETES_SUBMISSION_TIMEOUT.key
                return Outcome(error=f"no client has submitted the job in time ({key})")
            time.sleep(PAUSE_S)

    def _found(self, client: Client) -> JobDetails | None:
        try:
            return client.job_details(self.job_id)
        except JobNotFound:
            return None

    def _awaited(self, client: Client, found: JobDetails) -> Outcome:
        """Waits for the end of the job."""
        if found.status.globally_terminal and (error := self._earlier(found)):
            return Outcome(error=error)
        last = deque(client.watch_job(self.job_id), maxlen=1).pop()
        if last.status is JobStatus.FAILED and last.exceptions:
            return Outcome(status=last.status.name, error=last.exceptions[0].summary)
        return Outcome(status=last.status.name)

    def _earlier(self, job: JobDetails) -> str:
        """Returns why the job of an earlier cluster is not run again."""
        deployment = asyncio.run(self._with_cluster(lambda cluster: cluster.get()))
        cluster_id, status = cluster_id_of(self._conf), job.status.name
        return earlier_job(cluster_id, deployment, status=status, end_ms=job.end_ms)

    def _leads(self) -> bool:
        """Whether the Dispatcher of this pod leads: no other pod runs the program."""
        incumbent = finder.incumbents(self._offices).get(Office.DISPATCHER)
        return incumbent is not None and incumbent.leader.address.rpartition(":")[0] == self._host

    def _submitted(self) -> str:
        """Runs the program, which submits the job; returns why it has not. Raises
        ClusterUnreachable.
        """
        from firesteel.client.cli.program import check_syntax, run_program
        from firesteel.client.execution_context import ExecutionContext
        from firesteel.client.package import opened_program

        context = ExecutionContext(
            mode="remote",
            conf=self._conf,
            address=self._address,
            job_id=self.job_id,
            one_job=True,
            on_cluster=True,
            attached=False,
        )
        files: list[str] = self._conf.get(options.PYTHON_FILES)
        archives: list[str] = self._conf.get(options.PYTHON_ARCHIVES)
        try:
            with opened_program(Path(self._program), "", self._folder) as program:
                check_syntax(program.main)
                context = context.with_files(
                    [*program.files, *files],
                    [*program.archives, *archives],
                    program.requirements or self._conf.get(options.PYTHON_REQUIREMENTS) or None,
                )
                with contextlib.chdir(program.main.parent):
                    ran = run_program(program.main, self._arguments, context)
        except FiresteelError as error:
            if isinstance(error.__cause__, ClusterUnreachable):  # the Dispatcher restarts
                raise error.__cause__ from None
            log.error("the program has failed", reason=str(error))
            return "\n".join([str(error), *getattr(error, "__notes__", ())])
        if ran.exit_code not in (None, 0):
            return f"the program ended with sys.exit({ran.exit_code!r})"
        return "the program submitted no job, because it never called env.execute()"

    # ---- the Deployment

    def _stored(self) -> Outcome | None:
        return asyncio.run(self._with_cluster(lambda cluster: cluster.outcome()))

    def _record(self, outcome: Outcome) -> None:
        asyncio.run(self._with_cluster(lambda cluster: cluster.record(outcome)))

    def _delete(self) -> None:
        asyncio.run(self._with_cluster(lambda cluster: cluster.delete()))

    async def _with_cluster(self, act: Callable[[DeployedCluster], Awaitable[T]]) -> T:
        """Repeats a call until the API server has answered it."""
        async with KubernetesClient(access_of(self._conf)) as client:
            cluster = DeployedCluster(client, cluster_id_of(self._conf))
            while True:
                try:
                    return await act(cluster)
                except FiresteelError as error:
                    log.error("the Deployment cannot be reached; retrying", reason=str(error))
                await asyncio.sleep(RETRY_S)


if __name__ == "__main__":
    main()
