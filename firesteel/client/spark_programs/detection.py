"""Finds out from the files of a program whether it is a PySpark program, one that does not import
Firesteel, and which name it gives itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from firesteel.plan.local_modules import imports_of_file, local_modules

FIRESTEEL = "firesteel"


def is_pyspark_program(main: Path) -> bool:
    """Whether neither the program's main file nor one of its local modules imports Firesteel.

    The folder of the program must be on sys.path, so that its modules are found.
    """
    return not any(FIRESTEEL in imports_of_file(file) for file in _files(main))


def mentions_streams(main: Path) -> bool:
    """Whether the program's files mention `readStream`, so that it probably has streaming
    queries.
    """
    return any(b"readStream" in file.read_bytes() for file in _files(main))


def application_name(source: bytes) -> str:
    """Returns the name that a program first gives with `SparkSession.builder...appName("...")`;
    empty if it has no such call with a literal.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=before, attr="appName"),
                args=[ast.Constant(value=str() as name)],
            ) if any(getattr(each, "attr", "") == "builder" for each in ast.walk(before)):
                found.append((node.lineno, node.col_offset, name))
    return min(found)[-1] if found else ""


def _files(main: Path) -> Iterator[Path]:
    """Yields the main file and the Python files of the program's local modules, except zipped
    ones.
    """
    yield main
    for module in local_modules(imports_of_file(main)):
        if not module.zipped:
            yield from (file for _, file in module.files() if file.suffix == ".py")
