"""Configuration: Flink's keys from a YAML file (nested or flat), overridden by `-D key=value`.

Values are kept as text; `get` returns them with the type of their `Option`. All of them are checked
when the configuration is created, so a bad value is found at the start.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from firesteel.common.config.options import (
    CHECKPOINT_DIR,
    CHECKPOINT_INTERVAL,
    CHECKPOINT_MAX_CONCURRENT,
    CHECKPOINT_MODE,
    CHECKPOINT_UNALIGNED,
    HEARTBEAT_INTERVAL,
    HEARTBEAT_TIMEOUT,
    OPTIONS,
    RESTART_BACKOFF,
    RESTART_MAX_BACKOFF,
    RESTART_STRATEGY,
    SAVEPOINT_DIR,
    Option,
)
from firesteel.common.config.redaction import is_sensitive, redacted
from firesteel.common.units import parse_duration_s, parse_size_bytes, shortest_size
from firesteel.errors import FiresteelError

T = TypeVar("T")

CONF_DIR = "FIRESTEEL_CONF_DIR"
SECRETS = "FIRESTEEL_SECRETS"  # JSON: what a process is given in its environment
# Keys without an option: Spark's own, and those of this cluster's processes.
_PASSED_ON = ("spark.", "firesteel.")
_UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"


class ConfigurationError(FiresteelError):
    """A bad value, or an unreadable file; the message names the key, the value and what is
    allowed.
    """


class Configuration:
    """An immutable set of keys with values. `warnings` names the keys that Firesteel ignores."""

    __slots__ = ("_typed", "_values", "warnings")

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = {key: _text(value) for key, value in (values or {}).items()}
        self._typed: dict[str, Any] = {}
        self.warnings: list[str] = []
        for key, text in self._values.items():
            if key in OPTIONS:
                self._typed[key] = parse(OPTIONS[key], text)
            elif key == _UNIX_SOCKETS and text.lower() == "true":
                raise ConfigurationError(
                    f"{key}: {text!r} is not supported: the path of a slot's folder is too long for"
                    " such a socket; remove the setting, and Spark uses TCP on the loopback address"
                )
            elif not key.startswith(_PASSED_ON):
                self.warnings.append(_unknown(key))

    @classmethod
    def load(
        cls, path: str | Path | None = None, overrides: Mapping[str, Any] | None = None
    ) -> Configuration:
        """Reads `path`, or $FIRESTEEL_CONF_DIR/config.yaml. The configuration of the process that
        started this one (`to_environment`) takes precedence over the file, and `overrides` over
        both.

        Raises ConfigurationError if the file is missing or not a mapping, and for bad values.
        """
        if path is None and os.environ.get(CONF_DIR):
            path = Path(os.environ[CONF_DIR]) / "config.yaml"
        values = read_values(Path(path)) if path is not None else {}
        given = json.loads(os.environ.get(SECRETS, "{}"))
        return cls({**values, **given, **(overrides or {})})

    def get(self, option: Option[T]) -> T:
        value = self._typed.get(option.key, option.default)
        return list(value) if isinstance(value, list) else value  # type: ignore[return-value]

    def is_set(self, option: Option[Any]) -> bool:
        return option.key in self._values

    def with_overrides(self, overrides: Mapping[str, Any]) -> Configuration:
        return Configuration({**self._values, **overrides})

    def to_dict(self) -> dict[str, str]:
        """Returns the set values as text: `Configuration(conf.to_dict()) == conf`."""
        return dict(self._values)

    def spark(self) -> dict[str, str]:
        """Returns every `spark.*` key that was set, for the SparkSession of a slot."""
        return {key: text for key, text in self._values.items() if key.startswith("spark.")}

    def for_jobs(self) -> dict[str, str]:
        """Returns the set values without secrets of the cluster."""
        return {key: text for key, text in self._values.items() if key not in self.secrets()}

    def secrets(self) -> dict[str, str]:
        """Returns the values that jobs may neither set nor get."""
        return {
            key: text
            for key, text in self._values.items()
            if (option := OPTIONS.get(key)) is not None and option.secret
        }

    def to_arguments(self) -> list[str]:
        """Returns repeated `-D key=value` for a command line; `to_environment` has the secrets."""
        shown = {key: text for key, text in self._values.items() if not is_sensitive(key)}
        return [part for key, text in shown.items() for part in ("-D", f"{key}={text}")]

    def to_environment(self) -> dict[str, str]:
        """Returns variables for the environment of a process and its children."""
        secrets = {key: text for key, text in self._values.items() if is_sensitive(key)}
        variables = {OPTIONS[key].variable: text for key, text in self.secrets().items()}
        variables.pop("", None)
        return {**variables, SECRETS: json.dumps(secrets)} if secrets else {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._values == other._values

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"Configuration({redacted(self._values)!r})"


def parse_definitions(definitions: tuple[str, ...] | list[str]) -> dict[str, str]:
    """Parses `-D key=value` arguments. Raises ConfigurationError without a key or `=`."""
    values: dict[str, str] = {}
    for definition in definitions:
        key, equals, value = definition.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(
                f"-D {definition}: expected key=value,"
                " for example -D taskmanager.numberOfTaskSlots=2"
            )
        values[key.strip()] = value.strip()
    return values


def absolute(path: str) -> str:
    """Returns a path as the processes of a cluster understand it. URIs and nothing stay as they
    are.
    """
    return path if not path or "://" in path else os.path.abspath(path)


def absolute_directories(values: Mapping[str, str]) -> dict[str, str]:
    """Returns the values with absolute paths of the directories of checkpoints and savepoints."""
    keys = (CHECKPOINT_DIR.key, SAVEPOINT_DIR.key)
    return {**values, **{key: absolute(values[key]) for key in keys if key in values}}


# -- files


def read_values(path: Path) -> dict[str, str]:
    """Returns the values of a file, by flat keys. Raises ConfigurationError if it is not a mapping
    of YAML.
    """
    try:
        # BaseLoader keeps every scalar as text: YAML has other ideas of `1m`, `on` and `12:30`.
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the configuration {path}: {error.strerror}"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the configuration {path} is not YAML: {error}") from None
    if content is None or content == "":
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"the configuration {path} must be a mapping of keys to values,"
            f" not a {type(content).__name__}"
        )
    values: dict[str, str] = {}
    _flatten(content, "", values, path)
    return values


def _flatten(node: Mapping[str, Any], prefix: str, values: dict[str, str], path: Path) -> None:
    for name, value in node.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            _flatten(value, f"{key}.", values, path)
        elif key in values:
            raise ConfigurationError(f"the configuration {path} sets {key} twice")
        else:
            values[key] = _text(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return json.dumps([str(item) for item in value], ensure_ascii=False)
    return str(value)


# -- values

_ALLOWED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "duration": "a duration such as 500 ms, 10 s, 3 min or 1 d",
    "size": "a size such as 64 kb, 1024m or 2 gb",
    "list": "a list: a;b;c or [a, b, c]",
    "string": "text",
}


def parse(option: Option[T], text: str) -> T:
    """Returns the typed value. Raises ConfigurationError with the key, the value and the rule."""
    try:
        value = _PARSERS[option.kind](text, option)
    except ValueError:
        raise _bad_value(option, text) from None
    if option.minimum is not None and value < option.minimum:
        raise _bad_value(option, text)
    if option.maximum is not None and value > option.maximum:
        raise _bad_value(option, text)
    return value  # type: ignore[no-any-return]


def _bad_value(option: Option[Any], text: str) -> ConfigurationError:
    if option.kind == "enum":
        allowed = "one of " + ", ".join(option.choices)
    else:
        allowed = _ALLOWED[option.kind]
        if option.minimum is not None:
            allowed += f" of at least {option.minimum:g}"
        if option.maximum is not None:
            is_size = option.kind == "size"
            largest = shortest_size(int(option.maximum)) if is_size else f"{option.maximum:g}"
            allowed += f" of at most {largest}"
    return ConfigurationError(f"{option.key}: {text!r} is not allowed; expected {allowed}")


def _number(text: str, option: Option[Any]) -> float:
    value = float(text)
    if value != value or abs(value) == float("inf"):
        raise ValueError(text)
    return value


def _bool(text: str, option: Option[Any]) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _enum(text: str, option: Option[Any]) -> str:
    for choice in option.choices:
        if text.lower() == choice.lower():
            return choice
    raise ValueError(text)


def _list(text: str, option: Option[Any]) -> list[str]:
    if text.startswith("["):
        try:
            items = json.loads(text)  # as to_dict writes it
        except ValueError:
            items = _yaml_list(text)
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ValueError(text)
        return items
    return [item.strip() for item in re.split(r"[;,]", text) if item.strip()]


def _yaml_list(text: str) -> Any:
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        raise ValueError(text) from None


_PARSERS: dict[str, Any] = {
    "string": lambda text, option: text,
    "int": lambda text, option: int(text),
    "float": _number,
    "bool": _bool,
    "enum": _enum,
    "list": _list,
    "duration": lambda text, option: parse_duration_s(text),
    "size": lambda text, option: parse_size_bytes(text),
}


def _unknown(key: str) -> str:
    nearest = difflib.get_close_matches(key, OPTIONS, n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"unknown configuration key {key}, it has no effect{hint}"


def restart_strategy(conf: Configuration) -> str:
    """Returns the job's `restart-strategy.type`. The default is Flink's: a job that takes
    checkpoints restarts after increasing delays.
    """
    if conf.get(CHECKPOINT_INTERVAL) and not conf.is_set(RESTART_STRATEGY):
        return "exponential-delay"
    return conf.get(RESTART_STRATEGY)


def check_heartbeats(conf: Configuration) -> None:
    """Raises ConfigurationError if processes would be declared dead between two heartbeats."""
    interval_s, timeout_s = conf.get(HEARTBEAT_INTERVAL), conf.get(HEARTBEAT_TIMEOUT)
    if timeout_s <= interval_s:
        raise ConfigurationError(
            f"{HEARTBEAT_TIMEOUT.key} is {timeout_s:g} s, not longer than"
            f" {HEARTBEAT_INTERVAL.key}, which is {interval_s:g} s: every process would be declared"
            " dead between two heartbeats"
        )


def check_combinations(conf: Configuration) -> None:
    """Raises ConfigurationError if options of a job contradict each other."""
    check_heartbeats(conf)
    if restart_strategy(conf) == "exponential-delay":
        initial_s, max_s = conf.get(RESTART_BACKOFF), conf.get(RESTART_MAX_BACKOFF)
        if initial_s > max_s:
            raise ConfigurationError(
                f"{RESTART_BACKOFF.key} is {initial_s:g} s, longer than"
                f" {RESTART_MAX_BACKOFF.key}, which is {max_s:g} s"
            )
    if not conf.get(CHECKPOINT_INTERVAL):
        return
    if not conf.get(CHECKPOINT_DIR):
        raise ConfigurationError(
            f"{CHECKPOINT_INTERVAL.key} is set, but {CHECKPOINT_DIR.key} is not:"
            " set the directory for checkpoints"
        )
    if conf.get(CHECKPOINT_UNALIGNED):
        _check_unaligned(conf)


def _check_unaligned(conf: Configuration) -> None:
    unaligned = CHECKPOINT_UNALIGNED.key
    if conf.get(CHECKPOINT_MODE) == "at-least-once":
        raise ConfigurationError(
            f"{CHECKPOINT_MODE.key}: at-least-once excludes {unaligned}: barriers that"
            " do not wait for each other have nothing to overtake"
        )
    if (concurrent := conf.get(CHECKPOINT_MAX_CONCURRENT)) != 1:
        raise ConfigurationError(
            f"{CHECKPOINT_MAX_CONCURRENT.key}: {concurrent} is not possible with"
            f" {unaligned}: an overtaking barrier would end the checkpoint before it. Set 1"
        )
