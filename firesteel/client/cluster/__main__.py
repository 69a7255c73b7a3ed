"""Runs the supervisor's process: `python -m firesteel.client.cluster --dir DIR`."""

from __future__ import annotations

import asyncio
import sys

import click

from firesteel.client.cluster.directory import ClusterDirectory
from firesteel.client.cluster.supervisor import Supervisor
from firesteel.common.config import options
from firesteel.common.logs import get_logger
from firesteel.common.process import StartFailed, announce_ready
from firesteel.common.service.host import ServiceProcess, service_main
from firesteel.errors import FiresteelError

log = get_logger(__name__)


@service_main("supervisor", directory="required", port=options.RPC_PORT)
@click.option(
    "--task-executors",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    metavar="N",
    help="Keep N TaskExecutors running.",
)
@click.option(
    "--masters",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Keep N Dispatchers and N ResourceManagers running.",
)
async def main(process: ServiceProcess, task_executors: int, masters: int) -> None:
    """Runs a cluster on this machine; `firesteel cluster start` starts it."""
    directory = ClusterDirectory(process.directory)
    try:
        directory.acquire()
        directory.sweep()
        await _supervise(process, directory, task_executors, masters)
    except (FiresteelError, StartFailed, OSError) as error:
        announce_ready(error=str(error))
        log.error("the cluster cannot run", reason=str(error))
        sys.exit(1)
    finally:
        directory.release()


async def _supervise(
    process: ServiceProcess, directory: ClusterDirectory, task_executors: int, masters: int
) -> None:
    supervisor = Supervisor(
        conf=process.conf,
        directory=directory,
        task_executors=task_executors,
        port=process.port,
        masters=masters,
    )
    stopping = asyncio.Event()
    process.on_stop(lambda signal_name: stopping.set())
    starting = asyncio.create_task(supervisor.start())
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        state = starting.result()
        process.announce_ready(
            address=state.dispatcher_address,
            resource_manager=state.resource_manager_address,
            cluster_id=state.cluster_id,
        )
        await stop
    else:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    log.info("stopping the cluster")
    await supervisor.stop()


if __name__ == "__main__":
    main()
