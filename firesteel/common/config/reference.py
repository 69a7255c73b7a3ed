"""docs/configuration.md: all options as a page, which `markdown` returns."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from firesteel.common.config.options import OPTIONS, Option
from firesteel.common.units import shortest_duration, shortest_size

_HEAD = """# Configuration

Every key that Firesteel reads; keys and values are those of Flink 2.x where it has them. They are
set, the later winning, in `$FIRESTEEL_CONF_DIR/config.yaml` (nested or flat keys), in a program by
`Environment(configuration={...})`, and by `-D key=value` on the command line. A cluster reads its
own configuration when it starts; what a program and `run -D` set applies to that job. `spark.*`
keys go to the SparkSessions of the job's slots. An unknown key is a warning that names the nearest
known one; a bad value is an error that states what is allowed.

Durations: `500 ms`, `10 s`, `3 min`, `1 d`; a bare number is milliseconds. Sizes: `64 kb`, `1024m`,
`2 gb`, powers of 1024. Lists: `a;b;c` or `[a, b, c]`.

`python -m firesteel.common.config.reference` prints this page; a test keeps the two in step.
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
    """The default as a file would have it; empty if there is none."""
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
