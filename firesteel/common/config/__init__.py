"""Configuration: the options that Firesteel reads, and the values that a user sets."""

from firesteel.common.config.configuration import (
    SECRETS,
    Configuration,
    ConfigurationError,
    check_combinations,
    parse,
    parse_definitions,
    read_values,
    restart_strategy,
)

__all__ = [
    "SECRETS",
    "Configuration",
    "ConfigurationError",
    "check_combinations",
    "parse",
    "parse_definitions",
    "read_values",
    "restart_strategy",
]
