"""The Dispatcher's process: `python -m dispatcher --resource-manager HOST:PORT --dir DIR`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
from pathlib import Path

import structlog

from dispatcher.job_store import JobStore
from dispatcher.servicer import DispatcherService
from dispatcher.shell import Shell
from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc
from firesteel.common import logs
from firesteel.common.config import Configuration, options, parse_definitions
from firesteel.common.metrics import Registry, add_process_metrics
from firesteel.common.process import announce_ready, watch_lifeline
from firesteel.common.rpc.server import bind, new_server
from firesteel.errors import FiresteelError

log = structlog.get_logger(__name__)


def main() -> None:
    watch_lifeline()
    parser = argparse.ArgumentParser(
        prog="python -m dispatcher", description="Firesteel's Dispatcher."
    )
    parser.add_argument("--host", help="interface to listen on (default: taskmanager.bind-host)")
    parser.add_argument(
        "--port",
        type=int,
        help="port to listen on, 0 for any free one (default: jobmanager.rpc.port)",
    )
    parser.add_argument("--resource-manager", required=True, metavar="HOST:PORT")
    parser.add_argument(
        "--dir", type=Path, required=True, help="where jobs, files, results and logs are kept"
    )
    parser.add_argument("--config", type=Path, help="config.yaml")
    parser.add_argument("-D", dest="definitions", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    logs.configure("dispatcher")
    try:
        asyncio.run(_serve(arguments))
    except FiresteelError as error:
        log.error("the Dispatcher cannot go on", reason=str(error))
        sys.exit(1)


async def _serve(arguments: argparse.Namespace) -> None:
    conf = Configuration.load(arguments.config, parse_definitions(arguments.definitions))
    for warning in conf.warnings:
        log.warning(warning)
    directory: Path = arguments.dir.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    host = arguments.host or conf.get(options.BIND_HOST)
    port = conf.get(options.RPC_PORT) if arguments.port is None else arguments.port
    registry = Registry.from_configuration(conf)
    labels = {"host": socket.gethostname()}
    add_process_metrics(registry, scope="jobmanager", labels=labels)

    conf.get(options.PAYLOAD_LIMIT)  # a bad value is told now, not to the first client
    server = new_server([dispatcher_pb2.DESCRIPTOR.services_by_name["Dispatcher"]])
    address = bind(
        server, host, port
    )  # before the store is taken over: a second start must not disturb the first
    store = JobStore(conf.get(options.DATABASE_URL) or JobStore.sqlite_url(directory))
    shell = Shell(
        conf=conf,
        directory=directory,
        resource_manager=arguments.resource_manager,
        store=store,
        registry=registry,
        host=labels["host"],
    )
    shell.address = address
    dispatcher_pb2_grpc.add_DispatcherServicer_to_server(DispatcherService(shell), server)
    await server.start()
    metrics_port = registry.serve(host, conf.get(options.METRICS_PORT))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shell.stop)
    announce_ready(address=address, metrics_port=metrics_port)
    log.info(
        "the Dispatcher serves",
        address=address,
        metrics_port=metrics_port,
        directory=str(directory),
        epoch=store.epoch,
    )
    try:
        await shell.run()
    finally:
        await server.stop(grace=0.5)
        store.close()
        registry.close()
    log.info("the Dispatcher has stopped")


if __name__ == "__main__":
    main()
