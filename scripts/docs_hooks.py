"""Hooks of MkDocs: the API reference, and pages for files of the repository that the docs link to.

The documentation links to files outside of docs/, which readers of the repository can follow. On
the site, each of these files is a page below source/, so that such links work there as well.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
API = ROOT / "build" / "api"
LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)")
LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".md": "markdown"}


def on_files(files: Files, config: Any) -> Files:
    for path in sorted(API.rglob("*")):
        if path.is_file():
            uri = f"api/{path.relative_to(API).as_posix()}"
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    for path in sorted(_linked_files()):
        content = _listing(path) if path.is_dir() else _source(path)
        files.append(File.generated(config, _uri(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links that leave docs/ at the pages below source/."""
    folder = (ROOT / "docs" / page.file.src_uri).parent
    start = posixpath.dirname(page.file.src_uri)

    def rewritten(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / match[1]))
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return match[1]
        return posixpath.relpath(_uri(target), start or ".")

    return LINK.sub(rewritten, markdown)


def _linked_files() -> set[Path]:
    """Returns the files and directories outside of docs/ that pages link to."""
    found = set()
    for page in (ROOT / "docs").rglob("*.md"):
        for link in LINK.findall(page.read_text()):
            target = Path(os.path.normpath(page.parent / link))
            if not target.is_relative_to(ROOT / "docs") and target.exists():
                found.add(target)
    return found


def _uri(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    return f"source/{name.lstrip('.')}.md"


def _source(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    language = LANGUAGES.get(path.suffix, "text")
    fence = "`````"
    head = "---\nsearch:\n  exclude: true\n---\n\n"
    return f"{head}# {name}\n\n{fence}{language}\n{path.read_text()}\n{fence}\n"


def _listing(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith((".", "__")))
    lines = [f"- `{entry.name}{'/' if entry.is_dir() else ''}`\n" for entry in entries]
    return f"---\nsearch:\n  exclude: true\n---\n\n# {name}/\n\n{''.join(lines)}"
