"""All options as a page for people: docs/configuration.md is what `markdown()` returns."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from firesteel.common.config.options import OPTIONS, Option
from firesteel.common.units import shortest_duration, shortest_size

_HEAD = """# Configuration

Every key that Firesteel reads; keys and values are Flink 2.x's where Flink has them. They are set, the later
winning, in `$FIRESTEEL_CONF_DIR/config.yaml` (nested or flat keys), in a program by `Environment(configuration={...})`, and
by `-D key=value` on the command line. A cluster reads its own when it is started; what a program and `run -D` set concerns
that job. Any `spark.*` key goes to the SparkSession of the job's slots. An unknown key is a warning that names the nearest
known one; a bad value is an error that says what is allowed.

Durations: `500 ms`, `10 s`, `3 min`, `1 d`; a bare number is milliseconds. Sizes: `64 kb`, `1024m`, `2 gb`, powers of 1024.
Lists: `a;b;c` or `[a, b, c]`.

This page is printed by `python -m firesteel.common.config.reference`; a test keeps the two in step.
"""


def markdown() -> str:
    parts = [_HEAD]
    for section, options in groupby(OPTIONS.values(), key=lambda option: option.section):
        parts.append(f"\n## {section}\n\n| key | default | meaning |\n|---|---|---|\n")
        parts += [
            f"| `{option.key}` | {_default(option)} | {_meaning(option)} |\n" for option in options
        ]
    return "".join(parts)


def default_text(option: Option[Any]) -> str:
    """The default as it would be written in a file; empty if there is nothing to write."""
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
    return f"`{text}`" if text else ""


def _meaning(option: Option[Any]) -> str:
    choices = (
        f" One of {', '.join(f'`{choice}`' for choice in option.choices)}."
        if option.choices
        else ""
    )
    return option.doc.replace("|", "\\|").replace("<", "&lt;") + choices


if __name__ == "__main__":
    print(markdown(), end="")
