"""Runs one TaskExecutor: `python -m taskexecutor`."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import click

from firesteel.common.config import Configuration, options
from firesteel.common.ids import TaskExecutorId, random_id
from firesteel.common.process.lock_file import LockFile
from firesteel.common.security.roles import Role
from firesteel.common.service.host import ServiceProcess, service_main
from firesteel.errors import FiresteelError
from firesteel.high_availability import check_address
from taskexecutor.configuration import settings_from
from taskexecutor.results import Results, ResultServer
from taskexecutor.shell import TaskExecutor

if TYPE_CHECKING:
    from firesteel.common.security.security import Security


def _start_result_server(conf: Configuration, security: Security | None, host: str) -> ResultServer:
    from taskexecutor.executor.exchange.security import ExchangeSecurity
    from taskexecutor.result_server import FlightResultServer

    of_exchange = None
    if security is not None:
        certificate = security.exchange_certificate(f"results-{os.getpid()}")
        of_exchange = ExchangeSecurity(
            keys_of=security.job_keys, find=security.find_job_key, certificate=certificate
        )
    return FlightResultServer(
        host,
        window_bytes=conf.get(options.CHANNEL_WINDOW),
        batch_rows=conf.get(options.BATCH_ROWS),
        security=of_exchange,
    )


@service_main("taskexecutor", role=Role.TASK_EXECUTOR, directory="temporary")
@click.option(
    "--resource-manager",
    default="",
    metavar="HOST:PORT",
    help="The ResourceManager to register at, unless it is elected (high-availability.type). It may"
    " start later.",
)
@click.option(
    "--worker-id",
    default="",
    metavar="ID",
    help="Set by the driver that starts this process.",
)
async def main(process: ServiceProcess, resource_manager: str, worker_id: str) -> None:
    """Offers this machine's slots to a Firesteel cluster.

    Registers at the ResourceManager, keeps one warm PySpark executor process per slot, runs jobs'
    tasks in them and relays between them and the JobMasters. Slots come from
    taskmanager.numberOfTaskSlots, their default size from taskmanager.slot.heap.size,
    .off-heap.size, .network.size and taskmanager.memory.managed.fraction, or from
    taskmanager.memory.process.size for all of them together.

    Example, two slots for a ResourceManager on this machine:

    \b
        python -m taskexecutor --resource-manager 127.0.0.1:6124 -D taskmanager.numberOfTaskSlots=2

    SIGTERM stops it: its slots are reported lost and their processes killed, in pods after their
    tasks have moved (taskmanager.drain-timeout). They also end if this process is killed.
    """
    check_address(process.conf, "--resource-manager", resource_manager)
    lock = LockFile(process.directory / "lock")  # held until the process ends
    try:
        lock.acquire()
    except BlockingIOError:
        raise FiresteelError(
            f"another TaskExecutor runs in {process.directory}: give each its own --dir"
        ) from None
    settings = settings_from(
        process.conf,
        task_executor_id=TaskExecutorId(random_id()),
        cores=len(os.sched_getaffinity(0)),
    )
    labels = {"host": process.host, "tm_id": settings.task_executor_id}
    task_executor = TaskExecutor(
        process.conf,
        settings,
        resource_manager_address=resource_manager,
        worker_id=worker_id,
        host=process.host,
        directory=process.directory,
        metrics=process.registry,
        metrics_address=process.serve_metrics(scope="taskmanager", labels=labels),
        platform=process.platform,
        results=Results(
            process.directory,
            memory_bytes=process.conf.get(options.BLOCKING_MEMORY),
            start_server=partial(_start_result_server, process.conf, process.security),
        ),
        log_path=process.log_path,
    )
    process.on_stop(task_executor.terminate)
    await task_executor.start()
    await process.serve_health()
    process.announce_ready(
        address=task_executor.address,
        metrics_address=task_executor.metrics_address,
        task_executor_id=settings.task_executor_id,
    )
    await task_executor.stop(await task_executor.ended)


if __name__ == "__main__":
    main()
