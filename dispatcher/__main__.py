"""`python -m dispatcher`: the Dispatcher's process."""

from __future__ import annotations

import socket
from dataclasses import replace

import click
import structlog

from dispatcher.service import Dispatcher
from firesteel.common.config import options
from firesteel.common.service.host import ServiceProcess, service_main
from firesteel.common.service.platform import SYSTEM, ForkedProcesses

log = structlog.get_logger(__name__)


@service_main("dispatcher", directory="required", port=options.RPC_PORT)
@click.option(
    "--resource-manager", required=True, metavar="HOST:PORT", help="The cluster's ResourceManager."
)
async def main(process: ServiceProcess, resource_manager: str) -> None:
    """Firesteel's Dispatcher: accepts jobs and runs each in a JobMaster process.

    Jobs, their files, collected rows and logs are kept in --dir; jobs in the database of
    database.url, if that is set.
    """
    host_label = socket.gethostname()
    dispatcher = Dispatcher(
        process.conf,
        host=process.host,
        port=process.port,
        directory=process.directory,
        resource_manager=resource_manager,
        registry=process.registry,
        host_label=host_label,
        log_path=process.log_path,
        platform=replace(SYSTEM, processes=ForkedProcesses()),
    )
    process.on_stop(lambda signal_name: dispatcher.stop())
    await dispatcher.start()
    process.announce_ready(
        address=dispatcher.address,
        metrics_address=process.serve_metrics(scope="jobmanager", labels={"host": host_label}),
    )
    log.info(
        "the Dispatcher serves", directory=str(process.directory), epoch=dispatcher.store.epoch
    )
    await dispatcher.run()
    log.info("the Dispatcher has stopped")


if __name__ == "__main__":
    main()
