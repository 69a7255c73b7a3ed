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
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from firesteel.client.cli import main
from firesteel.common import metric_reference
from firesteel.common.config.options import OPTIONS, Option
from firesteel.common.units import shortest_duration, shortest_size

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
CHART_VALUES = FOLDER.parents[1] / "deploy/kubernetes/helm/firesteel/values.yaml"
WIDTH = 98
CLUSTER_COMMANDS = ("cluster", "service", "stop-task-executor", "token", "audit")
PROGRAM_COMMANDS = ("run", "pipelines", "import-spark-checkpoint", "info", "package")
ACCESS_SECTIONS = ("Limits of the REST API", "People who log in elsewhere", "Security")
SERVICES = ("dispatcher", "resourcemanager", "taskexecutor")
JOBS = """\
# Command line: jobs

`firesteel COMMAND --help` prints the same texts. JOB is the id of a job, a prefix of it, or a name.
[Run a session cluster](../how-to/session-cluster.md) explains how commands find their cluster, and
[Command line: programs](command-line-programs.md) has the commands that run programs, and
[Command line: clusters](command-line-clusters.md) those that start clusters.

`scripts/reference_pages.py` generates this page from the commands.

## Options that select the cluster

Most commands have these options.
"""
PROGRAMS = """\
# Command line: programs

These commands run programs and package them. [Command line: jobs](command-line.md) has the
commands for their jobs.

`scripts/reference_pages.py` generates this page from the commands.
"""
CLUSTERS = """\
# Command line: clusters

These commands start, show and stop clusters and their processes, and manage who may use them.
[Command line: jobs](command-line.md) has all other commands.

`scripts/reference_pages.py` generates this page from the commands.
"""

CONFIGURATION = """\
# Configuration

Keys and values are those of Flink 2.x where Flink has them. Firesteel reads them from these
places; later ones override earlier ones:

1. `$FIRESTEEL_CONF_DIR/config.yaml`, with nested or flat keys,
2. `Environment(configuration={...})` in a program,
3. `-D key=value` on the command line.

A cluster reads its own configuration when it starts. The values of a program and of `run -D`
apply to that job. `spark.*` keys are passed to the SparkSessions of the job's slots. An
unknown key is a warning that names the nearest known key. An invalid value is an error that
states what is allowed.

Durations are `500 ms`, `10 s`, `3 min`, `1 d`; a number without a unit is in milliseconds.
Sizes are `64 kb`, `1024m`, `2 gb`, in powers of 1024. Lists are `a;b;c` or `[a, b, c]`. Each
entry below gives the key, its default in parentheses, and its meaning. [Configuration:
access](configuration-access.md) has the keys of security and of the limits of the REST API,
[Configuration: Kubernetes](configuration-kubernetes.md) those of Kubernetes, and
[Configuration: rescaling](configuration-scaling.md) those of rescaling.

`scripts/reference_pages.py` generates this page from `firesteel/common/config/options.py`.
"""
ACCESS = """\
# Configuration: access

These keys secure a cluster and limit the clients of its REST API.
[Configuration](configuration.md) has all other keys, and explains how they are set.

`scripts/reference_pages.py` generates this page from `firesteel/common/config/options.py`.
"""
KUBERNETES = """\
# Configuration: Kubernetes

These keys find the API of Kubernetes, and configure the pods in which a ResourceManager runs
TaskExecutors (`--driver kubernetes`), and the cluster that `firesteel` deploys.
[Configuration](configuration.md) has all other keys, and explains how they are set. [Decision
62](../decisions/0062-the-resourcemanager-creates-pods.md) describes the pods.

`scripts/reference_pages.py` generates this page from `firesteel/common/config/options.py`.
"""
KUBERNETES_SECTION = "Kubernetes"
SCALING = """\
# Configuration: rescaling

These keys let jobs change their parallelism while they run ([rescale
jobs](../how-to/scale.md)). [Configuration](configuration.md) has all other keys, and explains how
they are set.

`scripts/reference_pages.py` generates this page from `firesteel/common/config/options.py`.
"""
SCALING_SECTION = "Rescaling"
CHART = """\
# Values of the Helm chart

These are the values of [deploy/kubernetes/helm/firesteel](../../deploy/kubernetes/helm/firesteel),
with their defaults in parentheses. [The guide](../how-to/kubernetes-guide.md) uses them.

`scripts/reference_pages.py` generates this page from the comments in the chart's `values.yaml`.

"""


def jobs() -> str:
    """Returns the page of the commands for jobs, with the options that select a cluster."""
    shared = _shared_options()
    parts = [JOBS, *map(_option, shared.values())]
    for name, command in main.commands.items():
        if name not in CLUSTER_COMMANDS + PROGRAM_COMMANDS:
            parts += _command(f"firesteel {name}", command, shared)
    return "\n".join(parts) + "\n"


def programs() -> str:
    """Returns the page of the commands for programs."""
    shared = _shared_options()
    parts = [PROGRAMS]
    for name in PROGRAM_COMMANDS:
        command = main.commands[name]
        parts += _command(f"firesteel {name}", command, shared)
        if isinstance(command, click.Group):
            for verb, part in command.commands.items():
                parts += _command(f"firesteel {name} {verb}", part, shared)
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
    for name in (*SERVICES, "masters"):
        module = "firesteel.client.masters" if name == "masters" else name
        service = importlib.import_module(f"{module}.__main__").main
        parts += _command(f"firesteel service {name}", service, shared)
    return "\n".join(parts) + "\n"


def configuration() -> str:
    """Returns the page of all options but those of the other pages."""
    others = (*ACCESS_SECTIONS, KUBERNETES_SECTION, SCALING_SECTION)
    return _options(CONFIGURATION, lambda section: section not in others)


def access() -> str:
    """Returns the page of the options of security and of the limits of the REST API."""
    return _options(ACCESS, lambda section: section in ACCESS_SECTIONS)


def kubernetes() -> str:
    """Returns the page of the options of TaskExecutors in pods."""
    return _options(KUBERNETES, lambda section: section == KUBERNETES_SECTION)


def scaling() -> str:
    """Returns the page of the options of rescaling."""
    return _options(SCALING, lambda section: section == SCALING_SECTION)


def _options(introduction: str, wanted: Callable[[str], bool]) -> str:
    parts = [introduction]
    shown = (option for option in OPTIONS.values() if wanted(option.section))
    for section, options in groupby(shown, key=lambda option: option.section):
        parts.append(f"\n## {section}\n\n")
        parts += [f"- `{option.key}`{_default(option)}: {_meaning(option)}\n" for option in options]
    return _wrapped("".join(parts))


def default_text(option: Option[Any]) -> str:
    """Returns the default as it is written in a file; empty if there is none."""
    default = option.default
    match option.kind:
        case "duration":
            return shortest_duration(default)
        case "size":
            return shortest_size(default)
        case "bool":
            return "true" if default else "false"
        case "list":
            return ";".join(default)
        case _:
            return f"{default:g}" if isinstance(default, float) else str(default)


def _default(option: Option[Any]) -> str:
    text = default_text(option)
    return f" (`{text}`)" if text else ""


def _meaning(option: Option[Any]) -> str:
    choices = (
        f" One of {', '.join(f'`{choice}`' for choice in option.choices)}."
        if option.choices
        else ""
    )
    return option.doc.replace("<", "&lt;") + choices


def _shared_options() -> dict[str, click.Option]:
    """Returns the options that select the cluster, as `firesteel list` has them."""
    command = main.commands["list"]
    names = ("address", "zookeeper", "cluster_target", "cluster_definitions")
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
        names = ", ".join(f"`{option.opts[0]}`" for option in options if option.name in shared)
        yield f"- {names}: [select the cluster](command-line.md#options-that-select-the-cluster)."
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


def chart() -> str:
    """Returns the page of the chart's values: each has a comment above it."""
    parts, comment, above = [CHART], [], []
    for line in CHART_VALUES.read_text().splitlines():
        text = line.strip()
        if text.startswith("# "):
            comment.append(text[2:])
            continue
        if text and comment and (found := re.fullmatch(r"([\w-]+):\s*(.*)", text)):
            above = [*above[: (len(line) - len(text)) // 2], found[1]]
            default = f" (`{found[2]}`)" if found[2] not in ("", '""', "{}", "[]") else ""
            entry = f"- `{'.'.join(above)}`{default}: {' '.join(comment)}"
            parts.append(textwrap.fill(entry, WIDTH, subsequent_indent="  ") + "\n")
        elif text.endswith(":"):
            above = [*above[: (len(line) - len(text)) // 2], text[:-1]]
        comment = []
    return "".join(parts)


PAGES: dict[str, Callable[[], str]] = {
    "command-line.md": jobs,
    "command-line-programs.md": programs,
    "command-line-clusters.md": clusters,
    "configuration.md": configuration,
    "configuration-access.md": access,
    "configuration-kubernetes.md": kubernetes,
    "configuration-scaling.md": scaling,
    "helm-chart.md": chart,
    "metrics.md": lambda: _wrapped(metric_reference.markdown()),
    "metrics-kafka.md": lambda: _wrapped(metric_reference.kafka_markdown()),
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
