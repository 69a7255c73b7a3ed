"""Runs one JobMaster process, for one job: `python -m jobmaster`."""

from __future__ import annotations

import gc
import socket

import click

from firesteel.common import logs
from firesteel.common.logs import get_logger
from firesteel.common.rpc.mapping import compile_all
from firesteel.common.security.roles import Role
from firesteel.common.service.host import ServiceProcess, service_main
from firesteel.errors import FiresteelError
from firesteel.high_availability import check_address
from jobmaster.service import JobMasterProcess
from jobmaster.shell import RunningJob

log = get_logger(__name__)


@service_main("jobmaster", role=Role.JOB_MASTER)
@click.option(
    "--dispatcher",
    default="",
    metavar="HOST:PORT",
    help="The Dispatcher that assigns a job to this process, unless it is elected.",
)
async def main(process: ServiceProcess, dispatcher: str) -> None:
    """Runs one job: acquires slots, deploys tasks, and restarts the job when it fails.

    The Dispatcher starts these processes. Each registers with the Dispatcher, is assigned one job,
    and exits once the Dispatcher has stored how the job ended.
    """
    check_address(process.conf, "--dispatcher", dispatcher)
    job_master = JobMasterProcess(
        process.conf,
        dispatcher_address=dispatcher,
        host=process.host,
        platform=process.platform,
        registry=process.registry,
        metrics_address=_serve_metrics(process),
        job_built=_job_built,
    )
    process.on_stop(lambda signal_name: job_master.stop())
    await job_master.start()
    process.announce_ready(address=job_master.address, metrics_address=job_master.metrics_address)
    await job_master.run()


def prepare() -> None:
    """Called in a process that is copied, whose copies share its memory (see `fork_server`): so a
    job waits neither for its converters, nor for the import that its checkpoints need.
    """
    import pyarrow.fs  # noqa: F401

    compile_all()


def _job_built(job: RunningJob) -> None:
    logs.bind_process(job_id=job.job_id)
    gc.freeze()  # the graph lives as long as the process: collections need not scan it


def _serve_metrics(process: ServiceProcess) -> str:
    """Returns the metrics address; empty if no port is free, because metrics are optional."""
    try:
        return process.serve_metrics(scope="jobmanager", labels={"host": socket.gethostname()})
    except FiresteelError as error:
        log.warning("no metrics", cause=str(error))
        return ""


if __name__ == "__main__":
    main()
