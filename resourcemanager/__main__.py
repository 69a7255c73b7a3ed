"""The ResourceManager's process: `python -m resourcemanager`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
import time
from pathlib import Path

import structlog

from firesteel._proto import resource_manager_pb2, resource_manager_pb2_grpc
from firesteel.common import logs
from firesteel.common.config import Configuration, options, parse_definitions
from firesteel.common.ids import Epoch, IdSource
from firesteel.common.metrics import Registry, add_process_metrics
from firesteel.common.process import announce_ready, temporary, watch_lifeline
from firesteel.common.resources import ResourceProfile
from firesteel.common.rpc.server import AddressTaken, bind, new_server
from firesteel.errors import FiresteelError
from resourcemanager.core.core import SlotManager
from resourcemanager.core.settings import Settings
from resourcemanager.core.workers import WorkerSpec
from resourcemanager.driver import NoDriver, WorkerDriver
from resourcemanager.local_driver import LocalDriver
from resourcemanager.shell import ResourceManagerService

log = structlog.get_logger(__name__)

DESCRIPTION = """\
Firesteel's ResourceManager: TaskExecutors register their slots here, JobMasters declare how many they need, and free slots
are matched to them. It also starts TaskExecutors: N at once, which it keeps at N, and more when jobs need them.
"""
EXAMPLES = """\
examples:
  two TaskExecutors of two slots on this machine, and up to two more on demand:
      python -m resourcemanager --port 6124 --dir /tmp/firesteel --task-executors 2 \\
          -D taskmanager.numberOfTaskSlots=2 -D slotmanager.number-of-slots.max=8
  standalone, TaskExecutors are started by hand:
      python -m resourcemanager --port 6124 --driver none
      python -m taskexecutor --resource-manager 127.0.0.1:6124

keys it reads: slotmanager.number-of-slots.max, cluster.evenly-spread-out-slots, resourcemanager.taskmanager-timeout,
resourcemanager.previous-worker.recovery.timeout, slotmanager.requirement-check.delay, heartbeat.interval,
heartbeat.timeout, metrics.reporter.prom.port; all others are passed on to the TaskExecutors it starts.
"""


def main() -> None:
    watch_lifeline()
    arguments = _parser().parse_args()
    logs.configure("resourcemanager")
    try:
        asyncio.run(_serve(arguments))
    except (FiresteelError, AddressTaken) as error:
        log.error("the ResourceManager cannot go on", reason=str(error))
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m resourcemanager",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", help="interface to listen on (default: taskmanager.bind-host)")
    parser.add_argument(
        "--port",
        type=int,
        help="port to listen on, 0 for any free one (default: resourcemanager.rpc.port)",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        help="for the files and logs of its TaskExecutors (default: a temporary one)",
    )
    parser.add_argument(
        "--driver", choices=("local", "none"), default="local", help="who starts TaskExecutors"
    )
    parser.add_argument(
        "--task-executors",
        type=_count,
        default=0,
        metavar="N",
        help="keep N TaskExecutors running (default: 0)",
    )
    parser.add_argument("--config", type=Path, help="config.yaml")
    parser.add_argument(
        "-D",
        dest="definitions",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="sets a key; repeatable",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of TaskExecutors")
    return int(text)


async def _serve(arguments: argparse.Namespace) -> None:
    conf = Configuration.load(arguments.config, parse_definitions(arguments.definitions))
    for warning in conf.warnings:
        log.warning(warning)
    if arguments.driver == "none" and arguments.task_executors:
        raise FiresteelError(
            "--driver none starts no TaskExecutors: leave out --task-executors, or use --driver local"
        )
    host = arguments.host or conf.get(options.BIND_HOST)
    port = conf.get(options.RM_PORT) if arguments.port is None else arguments.port

    server = new_server([resource_manager_pb2.DESCRIPTOR.services_by_name["ResourceManager"]])
    address = bind(server, host, port)
    directory = arguments.dir.resolve() if arguments.dir else temporary.make()
    workers: WorkerDriver = NoDriver()
    if arguments.driver == "local":
        workers = LocalDriver(directory=directory, arguments=["--host", host, *conf.to_arguments()])
    core = SlotManager(_settings(conf, arguments.driver, arguments.task_executors), IdSource())
    service = ResourceManagerService(core, workers)
    resource_manager_pb2_grpc.add_ResourceManagerServicer_to_server(service, server)  # type: ignore[no-untyped-call]

    registry = Registry.from_configuration(conf)
    labels = {"host": socket.gethostname()}
    add_process_metrics(registry, scope="jobmanager", labels=labels)
    registry.add_source(lambda: service.metrics(labels))
    metrics_port = registry.serve(host, conf.get(options.METRICS_PORT))
    await server.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop)
    announce_ready(address=address, metrics_port=metrics_port)
    log.info(
        "the ResourceManager serves",
        address=address,
        metrics_port=metrics_port,
        directory=str(directory),
    )
    try:
        await service.run(address)
    finally:
        await workers.stop()
        service.close_streams()
        await server.stop(grace=0.5)
        registry.close()
        if arguments.dir is None:
            temporary.remove(directory)
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
    slots = conf.get(options.TASK_SLOTS)
    heap_bytes = conf.get(options.SLOT_HEAP)
    default = ResourceProfile(
        cpu_cores=(conf.get(options.TM_CPU_CORES) or slots) / slots,
        heap_bytes=heap_bytes,
        off_heap_bytes=conf.get(options.SLOT_OFF_HEAP),
        managed_bytes=int(heap_bytes * conf.get(options.MANAGED_FRACTION)),
        network_bytes=conf.get(options.SLOT_NETWORK),
    )
    return WorkerSpec(slots=slots, total=default * slots, default_slot=default)


if __name__ == "__main__":
    main()
