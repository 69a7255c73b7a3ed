"""firesteel dashboard opens a browser without showing the log-in code to other users."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from firesteel.client.cli.dashboard import _opened


def test_the_arguments_of_the_browser_hold_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    opened: list[str] = []

    def browse(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    for code in ("one", "two"):
        assert _opened(f'http://127.0.0.1:8081/#/login?code={code}&next=/"><script>')
    page = tmp_path / ".firesteel" / "dashboard.html"
    assert opened == [page.as_uri()] * 2
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    text = page.read_text()
    assert "code=two&amp;next=/&quot;&gt;&lt;script&gt;" in text and "<script>" not in text
