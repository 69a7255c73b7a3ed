"""Writes the generated pages of docs/reference from the code: `make reference`.

    python scripts/reference_pages.py

Each page has one source: the options of the configuration, the catalogue of metrics, and the
commands of Click. `tests/unit/test_reference_pages.py` fails when a page is out of date.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from firesteel.client.cli import main
from firesteel.common import metric_reference
from firesteel.common.config import reference

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
WIDTH = 98
CLUSTER_COMMANDS = ("cluster", "service", "stop-task-executor")
SERVICES = ("dispatcher", "resourcemanager", "taskexecutor")
JOBS = """\
# Command line: jobs

`firesteel COMMAND --help` prints the same texts. JOB is the id of a job, a prefix of it, or a name.
[Run a session cluster](../how-to/session-cluster.md) explains how commands find their cluster, and
[Command line: clusters](command-line-clusters.md) has the commands that start one.

`scripts/reference_pages.py` generates this page from the commands.

## Options that select the cluster

Most commands have these options.
"""
CLUSTERS = """\
# Command line: clusters

These commands start, show and stop clusters and their processes. [Command
line: jobs](command-line.md) has all other commands.

`scripts/reference_pages.py` generates this page from the commands.
"""


def jobs() -> str:
    """Returns the page of the commands for jobs, with the options that select a cluster."""
    shared = _shared_options()
    parts = [JOBS, *map(_option, shared.values())]
    for name, command in main.commands.items():
        if name not in CLUSTER_COMMANDS:
            parts += _command(f"firesteel {name}", command, shared)
    return "\n".join(parts) + "\n"


def clusters() -> str:
    """Returns the page of the commands for clusters and of the services of a cluster."""
    shared = _shared_options()
    parts = [CLUSTERS]
    group = main.commands["cluster"]
    assert isinstance(group, click.Group)
    for verb, part in group.commands.items():
        parts += _command(f"firesteel cluster {verb}", part, shared)
    for name in ("stop-task-executor", "service"):
        parts += _command(f"firesteel {name}", main.commands[name], shared)
    for name in SERVICES:
        service = importlib.import_module(f"{name}.__main__").main
        parts += _command(f"firesteel service {name}", service, shared)
    return "\n".join(parts) + "\n"


def _shared_options() -> dict[str, click.Option]:
    """Returns the options that most commands have, -m and -z, as `firesteel list` has them."""
    command = main.commands["list"]
    names = ("address", "zookeeper")
    options = (o for o in command.params if isinstance(o, click.Option))
    return {o.name: o for o in options if o.name in names}


def _command(name: str, command: click.Command, shared: dict[str, click.Option]) -> Iterator[str]:
    context = click.Context(command, info_name=name, max_content_width=WIDTH)
    options = [o for o in command.params if isinstance(o, click.Option) and not o.hidden]
    own = [o for o in options if o.name not in shared]
    yield f"\n## {name}\n"
    yield f"```\n{name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    yield from _text(command.help or "")
    yield from (_option(option) for option in own)
    if len(own) < len(options):
        yield "- `-m`, `-z`: [select the cluster](command-line.md#options-that-select-the-cluster)."
    if command.epilog:
        examples = inspect.cleandoc(command.epilog.replace("\b\n", "")).removeprefix("Examples:\n")
        yield f"\n```\n{textwrap.dedent(examples)}\n```"


def _text(text: str) -> Iterator[str]:
    """Yields the paragraphs of a help text; indented ones are commands."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith((" ", "\b")):
            yield f"```\n{textwrap.dedent(paragraph.removeprefix(chr(8)).strip(chr(10)))}\n```\n"
        else:
            yield _filled(paragraph) + "\n"


def _option(option: click.Option) -> str:
    with click.Context(click.Command("firesteel")) as context:
        record = option.get_help_record(context)
    assert record is not None, option
    names, meaning = record
    return _filled(f"`{names}`: {_ended(' '.join(meaning.split()))}", "- ")


def _ended(text: str) -> str:
    """Returns the text with a full stop before what Click adds in brackets."""
    return re.sub(r"(?<![].\s])(\s+)\[", r".\1[", text)


def _filled(text: str, mark: str = "") -> str:
    indent = " " * len(mark)
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent=mark,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _wrapped(page: str) -> str:
    """Returns the page with list items in lines of at most WIDTH."""
    return "\n".join(
        _filled(line[2:], "- ")
        if line.startswith("- ")
        else _filled(line)
        if len(line) > WIDTH
        else line
        for line in page.split("\n")
    )


PAGES: dict[str, Callable[[], str]] = {
    "command-line.md": jobs,
    "command-line-clusters.md": clusters,
    "configuration.md": lambda: _wrapped(reference.markdown()),
    "metrics.md": lambda: _wrapped(metric_reference.markdown()),
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
