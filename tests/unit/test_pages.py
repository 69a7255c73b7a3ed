"""The documentation's links lead somewhere, its pages are readable, and the API is documented."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.api_reference import PAGES

ROOT = Path(__file__).parents[2]
MARKDOWN = sorted(
    [
        *ROOT.glob("*.md"),
        *(path for name in ("docs", "deploy", "proto") for path in (ROOT / name).rglob("*.md")),
    ]
)
# Interfaces that Firesteel calls, and test interfaces: the docstring of the class is enough.
INTERFACES = ("firesteel.operator", "firesteel.testing")


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub generates them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_and_their_lines_are_short(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > 100] == []
    assert len(lines) <= 300


def test_the_tests_that_pages_name_exist() -> None:
    named = {
        name
        for page in MARKDOWN
        for name in re.findall(r"`(test_\w+?)(?:_?\.\.\.)?`", " ".join(page.read_text().split()))
    }
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert named
    assert {name for name in named if f"def {name}" not in source} == set()


def test_a_walk_visits_few_files_once_and_names_what_they_define() -> None:
    page = (ROOT / "docs" / "hacking.md").read_text()
    walks = page.partition("## Three walks through the code\n")[2].split("\n### ")[1:]
    assert len(walks) == 3
    for walk in walks:
        steps = re.split(r"^\d+\. ", walk, flags=re.MULTILINE)[1:]
        files = [file for step in steps for file in re.findall(r"\]\(([^)\s]+)\)", step)]
        assert len(files) == len(set(files)) <= 18
        for file, step in zip(files, steps, strict=True):
            names = re.findall(r"`([^`]+)`", step)
            source = (ROOT / "docs" / file).read_text()
            assert names, step
            missing = [n for n in names if not re.search(rf"(def|class) {n}\b", source)]
            assert missing == [], file


def test_every_page_is_on_an_index() -> None:
    """A page that no index links to is not found."""
    linked = {
        (index.parent / link.partition("#")[0]).resolve()
        for index in (ROOT / "docs").rglob("index.md")
        for link in re.findall(r"\]\(([^)\s]+)\)", index.read_text())
    }
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page != ROOT / "docs" / "index.md"}
    assert pages - linked == set()


def public(page: str) -> Iterator[tuple[str, Any]]:
    """Yields the names of a page of the reference, each with its object."""
    module = importlib.import_module(page)
    for name in getattr(module, "__all__", None) or vars(module):
        found = getattr(module, name)
        listed = hasattr(module, "__all__") or getattr(found, "__module__", "") == page
        if listed and not name.startswith("_"):
            yield name, found


@pytest.mark.parametrize("page", PAGES)
def test_every_public_name_has_a_docstring(page: str) -> None:
    missing = []
    for name, found in public(page):
        if not (inspect.isclass(found) or inspect.isfunction(found)):
            continue
        # A dataclass without one has its signature for a docstring.
        if not found.__doc__ or found.__doc__.startswith(f"{name}("):
            missing.append(name)
        members = {} if page in INTERFACES or inspect.isfunction(found) else vars(found)
        missing += [
            f"{name}.{member}"
            for member, value in members.items()
            if not member.startswith("_")
            and (inspect.isfunction(value) or isinstance(value, property | classmethod))
            and not inspect.getdoc(value)
        ]
    assert missing == []


def test_the_reference_has_every_public_name_and_no_dead_link(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-W", "error", "scripts/api_reference.py", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    ids = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    for path, text in pages.items():
        for link in re.findall(r'<a [^>]*href="([^"]+)"', text):
            if "://" in link or "${" in link:  # the search box's
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target in ids, f"{path.name}: {link}"
            assert not anchor or anchor in ids[target], f"{path.name}: {link}"
    for page in PAGES:
        names = {name for name, _ in public(page)}
        found = ids[tmp_path / f"{page.replace('.', '/')}.html"]
        assert names - found == set(), page
