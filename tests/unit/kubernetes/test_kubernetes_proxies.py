"""Proxies from the environment, as Go's clients choose them."""

from __future__ import annotations

import pytest

from firesteel.kubernetes.access.proxies import proxy_of
from firesteel.kubernetes.errors import KubernetesConfigurationError

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("url", "excluded", "expected"),
    [
        ("https://api.example.com", "", PROXY),
        ("http://api.example.com", "", None),  # HTTP_PROXY is not set
        ("https://api.example.com", "example.com", None),
        ("https://api.example.com", ".example.com", None),
        ("https://example.com", ".example.com", PROXY),
        ("https://example.com", "*.example.com", PROXY),
        ("https://badexample.com", "example.com", PROXY),
        ("https://api.example.com", "other.com, API.example.com", None),
        ("https://api.example.com", "*", None),
        ("https://10.1.2.3", "10.0.0.0/8", None),
        ("https://11.1.2.3", "10.0.0.0/8", PROXY),
        ("https://10.1.2.3", "10.1.2.3", None),
        ("https://[fd00::1]:443", "fd00::/8", None),
        ("https://api.example.com:6443", "api.example.com:6443", None),
        ("https://api.example.com:6443", "api.example.com:443", PROXY),
        ("https://localhost:6443", "", None),
        ("https://127.0.0.1:6443", "", None),
    ],
)
def test_no_proxy_excludes_hosts(url: str, excluded: str, expected: str | None) -> None:
    assert proxy_of(url, {"HTTPS_PROXY": PROXY, "NO_PROXY": excluded}) == expected


def test_names_in_lower_case_count_and_a_scheme_is_added() -> None:
    assert proxy_of("https://a", {"https_proxy": "proxy:3128"}) == PROXY
    assert proxy_of("https://a", {"https_proxy": "proxy:1", "no_proxy": "a"}) is None
    assert proxy_of("http://a", {"http_proxy": "proxy:3128"}) == PROXY


def test_other_kinds_of_proxies_are_refused() -> None:
    with pytest.raises(KubernetesConfigurationError, match="HTTPS_PROXY: socks5://p:1 is not"):
        proxy_of("https://a", {"HTTPS_PROXY": "socks5://p:1"})
