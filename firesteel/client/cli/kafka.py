"""kafka transactions list, commit, abort: open transactions of jobs that no longer run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from firesteel.client.cli.arguments import name
from firesteel.common.units import counted
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from taskexecutor.executor.connectors.kafka.transactions import Transactions
    from taskexecutor.executor.connectors.kafka.verdicts import Description

Connect: TypeAlias = "Callable[[], AbstractContextManager[Transactions]]"

_CONNECT_S = 5.0
_PATIENCE_S = 10.0  # with a request


@click.group()
def kafka() -> None:
    """Inspects what jobs have left open in Apache Kafka."""


@kafka.group()
def transactions() -> None:
    """Lists, commits and aborts transactions of KafkaSink with delivery="exactly-once".

    A sink leaves the transaction of a checkpoint open until the checkpoint is complete. If the job
    is lost in between, for example because it was cancelled by force, the transaction stays open
    until it times out. Until then, consumers with isolation.level=read_committed do not read past
    its first records.

    \b
    What to do:
      the job still exists        nothing: a restart, or a start from its latest checkpoint or
                                  savepoint, commits what belongs to it, and aborts the rest
      the job never runs again    commit the transactions of its last complete checkpoint, if their
                                  records are wanted, and abort the others

    The brokers' credentials are properties of librdkafka. The value env:NAME stands for a variable
    of the environment, and file:PATH for the content of a file.
    """


def _connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--properties-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Lines KEY=VALUE with more properties.",
        ),
        click.option(
            "--property",
            "properties",
            multiple=True,
            metavar="KEY=VALUE",
            help="A property of the connection, such as security.protocol=SASL_SSL or"
            " sasl.password=env:KAFKA_PASSWORD. Repeatable.",
        ),
        click.option(
            "-b",
            "--bootstrap-servers",
            required=True,
            metavar="HOST:PORT,...",
            envvar="KAFKA_BOOTSTRAP_SERVERS",
            show_envvar=True,
            help="Brokers of the cluster.",
        ),
    ):
        command = option(command)
    return command


def _connects(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a connection, and passes `connect` instead of them."""

    @_connection_options
    @functools.wraps(command)
    def with_connection(
        bootstrap_servers: str,
        properties: tuple[str, ...],
        properties_file: Path | None,
        **parameters: Any,
    ) -> None:
        connect = partial(_connected, bootstrap_servers, properties, properties_file)
        command(connect=connect, **parameters)

    return with_connection


def _identity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("-y", "--yes", is_flag=True, help="Do not ask for a confirmation."),
        click.option("--epoch", type=int, metavar="N", help="The producer's epoch."),
        click.option(
            "--producer-id", type=int, metavar="N", help="The id of its producer, as listed."
        ),
    ):
        command = option(command)
    return command


@transactions.command(
    "list",
    epilog="\b\nExamples:\n"
    "  firesteel kafka transactions list -b localhost:9092\n"
    "  firesteel kafka transactions list -b broker:9093 --properties-file client.properties"
    " --prefix daily",
)
@click.option("--prefix", default="", metavar="PREFIX", help="Only ids that start with this.")
@click.option("--all", "every", is_flag=True, help="Also show ids without an open transaction.")
@_connects
def list_transactions(prefix: str, every: bool, connect: Connect) -> None:
    """Lists open transactions, the oldest first.

    The id of a sink's transaction is PREFIX-OPERATOR-SUBTASKofPARALLELISM-NUMBER; PREFIX is the
    sink's transactional_id_prefix. Readers are blocked by a transaction that has written to a
    partition and is neither committed nor aborted.
    """
    from firesteel.client.render.tables import console
    from firesteel.client.render.transactions import transactions as table

    with connect() as client:
        found = client.find(prefix, open_only=not every)
    if not found:
        kind = "transactional id" if every else "open transaction"
        starting = f" whose id starts with {prefix!r}" if prefix else ""
        click.echo(f"Found no {kind}{starting}. Ids that this user may not describe are hidden.")
        return
    console().print(table(found))


@transactions.command(
    epilog="\b\nExamples:\n"
    "  firesteel kafka transactions commit -b localhost:9092 daily-4be1c0a2-0of2-0"
    " --producer-id 1000 --epoch 3"
)
@click.argument("transactional_id", metavar="ID", type=name)
@_identity_options
@_connects
def commit(
    transactional_id: str,
    producer_id: int | None,
    epoch: int | None,
    yes: bool,
    connect: Connect,
) -> None:
    """Commits the open transaction of a transactional id: its records become visible.

    --producer-id and --epoch are required. They are in the output of `list`, and make sure that the
    transaction is the one that you have seen there.

    Records of a transaction that belongs to no complete checkpoint are written again when the job
    continues, and are then visible twice.
    """
    with connect() as client:
        found = _open_transaction(client, transactional_id, producer_id, epoch)
        _confirm(
            {transactional_id: found},
            "Commit it? If its job continues from a checkpoint without this transaction, the"
            " records are written twice.",
            yes=yes,
        )
        _end(client, transactional_id, found, commit=True)


@transactions.command(
    epilog="\b\nExamples:\n"
    "  firesteel kafka transactions abort -b localhost:9092 daily-4be1c0a2-0of2-0"
    " --producer-id 1000 --epoch 3\n"
    "  firesteel kafka transactions abort -b localhost:9092 --prefix daily-"
)
@click.argument("transactional_id", metavar="[ID]", required=False, type=name)
@click.option(
    "--prefix",
    metavar="PREFIX",
    type=name,
    help="Abort all open transactions whose ids start with this, instead of one.",
)
@_identity_options
@_connects
def abort(
    transactional_id: str | None,
    prefix: str | None,
    producer_id: int | None,
    epoch: int | None,
    yes: bool,
    connect: Connect,
) -> None:
    """Aborts the open transaction of a transactional id, or those of a prefix: its records never
    become visible.

    If a complete checkpoint contains the transaction, the records are lost: the job fails when it
    is restored from there.
    """
    if (transactional_id is None) == (prefix is None):
        raise click.UsageError("specify the ID of a transaction, or a --prefix")
    if prefix is not None and (producer_id, epoch) != (None, None):
        raise click.UsageError("--producer-id and --epoch identify one transaction: omit --prefix")
    with connect() as client:
        if transactional_id is not None:
            found = {
                transactional_id: _open_transaction(client, transactional_id, producer_id, epoch)
            }
        else:
            assert prefix is not None
            found = client.find(prefix, open_only=True)
            if not found:
                click.echo(f"Found no open transaction whose id starts with {prefix!r}.")
                return
        _confirm(
            found,
            f"Abort {'it' if len(found) == 1 else f'these {len(found)} transactions'}? If a job"
            " continues from a checkpoint with one of them, its records are lost.",
            yes=yes,
        )
        for each, description in found.items():
            _end(client, each, description, commit=False)


@contextmanager
def _connected(
    bootstrap_servers: str, properties: tuple[str, ...], properties_file: Path | None
) -> Iterator[Transactions]:
    from firesteel.common.installation import make_importable
    from firesteel.connectors.kafka.connection import connection

    make_importable()
    from taskexecutor.executor.connectors.kafka.clients import check_connection
    from taskexecutor.executor.connectors.kafka.transactions import Transactions

    given = {} if properties_file is None else _read(properties_file)
    given |= dict(_pair(text, "--property") for text in properties)
    reached = connection("--property", bootstrap_servers, given)
    check_connection(reached, _CONNECT_S)
    client = Transactions(reached, patience_s=_PATIENCE_S)
    try:
        yield client
    finally:
        client.close()


def _read(file: Path) -> dict[str, str]:
    """Returns the properties in a file of lines KEY=VALUE, `#` comments and blank lines. The
    address of the brokers is a parameter of the command.
    """
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    pairs = dict(_pair(line, str(file)) for line in lines if line and line[0] not in "#!")
    if "sasl.jaas.config" in pairs:
        raise FiresteelError(
            f"{file}: sasl.jaas.config is a property of Kafka's Java clients; set sasl.username and"
            " sasl.password instead"
        )
    pairs.pop("bootstrap.servers", None)
    return pairs


def _pair(text: str, where: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key:
        first_word = text.split()[0] if text.strip() else ""  # the rest may be a secret
        raise click.UsageError(f"{where}: {first_word!r} is not followed by =VALUE")
    return key, value


def _open_transaction(
    client: Transactions, transactional_id: str, producer_id: int | None, epoch: int | None
) -> Description:
    """Returns the open transaction of the id. Raises FiresteelError if there is none, or if it is
    not the producer's.
    """
    if producer_id is None or epoch is None:
        raise click.UsageError(
            "--producer-id and --epoch are required; `firesteel kafka transactions list` shows them"
        )
    found = client.describe(transactional_id)
    if found is None:
        raise FiresteelError(
            f"the brokers know no transactional id {transactional_id!r};"
            " `firesteel kafka transactions list --all` shows those that they know"
        )
    if not found.state.open:
        raise FiresteelError(
            f"transactional id {transactional_id} has no open transaction: its state is"
            f" {found.state.value}"
        )
    if (found.producer_id, found.epoch) != (producer_id, epoch):
        raise FiresteelError(
            f"the open transaction of {transactional_id} belongs to producer {found.producer_id},"
            f" epoch {found.epoch}, not to producer {producer_id}, epoch {epoch}; list the"
            " transactions again"
        )
    return found


def _confirm(found: Mapping[str, Description], question: str, *, yes: bool) -> None:
    from firesteel.client.render.tables import console
    from firesteel.client.render.transactions import transaction

    for each, description in found.items():
        console().print(transaction(each, description))
    if not yes:
        click.confirm(question, abort=True)


def _end(
    client: Transactions, transactional_id: str, confirmed: Description, *, commit: bool
) -> None:
    """Ends the transaction unless it has changed since it was shown: its producer may start the
    next one with the same epoch.
    """
    found = client.describe(transactional_id)
    if found != confirmed:
        state = "unknown" if found is None else found.state.value
        raise FiresteelError(
            f"the transaction of {transactional_id} has changed (state: {state}): its job may be"
            " running. Nothing was done; list the transactions again"
        )
    client.end(transactional_id, confirmed.producer_id, confirmed.epoch, commit=commit)
    records = counted(len(confirmed.partitions), "partition")
    done = "Committed" if commit else "Aborted"
    click.echo(f"{done} the transaction of {transactional_id} in {records}.")
