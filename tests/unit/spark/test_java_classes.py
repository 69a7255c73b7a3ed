"""The Java classes that are defined in the slot's JVM."""

from __future__ import annotations

import re
from importlib.resources import files
from xml.etree import ElementTree

import pyspark

from taskexecutor.executor.columnar.jvm.code import PACKAGE, sources


def test_each_file_has_the_class_of_its_name() -> None:
    texts = sources()
    assert "FiresteelLocalTask" in texts
    for name, text in texts.items():
        assert re.findall(r"^[a-z ]*(?:class|interface) (\w+)", text, re.MULTILINE) == [name]
        assert text.startswith(f"package {PACKAGE};\n")


def test_an_ide_resolves_the_spark_that_slots_run() -> None:
    pom = files("taskexecutor.executor.columnar.jvm") / "java" / "pom.xml"
    (version,) = ElementTree.fromstring(pom.read_text()).findall(".//{*}dependency/{*}version")
    assert version.text == pyspark.__version__
