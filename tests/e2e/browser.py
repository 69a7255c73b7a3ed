"""The dashboard in headless Chromium, which Playwright drives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from firesteel.client.client import Client

CHROMIUM = Path("/usr/bin/chromium")
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`));
"""
_MOST_MS = 60_000.0  # patience with a busy machine


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=_MOST_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield browser
        browser.close()


class Dashboard:
    """A browser's tab with the dashboard of a cluster, and what went wrong in it."""

    def __init__(
        self,
        browser: Browser,
        client: Client,
        *,
        width: int = 1280,
        height: int = 800,
        colors: Literal["light", "dark"] = "light",
    ) -> None:
        self.url = client.dashboard_url()
        self.problems: list[str] = []
        self._client = client
        self._context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=colors,
            reduced_motion="reduce",
            locale="en-GB",
        )
        self._context.add_init_script(_REPORT_VIOLATIONS)
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(_MOST_MS)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.problems.append(f"{error}"))
        self.page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self._check_host(request.url))

    def log_in(self, to: str = "/") -> None:
        """As `firesteel dashboard` does."""
        code = self._client.login_code(self.url)
        self.page.goto(f"{self.url}#/login?code={code}&next={to}")
        self.page.wait_for_selector(".who")

    def open(self, path: str) -> None:
        self.page.goto(f"{self.url}#{path}")

    def barriers(self) -> list[str]:
        """Returns the rules of accessibility that the page breaks, with an element for each."""
        violations = Axe().run(self.page).response["violations"]
        return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in violations]

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return max(0, width)

    def close(self) -> None:
        self._context.close()

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text} {message.location['url']}")

    def _check_host(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.url).netloc:
            self.problems.append(f"request to another host: {url}")
