"""All options as a page, docs/reference/configuration.md, which `markdown` returns."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from firesteel.common.config.options import OPTIONS, Option
from firesteel.common.units import shortest_duration, shortest_size

_HEAD = """\
# Configuration

Keys and values are those of Flink 2.x where Flink has them. Firesteel reads them from these places;
later ones override earlier ones:

1. `$FIRESTEEL_CONF_DIR/config.yaml`, with nested or flat keys,
2. `Environment(configuration={...})` in a program,
3. `-D key=value` on the command line.

A cluster reads its own configuration when it starts. The values of a program and of `run -D` apply
to that job. `spark.*` keys are passed to the SparkSessions of the job's slots. An unknown key is a
warning that names the nearest known key. An invalid value is an error that states what is allowed.

Durations are `500 ms`, `10 s`, `3 min`, `1 d`; a number without a unit is in milliseconds. Sizes
are `64 kb`, `1024m`, `2 gb`, in powers of 1024. Lists are `a;b;c` or `[a, b, c]`. Each entry below
gives the key, its default in parentheses, and its meaning.

`scripts/reference_pages.py` generates this page from `firesteel/common/config/options.py`.
"""


def markdown() -> str:
    """Returns the page, in lines of any length."""
    parts = [_HEAD]
    for section, options in groupby(OPTIONS.values(), key=lambda option: option.section):
        parts.append(f"\n## {section}\n\n")
        parts += [f"- `{option.key}`{_default(option)}: {_meaning(option)}\n" for option in options]
    return "".join(parts)


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
