"""`python -m jobmaster --dispatcher HOST:PORT`: one JobMaster process, for one job."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys

import structlog

from firesteel.common import logs, metrics
from firesteel.common.config import Configuration, ConfigurationError, options, parse_definitions
from firesteel.common.platform import SYSTEM
from firesteel.common.process import announce_ready, watch_lifeline
from firesteel.errors import FiresteelError
from jobmaster.process import JobMasterProcess

log = structlog.get_logger(__name__)


def main() -> int:
    watch_lifeline()
    parser = argparse.ArgumentParser(prog="python -m jobmaster", description=__doc__)
    parser.add_argument("--dispatcher", required=True, metavar="HOST:PORT")
    parser.add_argument(
        "--host", default=None, help="interface to bind (default: taskmanager.bind-host)"
    )
    parser.add_argument("--config", default=None, metavar="FILE")
    parser.add_argument("-D", action="append", default=[], dest="definitions", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    logs.configure("jobmaster")
    try:
        conf = Configuration.load(arguments.config, parse_definitions(arguments.definitions))
        host = arguments.host or conf.get(options.BIND_HOST)
    except ConfigurationError as error:
        print(f"jobmaster: {error}", file=sys.stderr)
        return 2
    asyncio.run(_main(conf, arguments.dispatcher, host))
    return 0


async def _main(conf: Configuration, dispatcher_address: str, host: str) -> None:
    registry = metrics.Registry.from_configuration(conf)
    process = JobMasterProcess(
        conf,
        dispatcher_address=dispatcher_address,
        host=host,
        platform=SYSTEM,
        registry=registry,
        metrics_address=_serve(registry, host, conf),
        # The graph lives as long as the process: no collection needs to walk through it.
        job_built=gc.freeze,
    )
    await process.start()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, process.stop)
    announce_ready(address=process.address, metrics_address=process.metrics_address)
    await process.run()
    registry.close()


def _serve(registry: metrics.Registry, host: str, conf: Configuration) -> str:
    """The address that /metrics is served at; empty if no port is free."""
    try:
        port = registry.serve(host, conf.get(options.METRICS_PORT))
    except FiresteelError as error:
        log.warning("no metrics", cause=str(error))
        return ""
    return f"{host}:{port}"


if __name__ == "__main__":
    sys.exit(main())
