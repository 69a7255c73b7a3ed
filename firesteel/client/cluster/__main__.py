"""The supervisor's process: `python -m firesteel.client.cluster --dir DIR`, as `firesteel cluster
start` and LocalCluster start it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import structlog

from firesteel.client.cluster.directory import ClusterDirectory
from firesteel.client.cluster.supervisor import Supervisor
from firesteel.common import logs
from firesteel.common.config import Configuration, options, parse_definitions
from firesteel.common.process import StartFailed, announce_ready, watch_lifeline
from firesteel.errors import FiresteelError

log = structlog.get_logger(__name__)


def main() -> None:
    watch_lifeline()
    parser = argparse.ArgumentParser(
        prog="python -m firesteel.client.cluster", description="Runs a cluster on this machine."
    )
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--task-executors", type=int, default=2)
    parser.add_argument(
        "--port",
        type=int,
        help="of the Dispatcher, 0 for any free one (default: jobmanager.rpc.port)",
    )
    parser.add_argument("-D", dest="definitions", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    logs.configure("supervisor")
    directory = ClusterDirectory(arguments.dir)
    try:
        directory.acquire()
        directory.sweep()
        asyncio.run(_supervise(directory, arguments))
    except (FiresteelError, StartFailed, OSError) as error:
        announce_ready(error=str(error))
        log.error("the cluster cannot run", reason=str(error))
        sys.exit(1)
    finally:
        directory.release()


async def _supervise(directory: ClusterDirectory, arguments: argparse.Namespace) -> None:
    conf = Configuration(parse_definitions(arguments.definitions))
    port = conf.get(options.RPC_PORT) if arguments.port is None else arguments.port
    supervisor = Supervisor(
        conf=conf, directory=directory, task_executors=arguments.task_executors, port=port
    )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    starting = asyncio.create_task(supervisor.start())
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        state = starting.result()
        announce_ready(address=state.dispatcher_address, cluster_id=state.cluster_id)
        log.info(
            "the cluster is up",
            dispatcher=state.dispatcher_address,
            resource_manager=state.resource_manager_address,
        )
        await stop
    else:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    log.info("stopping the cluster")
    await supervisor.stop()


if __name__ == "__main__":
    main()
