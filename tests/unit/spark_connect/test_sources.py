"""File sources of streaming queries, from Spark's options."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StructType

from firesteel.connectors import FileSource
from firesteel.errors import InvalidProgram
from firesteel.spark_connect.sources import _files

SCHEMA = StructType().add("n", LongType())


def test_options_about_when_files_are_read_do_not_reach_the_format() -> None:
    options = {"path": "/in", "maxFilesPerTrigger": "10", "cleanSource": "OFF", "multiLine": "true"}
    source = _files("json", options, SCHEMA)
    assert isinstance(source, FileSource)
    assert (source.paths, source.options) == (("/in",), {"multiLine": "true"})


@pytest.mark.parametrize("recursive", [False, True])
def test_subfolders_are_read_on_request(recursive: bool) -> None:
    options = {"path": "/in", "RecursiveFileLookup": "true"} if recursive else {"path": "/in"}
    source = _files("json", options, SCHEMA)
    assert isinstance(source, FileSource)
    assert source.resolved().subfolders is recursive


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cleanSource", "delete", "the option cleanSource='delete': Firesteel does not remove"),
        ("maxFilesPerTrigger", "0", "Invalid value '0' for option 'maxFilesPerTrigger'"),
        ("maxfilespertrigger", "x", "Invalid value 'x' for option 'maxFilesPerTrigger'"),
        ("maxBytesPerTrigger", "100k", "Invalid value '100k' for option 'maxBytesPerTrigger'"),
    ],
)
def test_bad_options_are_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        _files("json", {"path": "/in", name: value}, SCHEMA)
