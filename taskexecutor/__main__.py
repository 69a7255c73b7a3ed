"""`python -m taskexecutor`: one TaskExecutor."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import click

from firesteel.common import logs
from firesteel.common.config import Configuration, options, parse_definitions
from firesteel.common.ids import TaskExecutorId, random_id
from firesteel.common.process import announce_ready, temporary, watch_lifeline
from firesteel.common.resources import MINIMUM_HEAP_BYTES, ResourceProfile
from firesteel.errors import FiresteelError
from taskexecutor.core.process_shape import mib, total_and_default


def resources_from(conf: Configuration) -> tuple[int, ResourceProfile, ResourceProfile]:
    """Slots, total resources, default slot. Raises FiresteelError if a slot would be too small for
    Spark.
    """
    slots = conf.get(options.TASK_SLOTS)
    heap_bytes = conf.get(options.SLOT_HEAP)
    total, default_slot = total_and_default(
        slots=slots,
        process_bytes=conf.get(options.TM_PROCESS_SIZE),
        cpu_cores=conf.get(options.TM_CPU_CORES),
        default_slot=ResourceProfile(
            cpu_cores=1.0,
            heap_bytes=heap_bytes,
            off_heap_bytes=conf.get(options.SLOT_OFF_HEAP),
            managed_bytes=int(heap_bytes * conf.get(options.MANAGED_FRACTION)),
            network_bytes=conf.get(options.SLOT_NETWORK),
        ),
    )
    if default_slot.heap_bytes < MINIMUM_HEAP_BYTES:
        raise FiresteelError(
            f"a slot would have a heap of {mib(default_slot.heap_bytes)}, but Spark needs {mib(MINIMUM_HEAP_BYTES)}; "
            f"raise {options.TM_PROCESS_SIZE.key} or {options.SLOT_HEAP.key}, or lower {options.TASK_SLOTS.key} ({slots})"
        )
    return slots, total, default_slot


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
        slots, total, default_slot = resources_from(conf)
    except FiresteelError as error:
        raise click.ClickException(str(error)) from None
    for warning in conf.warnings:
        log.warning(warning)
    bound_host = host or conf.get(options.BIND_HOST)
    if directory is None:
        directory = temporary.make("taskexecutor")
        try:
            asyncio.run(
                _serve(
                    conf,
                    resource_manager,
                    worker_id,
                    bound_host,
                    directory,
                    slots,
                    total,
                    default_slot,
                )
            )
        finally:
            temporary.remove(directory)
    else:
        asyncio.run(
            _serve(
                conf,
                resource_manager,
                worker_id,
                bound_host,
                directory.resolve(),
                slots,
                total,
                default_slot,
            )
        )


async def _serve(
    conf: Configuration,
    resource_manager: str,
    worker_id: str,
    host: str,
    directory: Path,
    slots: int,
    total: ResourceProfile,
    default_slot: ResourceProfile,
) -> None:
    from taskexecutor.shell import TaskExecutor

    task_executor = TaskExecutor(
        conf,
        task_executor_id=TaskExecutorId(random_id()),
        resource_manager_address=resource_manager,
        worker_id=worker_id,
        host=host,
        directory=directory,
        slots=slots,
        total=total,
        default_slot=default_slot,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task_executor.request_end, number.name)
    await task_executor.start()
    announce_ready(
        address=task_executor.address,
        metrics_address=task_executor.metrics_address,
        task_executor_id=task_executor.task_executor_id,
    )
    await task_executor.stop(await task_executor.ended)


if __name__ == "__main__":
    main()
