"""Runs the process of the REST server: `python -m dispatcher.rest`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket

import click

from dispatcher.rest.gateway import Gateway
from dispatcher.rest.limits import Limits
from dispatcher.rest.oidc import OpenIdConnect
from dispatcher.rest.people import People
from dispatcher.rest.programs import Programs
from dispatcher.rest.proxy import TrustedProxy
from dispatcher.rest.server import RestServer
from firesteel.common.config import options
from firesteel.common.leader import Office, wait_for_leader
from firesteel.common.logs import get_logger
from firesteel.common.security.roles import Role
from firesteel.common.service.host import ServiceProcess, service_main
from firesteel.high_availability import elected, elected_address, leaders_of

log = get_logger(__name__)

LEADER_WITHIN_S = 2.0


@service_main("rest", role=Role.REST, directory="required")
@click.option(
    "--dispatcher",
    default="",
    metavar="HOST:PORT",
    help="The Dispatcher that it calls, unless it is elected.",
)
async def main(process: ServiceProcess, dispatcher: str) -> None:
    """The REST API, served on the socket that is its standard input. Its Dispatcher starts it.

    Uploaded programs are stored in --dir, unless web.upload.dir is set.
    """
    leaders = leaders_of(process.conf)
    leading = leaders.of(Office.DISPATCHER, dispatcher)
    gateway = Gateway(
        leading,
        process.security,
        conf=process.conf,
        cluster_name=elected_address(process.conf) if elected(process.conf) else dispatcher,
    )
    configured: list[str] = process.conf.get(options.REST_HOSTS)
    hosts = (process.host, socket.gethostname(), *configured)
    names = frozenset(host.lower() for host in hosts)
    programs = Programs(process.directory, process.conf)
    proxy = oidc = None
    if process.security is not None:
        people = People(process.conf, process.security)
        proxy = TrustedProxy(process.conf, process.security, people)
        oidc = OpenIdConnect(process.conf, people)
    server = RestServer(
        gateway,
        process.security,
        programs,
        hosts=names,
        limits=Limits(process.conf),
        proxy=proxy,
        oidc=oidc,
    )
    stopping = asyncio.Event()
    process.on_stop(lambda signal_name: stopping.set())
    await leaders.start()
    with contextlib.suppress(TimeoutError):  # the first request would be refused
        await asyncio.wait_for(wait_for_leader(leading), LEADER_WITHIN_S)
    await server.start(socket.socket(fileno=0))
    process.announce_ready(address=server.address)
    gc.freeze()
    await stopping.wait()
    await server.stop()
    await leaders.close()
    log.info("the REST server has stopped")


if __name__ == "__main__":
    main()
