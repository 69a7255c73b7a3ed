"""Configuration: the options that Firesteel reads, and the values that a user sets."""

from firesteel.common.config.configuration import (
    SECRETS,
    Configuration,
    ConfigurationError,
    absolute,
    absolute_directories,
    check_combinations,
    check_heartbeats,
    parse,
    parse_definitions,
    read_values,
    restart_strategy,
)

__all__ = [
    "SECRETS",
    "Configuration",
    "ConfigurationError",
    "absolute",
    "absolute_directories",
    "check_combinations",
    "check_heartbeats",
    "parse",
    "parse_definitions",
    "read_values",
    "restart_strategy",
]
