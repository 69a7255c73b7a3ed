"""Runs the masters of a pod: `firesteel service masters`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import click

from firesteel.client.cluster.children import Children
from firesteel.client.masters.leadership import Leadership
from firesteel.client.masters.loopback import Relay
from firesteel.client.masters.metrics_secret import MetricsSecret
from firesteel.client.masters.output import Output
from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.config.configuration import CONF_DIR
from firesteel.common.logs import get_logger
from firesteel.common.metrics import parse_ports
from firesteel.common.process import StartFailed
from firesteel.common.security.listening import is_loopback_host
from firesteel.common.service.host import ServiceProcess, service_main
from firesteel.errors import FiresteelError
from firesteel.high_availability import elected
from firesteel.kubernetes.configuration import access_of, cluster_id_of

log = get_logger(__name__)

DISPATCHER, RESOURCE_MANAGER, APPLICATION = "dispatcher", "resourcemanager", "application"
STOP_GRACE_S = 20.0  # less than the grace period of the pod


@service_main("masters", directory="required", port=options.RPC_PORT)
@click.option(
    "--only",
    type=click.Choice([DISPATCHER, RESOURCE_MANAGER]),
    help="Run only this service, where each has its own pods.",
)
@click.option(
    "--task-executors",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Keep N TaskExecutors running.",
)
@click.option(
    "--application",
    is_flag=True,
    help="Delete the cluster once its job has ended.",
)
@click.option(
    "--program",
    default="",
    metavar="FILE",
    help="The program that submits the job of --application; else a client submits it.",
)
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
async def main(
    process: ServiceProcess,
    only: str | None,
    task_executors: int,
    application: bool,
    program: str,
    arguments: Sequence[str],
) -> None:
    """Runs the masters of a pod on Kubernetes: a Dispatcher, and a ResourceManager that runs
    TaskExecutors in pods.

    They read the configuration once, when the pod starts. A master that ends is restarted with the
    same configuration.

    With --application, the cluster has one job, whose id follows from kubernetes.cluster-id. FILE,
    a path or local:///PATH, is the program that submits it, with ARGS. It runs unless the job store
    has the job, so a pod that restarts resumes the job. After the job has ended and
    kubernetes.application.retention has passed, the Deployment is deleted, with all its objects.
    """
    if not elected(process.conf):
        raise ConfigurationError(
            f"{options.HA_TYPE.key}: masters on Kubernetes are elected; set it to kubernetes"
        )
    services = [only] if only else [RESOURCE_MANAGER, DISPATCHER]
    logs = process.directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    children = Children(
        lambda name: _command(process, name, only, task_executors, program, arguments),
        directory=process.directory,
        logs=logs,
    )
    output = Output([logs / f"{name}.log" for name in (*services, "rest", APPLICATION)])
    os.environ.pop(CONF_DIR, None)  # it may have changed when a service restarts
    stopping = asyncio.Event()
    process.on_stop(lambda signal_name: stopping.set())
    tasks = [asyncio.create_task(_until(stopping)), asyncio.create_task(output.run())]
    try:
        await children.start(*services)
        if application and DISPATCHER in services:
            await children.start(APPLICATION)
        children.keep()
        process.announce_ready(services=",".join(services))
        if pod := os.environ.get("POD_NAME"):
            leadership = Leadership(process.conf, pod=pod, host=process.host)
            tasks.append(asyncio.create_task(leadership.run()))
        if DISPATCHER in services and "POD_NAME" in os.environ:
            tasks.append(asyncio.create_task(MetricsSecret(process.conf).run()))
        if DISPATCHER in services and not is_loopback_host(process.host):
            tasks.append(asyncio.create_task(Relay(process.host, _ports(process)).run()))
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()  # a task that fails ends the pod's container, which is restarted
    except (StartFailed, OSError) as error:
        raise FiresteelError(str(error)) from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await children.stop(grace_s=STOP_GRACE_S)
        output.copy()
    log.info("the masters have stopped")


async def _until(event: asyncio.Event) -> None:
    await event.wait()


def _command(
    process: ServiceProcess,
    name: str,
    only: str | None,
    task_executors: int,
    program: str,
    arguments: Sequence[str],
) -> tuple[str, Sequence[str]]:
    """Returns the module and the arguments of a service."""
    common = [*process.conf.to_arguments(), "--host", process.host]
    common += ["--dir", str(process.directory)]
    if name == DISPATCHER:
        hosts = f"{options.REST_HOSTS.key}={';'.join(_rest_hosts(process.conf))}"
        return "dispatcher", [*common, "--port", str(process.port), "-D", hosts]
    if name == RESOURCE_MANAGER:
        own = ["--driver", "kubernetes", "--task-executors", str(task_executors)]
        if not only:  # the Dispatcher answers the probes of the pod
            own += ["-D", f"{options.HEALTH_PORT.key}=0"]
        return "resourcemanager", [*common, *own]
    own = ["--program", program] if program else []
    return "firesteel.client.masters.application", [*common, *own, "--", *arguments]


def _rest_hosts(conf: Configuration) -> list[str]:
    """Returns the host names of the REST API: as configured, and those of its Service."""
    service = f"{cluster_id_of(conf)}-rest"
    qualified = f"{service}.{access_of(conf).namespace}"
    names = (service, qualified, f"{qualified}.svc", f"{qualified}.svc.cluster.local")
    return [*conf.get(options.REST_HOSTS), *names]


def _ports(process: ServiceProcess) -> list[int]:
    """Returns the ports of the Dispatcher and of its REST API."""
    rest = process.conf.get(options.REST_PORT)
    return [process.port, *(parse_ports(rest, options.REST_PORT.key)[:1] if rest else ())]


if __name__ == "__main__":
    main()
