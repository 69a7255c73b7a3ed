"""The ResourceManager's process: `python -m resourcemanager`."""

from __future__ import annotations

import socket
import time

import click
import structlog

from firesteel._proto import resource_manager_pb2, resource_manager_pb2_grpc
from firesteel.common.config import Configuration, options
from firesteel.common.ids import Epoch, IdSource
from firesteel.common.rpc.server import bind, new_server
from firesteel.common.service import ServiceProcess, service_main
from firesteel.common.slot_resources import slot_resources
from resourcemanager.core.core import SlotManager
from resourcemanager.core.settings import Settings
from resourcemanager.core.workers import WorkerSpec
from resourcemanager.driver import NoDriver, WorkerDriver
from resourcemanager.local_driver import LocalDriver
from resourcemanager.shell import ResourceManagerService

log = structlog.get_logger(__name__)


@service_main("resourcemanager", directory="temporary", port=options.RM_PORT)
@click.option(
    "--driver",
    type=click.Choice(["local", "none"]),
    default="local",
    show_default=True,
    help="What starts TaskExecutors: this process on this machine, or nothing.",
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

    TaskExecutors register their slots here, JobMasters declare how many they need, and free slots
    are matched to them. It also starts TaskExecutors: N at once, which it keeps at N, and more when
    jobs need them.

    Two TaskExecutors of two slots on this machine, and up to two more on demand:

    \b
        python -m resourcemanager --port 6124 --dir /tmp/firesteel --task-executors 2 \\
            -D taskmanager.numberOfTaskSlots=2 -D slotmanager.number-of-slots.max=8

    Standalone; TaskExecutors are started by hand:

    \b
        python -m resourcemanager --port 6124 --driver none
        python -m taskexecutor --resource-manager 127.0.0.1:6124

    Keys it reads: slotmanager.number-of-slots.max, cluster.evenly-spread-out-slots,
    resourcemanager.taskmanager-timeout, resourcemanager.previous-worker.recovery.timeout,
    slotmanager.requirement-check.delay, heartbeat.interval, heartbeat.timeout,
    metrics.reporter.prom.port; all others are passed on to the TaskExecutors it starts.
    """
    if driver == "none" and task_executors:
        raise click.UsageError(
            "--driver none starts no TaskExecutors: drop --task-executors, or use --driver local"
        )
    conf = process.conf
    server = new_server([resource_manager_pb2.DESCRIPTOR.services_by_name["ResourceManager"]])
    address = bind(server, process.host, process.port)
    workers: WorkerDriver = NoDriver()
    if driver == "local":
        workers = LocalDriver(
            directory=process.directory, arguments=["--host", process.host, *conf.to_arguments()]
        )
    core = SlotManager(_settings(conf, driver, task_executors), IdSource())
    service = ResourceManagerService(core, workers)
    resource_manager_pb2_grpc.add_ResourceManagerServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    labels = {"host": socket.gethostname()}
    process.registry.add_source(lambda: service.metrics(labels))
    metrics_address = process.serve_metrics(scope="jobmanager", labels=labels)
    await server.start()
    process.on_stop(lambda signal_name: service.stop())
    process.announce_ready(address=address, metrics_address=metrics_address)
    try:
        await service.run(address)
    finally:
        await workers.stop()
        service.close_streams()
        await server.stop(grace=0.5)
    log.info("the ResourceManager has stopped")


def _settings(conf: Configuration, driver: str, task_executors: int) -> Settings:
    return Settings(
        # Without leader election the clock numbers leaderships: a restarted ResourceManager has a
        # higher epoch.
        epoch=Epoch(time.time_ns() // 1_000_000),
        heartbeat_interval_s=conf.get(options.HEARTBEAT_INTERVAL),
        heartbeat_timeout_s=conf.get(options.HEARTBEAT_TIMEOUT),
        spread=conf.get(options.SPREAD_SLOTS),
        requirements_delay_s=conf.get(options.REQUIREMENTS_DELAY),
        idle_timeout_s=conf.get(options.TM_IDLE_TIMEOUT),
        recovery_timeout_s=conf.get(options.PREVIOUS_WORKER_TIMEOUT),
        initial_workers=task_executors,
        max_slots=conf.get(options.MAX_SLOTS),
        worker=_worker_spec(conf) if driver != "none" else None,
    )


def _worker_spec(conf: Configuration) -> WorkerSpec:
    """What a TaskExecutor of this configuration will bring; the first that registers corrects it."""
    slots, total, default_slot = slot_resources(conf)
    return WorkerSpec(slots=slots, total=total, default_slot=default_slot)


if __name__ == "__main__":
    main()
