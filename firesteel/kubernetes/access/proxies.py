"""The proxy for a URL, from HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as Go's clients read them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from firesteel.kubernetes.errors import KubernetesConfigurationError


def proxy_of(url: str, environment: Mapping[str, str]) -> str | None:
    """Returns the URL of the proxy, or None for a direct connection. Raises
    KubernetesConfigurationError.
    """
    parts = urlsplit(url)
    host, port = (parts.hostname or "").lower(), parts.port
    name = "HTTPS_PROXY" if parts.scheme == "https" else "HTTP_PROXY"
    proxy = environment.get(name) or environment.get(name.lower()) or ""
    excluded = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if not proxy or _local(host) or any(_excludes(e, host, port) for e in excluded.split(",")):
        return None
    return checked(proxy, name)


def checked(proxy: str, origin: str) -> str:
    """Returns the proxy with a scheme. Raises KubernetesConfigurationError."""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    scheme = urlsplit(proxy).scheme
    if scheme not in ("http", "https") or not urlsplit(proxy).hostname:
        raise KubernetesConfigurationError(
            f"{origin}: {without_password(proxy)} is not supported; expected http://HOST:PORT or"
            " https://HOST:PORT"
        )
    return proxy


def _local(host: str) -> bool:
    if host == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _excludes(entry: str, host: str, port: int | None) -> bool:
    entry = entry.strip().lower()
    if not entry:
        return False
    if entry == "*":
        return True
    if (address := _address(host)) is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            pass  # a name, or an address with a port
    name, colon, its_port = entry.rpartition(":")
    if colon and its_port.isdecimal():
        if port != int(its_port):
            return False
        entry = name.strip("[]")
    if entry.startswith("*."):
        entry = entry[1:]
    if entry.startswith("."):
        return host.endswith(entry)
    return host == entry or host.endswith(f".{entry}")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
