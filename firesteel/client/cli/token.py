"""token create, list, revoke, whoami; audit: who may use a cluster, and who has done what."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.client.cli.arguments import address_option, connect, name, resolve_job
from firesteel.common.security.roles import PEOPLE
from firesteel.common.units import parse_duration_s
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from firesteel.common.rpc.access_messages import CreatedToken, TokenDescription

_ROLES = [role.value for role in PEOPLE]


@click.group()
def token() -> None:
    """Creates, lists and revokes the tokens with which others use a cluster.

    \b
    Roles, each of which includes those before it:
      viewer     sees jobs, metrics and logs
      operator   cancels, stops and removes jobs, takes savepoints, reads results
      submitter  submits jobs, which is to run code as the user of the cluster
      admin      stops TaskExecutors, creates and revokes tokens

    The user who has started a cluster needs no token: its commands find the administrator's.
    """


@token.command(
    epilog="\b\nExamples:\n"
    "  firesteel token create grafana --role viewer --valid 365d\n"
    "  firesteel token create ada --role submitter --own-jobs --out ada-credentials"
)
@click.argument("subject", metavar="NAME", type=name)
@click.option("--role", type=click.Choice(_ROLES), required=True, help="What its bearer may do.")
@click.option(
    "--own-jobs",
    is_flag=True,
    help="Let an operator or submitter act on jobs alone that NAME has submitted. All are shown.",
)
@click.option(
    "--valid",
    metavar="DURATION",
    default="30d",
    show_default=True,
    help="How long it is valid, such as 8h or 90d.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the token and a client's certificate to a new folder, for security.directory, "
    "instead of printing the token.",
)
@address_option(otherwise="localhost:6123")
def create(
    subject: str, role: str, own_jobs: bool, valid: str, out: Path | None, address: str | None
) -> None:
    """Creates a token for NAME and prints it. It is shown only now."""
    try:
        valid_s = parse_duration_s(valid)
    except ValueError:
        raise click.UsageError(f"--valid: {valid!r} is not a duration, such as 8h or 90d") from None
    if out is not None and out.exists():
        raise click.UsageError(f"--out: {out} exists; name a new folder")
    with connect(address) as client:
        created = client.create_token(subject, role, valid_s=int(valid_s), own_jobs=own_jobs)
    expires = time.strftime("%Y-%m-%d %H:%M", time.localtime(created.description.expires_ms / 1000))
    click.echo(
        f"Token {created.description.token_id} of {subject} ({role}), until {expires}.", err=True
    )
    if out is None:
        click.echo(created.token)
    else:
        _write(out, created)
        click.echo(
            f"Written to {out}. Use it with -D security.directory={out.resolve()}.", err=True
        )


def _write(folder: Path, created: CreatedToken) -> None:
    """Writes the credentials of a client; see firesteel.common.security.folder."""
    folder.mkdir(mode=0o700, parents=True)
    for file, content in {
        "authority.pem": created.authority,
        "client.pem": created.certificate,
        "client.key": created.key,
        "client.token": f"{created.token}\n".encode(),
    }.items():
        with open(os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as to:
            to.write(content)


@token.command("list")
@address_option(otherwise="localhost:6123")
def list_tokens(address: str | None) -> None:
    """Lists the tokens that were created, the newest first."""
    from firesteel.client.render.tables import clock, console, new_table

    with connect(address) as client:
        tokens = client.tokens()
    if not tokens:
        click.echo("No tokens were created.")
        return
    table = new_table("Id", "Name", "Role", "State", "Expires", "Created by", gives_way=("Name",))
    for each in tokens:
        state, expires = _state(each), clock(each.expires_ms)
        role = f"{each.role} of own jobs" if each.own_jobs else each.role
        table.add_row(each.token_id, each.subject, role, state, expires, each.created_by)
    console().print(table)


def _state(description: TokenDescription) -> str:
    if description.revoked_ms:
        return "revoked"
    return "valid" if description.expires_ms > time.time() * 1000 else "expired"


@token.command()
@click.argument("token_id", metavar="ID", type=name)
@address_option(otherwise="localhost:6123")
def revoke(token_id: str, address: str | None) -> None:
    """Revokes the token with this id, or start of an id. It is refused from now on."""
    with connect(address) as client:
        meant = [each for each in client.tokens() if each.token_id.startswith(token_id.lower())]
        if len(meant) != 1:
            count = "no token" if not meant else f"{len(meant)} tokens"
            raise FiresteelError(f"{count} with id {token_id!r}; `firesteel token list` shows them")
        client.revoke_token(meant[0].token_id)
    click.echo(f"Token {meant[0].token_id} of {meant[0].subject} is revoked.")


@token.command()
@address_option(otherwise="localhost:6123")
def whoami(address: str | None) -> None:
    """Shows the name and the role in which the commands of this user act on a cluster."""
    with connect(address) as client:
        subject, role = client.who_am_i()
    click.echo(f"{subject} ({role})")


@click.command(epilog="\b\nExamples:\n  firesteel audit\n  firesteel audit --job 3f2a --limit 1000")
@click.option(
    "--job", metavar="JOB", default="", help="Only entries of this job: its id, or the start of it."
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Maximum number of entries.",
)
@address_option(otherwise="localhost:6123")
def audit(job: str, limit: int, address: str | None) -> None:
    """Shows who has changed something on a cluster, and whose calls were refused, the newest
    first.
    """
    from firesteel.client.render.tables import clock, console, new_table

    with connect(address) as client:
        job_id = resolve_job(client, job) if job else ""
        entries = client.audit(limit=limit, job_id=job_id)
    table = new_table("Time", "Who", "Role", "Action", "Job", "Outcome", "From")
    for each in entries:
        who = each.subject or "unknown"
        at = clock(each.time_ms)
        outcome = each.outcome if each.count == 1 else f"{each.outcome} x {each.count:,}"
        table.add_row(at, who, each.role, each.action, each.job_id, outcome, each.address)
    console().print(table)
