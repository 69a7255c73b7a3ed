"""Opens pages of Flink's dashboard in headless Chromium. Runs in `.clients-venv`, which has
Playwright.

    python browse.py CHROMIUM URL FOLDER < pages.json > problems.json

Reads {name: {"path": path, "click": [texts], "shows": [regular expressions]}}; saves a screenshot of each
page in the folder, and prints, by page, console errors, requests that failed, and texts that the
page does not show.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Error, Page, Request, Response, sync_playwright

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 60_000


def main(
    chromium: str, url: str, folder: Path, pages: dict[str, dict[str, Any]]
) -> dict[str, list[str]]:
    problems: dict[str, list[str]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        for name, wanted in pages.items():
            # A fragment alone would not load the page again.
            page = browser.new_page(viewport={"width": 1500, "height": 950})
            problems[name] = visit(page, url, wanted)
            page.screenshot(path=folder / f"{name}.png")
            page.close()
        browser.close()
    return {name: found for name, found in problems.items() if found}


def visit(page: Page, url: str, wanted: dict[str, Any]) -> list[str]:
    problems: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(f"console: {message.text}")

    def on_response(response: Response) -> None:
        if response.status >= 400:
            problems.append(f"{response.status}: {response.request.method} {response.url}")

    def on_failed(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the dashboard drops requests of left pages
            problems.append(f"{request.failure}: {request.method} {request.url}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("response", on_response)
    page.on("requestfailed", on_failed)
    page.set_default_timeout(PATIENCE_MS)
    try:
        page.goto(f"{url}/#{wanted['path']}")
        for text in wanted["click"]:
            # The page's tabs are the last ones, once it has its data.
            page.get_by_text("Refresh").or_(page.get_by_text("Root Exception")).wait_for()
            page.get_by_text(text, exact=True).last.click()
        for pattern in wanted["shows"]:
            page.get_by_text(re.compile(pattern)).first.wait_for(state="visible")
    except Error as error:
        problems.append(f"{error}")
    return problems


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:3], Path(sys.argv[3]), json.load(sys.stdin)), sys.stdout)
