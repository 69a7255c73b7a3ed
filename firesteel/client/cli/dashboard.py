"""dashboard: opens the dashboard in a browser, logged in."""

from __future__ import annotations

import contextlib
import html
import os
import threading
import webbrowser
from pathlib import Path

import click

from firesteel.client.cli.arguments import address_option, connect, name, resolve_job
from firesteel.errors import FiresteelError


@click.command(
    epilog="\b\nExamples:\n"
    "  firesteel dashboard\n"
    "  firesteel dashboard 8a3f\n"
    "  firesteel dashboard --no-open -m host:6123"
)
@click.argument("job", metavar="[JOB]", required=False, type=name)
@click.option("--no-open", is_flag=True, help="Print the address instead of opening a browser.")
@address_option(otherwise="localhost:6123")
def dashboard(job: str | None, no_open: bool, address: str | None) -> None:
    """Opens the dashboard of a cluster, or the page of JOB, in a browser.

    The browser is logged in with the token of this user: with a code in the address, which is valid
    once, within a minute. The dashboard of a cluster on Kubernetes is reached through a
    port-forward, which lasts until Ctrl-C.
    """
    with connect(address) as client:
        url = client.dashboard_url()
        if not url:
            raise FiresteelError(
                f"the cluster at {client.address} has no dashboard: rest.port is empty, or no port"
                " of its range was free"
            )
        page = f"/jobs/{resolve_job(client, job)}" if job else "/"
        code = client.login_code(url)
        link = f"{url}#/login?code={code}&next={page}" if code else f"{url}#{page}"
        if no_open or not _opened(link):
            click.echo(link)
        else:
            click.echo(f"Opened {url} in a browser.")
        if client.forwards:
            click.echo("Ctrl-C ends the connection to the cluster.", err=True)
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()


def _opened(link: str) -> bool:
    """Opens the link through a file that only this user can read: other users see the arguments of
    a browser's process.
    """
    path = Path.home() / ".firesteel" / "dashboard.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        target = html.escape(f"0; url={link}")
        file.write(
            f'<!doctype html><meta charset="utf-8"><title>Firesteel</title>'
            f'<meta http-equiv="refresh" content="{target}"><a href="{html.escape(link)}">Open the'
            " dashboard</a>\n"
        )
    return webbrowser.open(path.as_uri())
