"""Every connector has a runtime in the slots, and the API does not name it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import firesteel
from firesteel.connectors import FileSource, Sink, Source
from firesteel.connectors.python_sink import PythonCommit
from firesteel.connectors.python_source import PartitionPlan
from taskexecutor.executor.connectors import runtime
from taskexecutor.executor.connectors.runtime import SinkRuntime, SourceRuntime, runtime_class
from taskexecutor.executor.connectors.split_source import SplitSource
from taskexecutor.executor.connectors.writer_sink import WriterSink


@pytest.mark.parametrize("connector", runtime._RUNTIMES)
def test_every_line_of_the_registry_resolves(connector: type[Source] | type[Sink]) -> None:
    base = SourceRuntime if issubclass(connector, Source) else SinkRuntime
    assert issubclass(runtime_class(connector), base)


def test_a_connector_of_a_program_has_the_runtime_of_its_base_class() -> None:
    class MySource(Source): ...

    class MyFiles(FileSource): ...

    class MySink(Sink): ...

    assert runtime_class(MySource) is SplitSource
    assert runtime_class(MyFiles) is runtime_class(FileSource)
    assert runtime_class(MySink) is WriterSink
    assert runtime_class(PartitionPlan) is not SplitSource
    assert runtime_class(PythonCommit) is not WriterSink


def test_no_string_of_the_api_names_a_module_of_a_slot() -> None:
    named = [
        f"{path}:{node.lineno}"
        for path in Path(firesteel.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"taskexecutor\.[\w.]+(:\w+)?", node.value)
    ]
    assert named == []
