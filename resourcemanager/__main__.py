"""Runs the ResourceManager's process: `python -m resourcemanager`."""

from __future__ import annotations

import socket

import click

from firesteel.common.config import options
from firesteel.common.leader import Office
from firesteel.common.logs import get_logger
from firesteel.common.security.roles import Role
from firesteel.common.service.host import ServiceProcess, service_main
from firesteel.high_availability import election_of
from resourcemanager.driver import WorkerDriver
from resourcemanager.epoch import EpochFile
from resourcemanager.local_driver import LocalDriver
from resourcemanager.service import ResourceManager

log = get_logger(__name__)


@service_main(
    "resourcemanager", role=Role.RESOURCE_MANAGER, directory="temporary", port=options.RM_PORT
)
@click.option(
    "--driver",
    type=click.Choice(["local", "kubernetes", "none"]),
    default="local",
    show_default=True,
    help="Which driver starts TaskExecutors: local processes on this machine, pods of Kubernetes,"
    " or none.",
)
@click.option(
    "--task-executors",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Keep N TaskExecutors running.",
)
async def main(process: ServiceProcess, driver: str, task_executors: int) -> None:
    """Firesteel's ResourceManager.

    TaskExecutors register their slots here, JobMasters declare how many slots they require, and the
    ResourceManager matches free slots to them. It also starts TaskExecutors: it keeps N running,
    and starts more when jobs require them.

    Two TaskExecutors with two slots each on this machine, and up to two more on demand:

    \b
        python -m resourcemanager --port 6124 --dir /tmp/firesteel --task-executors 2 \\
            -D taskmanager.numberOfTaskSlots=2 -D slotmanager.number-of-slots.max=8

    Standalone; the operator starts TaskExecutors:

    \b
        python -m resourcemanager --port 6124 --driver none
        python -m taskexecutor --resource-manager 127.0.0.1:6124

    TaskExecutors as pods of Kubernetes; in a pod, its ServiceAccount may create, delete, list and
    watch pods, and read their logs and Events:

    \b
        python -m resourcemanager --port 6124 --driver kubernetes -D kubernetes.cluster-id=orders \\
            -D kubernetes.container.image.ref=IMAGE -D slotmanager.number-of-slots.max=100

    With high-availability.type: zookeeper or kubernetes, one of several ResourceManagers leads and
    the others stand by; those on the same machine share --dir.

    It reads these keys: slotmanager.number-of-slots.max, cluster.evenly-spread-out-slots,
    resourcemanager.taskmanager-timeout, resourcemanager.previous-worker.recovery.timeout,
    slotmanager.requirement-check.delay, heartbeat.interval, heartbeat.timeout,
    metrics.reporter.prom.port; it passes all other keys to the TaskExecutors that it starts.
    """
    if driver == "none" and task_executors:
        raise click.UsageError(
            "--driver none starts no TaskExecutors: omit --task-executors, or use --driver local"
        )
    workers: WorkerDriver | None = None
    if driver == "kubernetes":
        from resourcemanager.kubernetes.start import kubernetes_driver  # imports aiohttp

        workers = kubernetes_driver(
            process.conf, directory=process.directory, initial_workers=task_executors
        )
    elif driver == "local":
        arguments = ["--host", process.host, *process.conf.to_arguments()]
        workers = LocalDriver(
            directory=process.directory,
            arguments=arguments,
            logs_kept=process.conf.get(options.LOG_MAX),
            platform=process.platform,
        )
    resource_manager = ResourceManager(
        process.conf,
        host=process.host,
        port=process.port,
        epochs=EpochFile(process.directory),
        election=election_of(process.conf, Office.RESOURCE_MANAGER),
        workers=workers,
        initial_workers=task_executors,
        log_path=process.log_path,
        platform=process.platform,
    )
    labels = {"host": socket.gethostname()}
    process.registry.add_source(lambda: resource_manager.metrics(labels))
    metrics_address = process.serve_metrics(scope="jobmanager", labels=labels)
    process.on_stop(lambda signal_name: resource_manager.stop())
    await resource_manager.start()
    await process.serve_health()
    process.announce_ready(address=resource_manager.address, metrics_address=metrics_address)
    await resource_manager.run()
    log.info("the ResourceManager has stopped")


if __name__ == "__main__":
    main()
