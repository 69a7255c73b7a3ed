"""`python -m taskexecutor`: one TaskExecutor."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import click

from firesteel.common import logs
from firesteel.common.config import Configuration, options, parse_definitions
from firesteel.common.ids import TaskExecutorId, random_id
from firesteel.common.metrics import Registry, add_process_metrics
from firesteel.common.platform import SYSTEM
from firesteel.common.process import announce_ready, temporary, watch_lifeline
from firesteel.errors import FiresteelError
from taskexecutor.configuration import settings_from
from taskexecutor.core.settings import Settings


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--resource-manager",
    required=True,
    metavar="HOST:PORT",
    help="The ResourceManager to register at. It may start later.",
)
@click.option(
    "--worker-id",
    default="",
    metavar="ID",
    help="Given by the driver that starts this process; leave it out by hand.",
)
@click.option(
    "--host",
    metavar="HOST",
    help=f"Interface to bind and address to be known by; else {options.BIND_HOST.key}.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="For logs, blobs and jobs' files; else a temporary one.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="A config.yaml; else $FIRESTEEL_CONF_DIR/config.yaml.",
)
@click.option(
    "-D",
    "definitions",
    multiple=True,
    metavar="KEY=VALUE",
    help="Overrides one key of the configuration. Repeatable.",
)
def main(
    resource_manager: str,
    worker_id: str,
    host: str | None,
    directory: Path | None,
    config: Path | None,
    definitions: tuple[str, ...],
) -> None:
    """Offers this machine's slots to a Firesteel cluster.

    Registers at the ResourceManager, keeps one warm PySpark executor process per slot, runs jobs'
    tasks in them and relays between them and the JobMasters. Slots come from
    taskmanager.numberOfTaskSlots, their default size from taskmanager.slot.heap.size,
    .off-heap.size, .network.size and taskmanager.memory.managed.fraction, or from
    taskmanager.memory.process.size for all of them together.

    Example, two slots for a ResourceManager on this machine:

    \b
        python -m taskexecutor --resource-manager 127.0.0.1:6124 -D taskmanager.numberOfTaskSlots=2

    SIGTERM ends it: masters are told, slots' processes are killed. They also end if this process is
    killed.
    """
    watch_lifeline()
    log = logs.configure("taskexecutor")
    try:
        conf = Configuration.load(config, parse_definitions(definitions))
        settings = settings_from(
            conf, task_executor_id=TaskExecutorId(random_id()), cores=len(os.sched_getaffinity(0))
        )
    except FiresteelError as error:
        raise click.ClickException(str(error)) from None
    for warning in conf.warnings:
        log.warning(warning)
    made = None
    if directory is None:
        directory = made = temporary.make("taskexecutor")
    try:
        asyncio.run(
            _serve(
                conf,
                settings,
                resource_manager=resource_manager,
                worker_id=worker_id,
                host=host or conf.get(options.BIND_HOST),
                directory=directory.resolve(),
            )
        )
    finally:
        if made is not None:
            temporary.remove(made)


async def _serve(
    conf: Configuration,
    settings: Settings,
    *,
    resource_manager: str,
    worker_id: str,
    host: str,
    directory: Path,
) -> None:
    from taskexecutor.shell import TaskExecutor  # after bad arguments have been refused

    metrics = Registry.from_configuration(conf)
    labels = {"host": host, "tm_id": settings.task_executor_id}
    add_process_metrics(metrics, scope="taskmanager", labels=labels)
    port = metrics.serve(host, conf.get(options.METRICS_PORT))
    task_executor = TaskExecutor(
        conf,
        settings,
        resource_manager_address=resource_manager,
        worker_id=worker_id,
        host=host,
        directory=directory,
        metrics=metrics,
        metrics_address=f"{host}:{port}",
        platform=SYSTEM,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task_executor.request_end, number.name)
    await task_executor.start()
    announce_ready(
        address=task_executor.address,
        metrics_address=f"{host}:{port}",
        task_executor_id=settings.task_executor_id,
    )
    await task_executor.stop(await task_executor.ended)
    metrics.close()


if __name__ == "__main__":
    main()
