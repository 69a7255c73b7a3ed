"""Where a process may listen, and whether connections to it are encrypted."""

from __future__ import annotations

import ipaddress

from firesteel.common.config import Configuration, ConfigurationError, options


class InsecureAddress(ConfigurationError):
    """A server would listen beyond this machine without authentication."""


def uses_tls(conf: Configuration) -> bool:
    """Whether connections are encrypted: as configured, or if any address is not loopback."""
    configured = conf.get(options.SECURITY_TLS)
    if configured != "auto":
        return bool(configured == "always")
    return not is_loopback_host(conf.get(options.BIND_HOST))


def is_loopback_host(host: str) -> bool:
    """Whether a host, by its name or address, is this machine's loopback interface."""
    name = host.strip("[]").partition("%")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_listens_securely(conf: Configuration) -> None:
    """Raises InsecureAddress for a process that would listen beyond loopback without security,
    unless that is meant.
    """
    host = conf.get(options.BIND_HOST)
    if is_loopback_host(host) or conf.get(options.SECURITY_INSECURE_LISTEN):
        return
    if not conf.get(options.SECURITY_ENABLED):
        raise InsecureAddress(
            f"this process does not listen on {host}: anybody who reaches the port could run code"
            f" as this user, because {options.SECURITY_ENABLED.key} is false; set it to true, bind"
            f" 127.0.0.1 ({options.BIND_HOST.key}), or, if a firewall protects it, set"
            f" {options.SECURITY_INSECURE_LISTEN.key}: true"
        )
    if not uses_tls(conf):
        raise InsecureAddress(
            f"this process does not listen on {host} without TLS ({options.SECURITY_TLS.key} is"
            f" never): others could read tokens and rows; set it to auto, or set"
            f" {options.SECURITY_INSECURE_LISTEN.key}: true"
        )
