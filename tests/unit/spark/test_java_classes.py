"""The Java classes that are defined in the slot's JVM."""

from __future__ import annotations

import re
from collections import Counter
from importlib.resources import files

from taskexecutor.executor.columnar.jvm.code import SOURCES


def test_each_class_is_in_one_file() -> None:
    """All are in one package, so the second one of a name could not be defined."""
    folder = files("taskexecutor.executor.columnar.jvm") / "java"
    names = Counter(
        name
        for source in folder.iterdir()
        for name in re.findall(r"^[a-z ]*class (\w+)", source.read_text(), re.MULTILINE)
    )
    assert names["FiresteelTask"]
    assert not [name for name, count in names.items() if count > 1]


def test_every_source_goes_into_the_jar() -> None:
    folder = files("taskexecutor.executor.columnar.jvm") / "java"
    assert sorted(f"{source}.java" for source in SOURCES) == sorted(
        source.name for source in folder.iterdir()
    )
