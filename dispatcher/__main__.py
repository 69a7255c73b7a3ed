"""Runs the Dispatcher's process: `python -m dispatcher`."""

from __future__ import annotations

import socket
from dataclasses import replace

import click

from dispatcher.job_store import job_store_facts
from dispatcher.rest.process import RestProcess, listen
from dispatcher.service import Dispatcher, job_store_url
from dispatcher.shared_storage import SharedStorage
from dispatcher.spark_connect import SparkConnectProcess
from firesteel.common.config import options
from firesteel.common.ids import Epoch
from firesteel.common.leader import LeaderElection, Office
from firesteel.common.logs import get_logger
from firesteel.common.metrics import parse_ports
from firesteel.common.security.listening import is_loopback_host
from firesteel.common.security.roles import Role
from firesteel.common.service.host import ServiceProcess, service_main
from firesteel.common.service.platform import ForkedProcesses
from firesteel.high_availability import check_address, elected, election_of

log = get_logger(__name__)


@service_main("dispatcher", role=Role.DISPATCHER, directory="required", port=options.RPC_PORT)
@click.option(
    "--resource-manager",
    default="",
    metavar="HOST:PORT",
    help="Address of the cluster's ResourceManager, unless it is elected (high-availability.type).",
)
async def main(process: ServiceProcess, resource_manager: str) -> None:
    """Firesteel's Dispatcher: accepts jobs and runs each in a JobMaster process.

    Jobs, their files, collected rows and logs are stored in --dir. If database.url is set, jobs are
    stored in that database instead; if high-availability.storageDir is set, files and rows are
    stored there. With high-availability.type: zookeeper or kubernetes, one of several Dispatchers
    leads and the others stand by.
    """
    check_address(process.conf, "--resource-manager", resource_manager)
    host_label = socket.gethostname()
    dispatcher = Dispatcher(
        process.conf,
        host=process.host,
        port=process.port,
        directory=process.directory,
        resource_manager=resource_manager,
        registry=process.registry,
        election=_election(process),
        claim_storage=lambda: _claim_storage(process),
        host_label=host_label,
        log_path=process.log_path,
        platform=replace(process.platform, processes=ForkedProcesses()),
    )
    process.on_stop(lambda signal_name: dispatcher.stop())
    await dispatcher.start()
    await process.serve_health()
    rest = _serve_rest(process, dispatcher.address)
    if rest is not None:
        tls = process.security is not None and process.security.tls
        dispatcher.rest_url = f"http{'s' * tls}://{rest.address}/"
    spark_connect = _serve_spark_connect(process, dispatcher)
    process.announce_ready(
        address=dispatcher.address,
        rest_address=rest.address if rest else "",
        spark_connect_url=dispatcher.spark_connect_url,
        metrics_address=process.serve_metrics(scope="jobmanager", labels={"host": host_label}),
    )
    try:
        await dispatcher.run()
    finally:
        if rest is not None:
            await rest.stop()
        if spark_connect is not None:
            await spark_connect.stop()
    log.info("the Dispatcher has stopped")


def _serve_rest(process: ServiceProcess, dispatcher: str) -> RestProcess | None:
    """Serves the REST API at the first free port. None if there is none, or it is not wanted."""
    conf, log_path = process.conf, process.log_path
    if not conf.get(options.REST_PORT):
        return None
    ports = parse_ports(conf.get(options.REST_PORT), options.REST_PORT.key)
    listener = listen(process.host, ports)
    if listener is None:
        log.warning("no REST API: no port is free", ports=conf.get(options.REST_PORT))
        return None
    directory = str(process.directory / "rest")
    to = () if elected(conf) else ("--dispatcher", dispatcher)
    return RestProcess(
        listener,
        ["--host", process.host, "--dir", directory, *to, *conf.to_arguments()],
        log_path and log_path.with_name(log_path.name.replace("dispatcher", "rest")),
    )


def _serve_spark_connect(
    process: ServiceProcess, dispatcher: Dispatcher
) -> SparkConnectProcess | None:
    """Serves Spark Connect at the configured port. None if none is configured."""
    conf, log_path = process.conf, process.log_path
    if not (port := conf.get(options.SPARK_CONNECT_PORT)):
        return None
    # PySpark sends a token without TLS to the host of this name only.
    shown = "localhost" if is_loopback_host(process.host) else process.host
    tls = process.security is not None and process.security.tls
    dispatcher.spark_connect_url = (
        f"sc://{f'[{shown}]' if ':' in shown else shown}:{port}/{';use_ssl=true' * tls}"
    )
    to = () if elected(conf) else ("--dispatcher", dispatcher.address)
    return SparkConnectProcess(
        process.host,
        port,
        [*to, *conf.to_arguments()],
        log_path and log_path.with_name(log_path.name.replace("dispatcher", "spark-connect")),
    )


def _election(process: ServiceProcess) -> LeaderElection:
    if not elected(process.conf):
        return election_of(process.conf, Office.DISPATCHER)
    store_id, epoch = job_store_facts(job_store_url(process.conf, process.directory))
    storage = SharedStorage.of(process.conf, process.directory)
    storage.check(store_id=store_id, had_leader=epoch > 0)
    return election_of(process.conf, Office.DISPATCHER, store_id=store_id, above=Epoch(epoch))


def _claim_storage(process: ServiceProcess) -> None:
    """Claims the storage for the job store: no other Dispatcher leads now, so its content is
    theirs.
    """
    if elected(process.conf) or process.conf.get(options.HA_STORAGE_DIR):
        storage = SharedStorage.of(process.conf, process.directory)
        store_id, epoch = job_store_facts(job_store_url(process.conf, process.directory))
        storage.claim(store_id=store_id, had_leader=epoch > 0)


if __name__ == "__main__":
    main()
