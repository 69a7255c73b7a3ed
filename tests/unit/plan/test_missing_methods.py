"""A method that a stream does not have: the error says what is meant."""

from __future__ import annotations

import copy
import json
import re

import pytest

from firesteel import Environment, Tumbling
from firesteel.common.config import Configuration
from firesteel.datastream import ConnectedStreams, DataStream, KeyedStream
from firesteel.missing_methods import _INSTEAD, _OF_CONNECTED, _OF_ENVIRONMENTS


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sum", r"DataStream has no sum; use aggregate\(\"sum\(x\) AS total\", ...\) after key_by"),
        ("groupBy", r"has no groupBy; use key_by\(\"column\"\)"),
        ("withColumn", "it is with_column here: all methods are in snake_case"),
        ("flatMap", "it is flat_map here"),
        ("fillna", r"use transform\(lambda df: df.fillna\(...\)\)"),
        ("transformWithState", r"call key_by\(...\) first: key_by\(...\).transform_with_state"),
        ("collect", r"use execute_and_collect\(\)"),
        ("window", r"call key_by\(...\) first: key_by\(...\).window\(...\)"),
        ("sinkTo", "it is sink_to here"),
        ("topN", r"use window_all\(...\).top_n\(n, by=...\), or per key key_by"),
        ("distinct", r"use drop_duplicates\(\"column\", within=\"1 hour\"\)"),
        ("dropDuplicates", r"it is drop_duplicates here"),
        ("fliter", r"did you mean filter\?"),
        ("iterate", "use a KeyedProcessFunction, which keeps what the next round needs"),
        ("applyInPandasWithState", r'use key_by\("column"\).transform_with_state_in_pandas\(...\)'),
        ("applyInPandas", r'key_by\("column"\).window\(...\).apply\(lambda df: df.groupBy'),
        ("mapPartitions", r"use map_in_arrow\(function, schema\) or map_in_pandas"),
        ("withWatermark", r'assign_timestamps_and_watermarks\(Watermarks.bounded\("time"\)\)'),
        ("writeStream", r"use sink_to\(...\)"),
        ("awaitTermination", r"use execute\(\) of the environment"),
        ("cache", r"use sink_to\(...\), and read the files"),
        ("set_description", r"use name\(...\)"),
        ("get_type", "use `firesteel info job.py`"),
        ("get_side_output", r"use side_output\(tag\)"),
        ("enable_checkpointing", r'Environment\(configuration={"execution.checkpointing.interval"'),
        ("setParallelism", "it is set_parallelism here"),
        ("readStream", r"use from_source\(FileSource\("),
        ("xyz", r"DataStream has no xyz$"),
    ],
)
def test_a_missing_method_says_what_is_meant(name: str, message: str) -> None:
    stream = Environment().from_sequence(0, 10)
    with pytest.raises(AttributeError, match=message):
        getattr(stream, name)
    assert not hasattr(stream, name)


def test_keyed_and_windowed_streams_say_it_too() -> None:
    keyed = Environment().from_sequence(0, 10).key_by("value")
    with pytest.raises(AttributeError, match="KeyedStream has no count; use aggregate"):
        _ = keyed.count  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no reduce; use aggregate.* or .*ReducingState"):
        _ = keyed.reduce  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="WindowedStream has no agregate; did you mean aggreg"):
        _ = keyed.window(Tumbling("1 s", on="at")).agregate  # type: ignore[attr-defined]


def test_nothing_that_streams_have_is_in_the_table() -> None:
    assert not set(_INSTEAD) & (set(dir(DataStream)) | set(dir(KeyedStream)))
    assert not set(_OF_ENVIRONMENTS) & set(dir(Environment))
    assert not set(_OF_CONNECTED) & set(dir(ConnectedStreams))


def test_a_stream_can_be_copied() -> None:
    stream = Environment().from_sequence(0, 10)
    assert copy.copy(stream)._upstreams == stream._upstreams


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("get_execution_environment", r"use Environment\(\)"),
        ("enable_checkpointing", r'Environment\(configuration={"execution.checkpointing.interval'),
        ("enableCheckpointing", r'Environment\(configuration={"execution.checkpointing.interval'),
        ("set_parallelism", r"use Environment\(parallelism=2\), or set_parallelism\(2\) of an op"),
        ("set_runtime_mode", r'use Environment\(mode="batch"\)'),
        ("set_state_backend", r'configuration={"state.backend.type": "rocksdb"}\)'),
        ("readStream", r"use from_source\(FileSource\(path, format=..., schema=...\)\)"),
        ("add_source", r"use from_source\(source\)"),
        ("add_sink", r"use sink_to\(...\) of a stream"),
        ("execute_sql", "there are no tables and no SQL queries"),
        ("from_elements", r"use from_collection\(\[...\], schema\)"),
        ("generate_sequence", r"use from_sequence\(start, end\)"),
        ("get_execution_plan", "use `firesteel info job.py`"),
        ("register_cached_file", r"use add_python_archive\(path\)"),
        ("register_slot_sharing_group", r"use resource_group\(name, resources\)"),
        ("set_default_savepoint_directory", '"execution.checkpointing.savepoint-dir"'),
        ("set_python_executable", '"python.executable"'),
        ("get_parallelism", r"use the argument of Environment\(parallelism=2\)"),
        ("get_max_parallelism", '"pipeline.max-parallelism"'),
        ("fromSource", "it is from_source here: all methods are in snake_case"),
        ("assign_timestamps_and_watermarks", r"use from_source\(..., watermarks=Watermarks"),
        ("map", r"it is a method of streams: call from_source\(...\) first"),
        ("groupBy", r"it is a method of streams: call from_source\(...\) first"),
        ("frm_source", "did you mean from_source"),
        ("xyz", "Environment has no xyz$"),
    ],
)
def test_the_environment_says_it_too(name: str, message: str) -> None:
    for holder in (Environment, Environment()):
        with pytest.raises(AttributeError, match=message):
            getattr(holder, name)
        assert not hasattr(holder, name)


def test_windowed_streams_say_it_too() -> None:
    windowed = Environment().from_sequence(0, 10).key_by("value").count_window(3)
    for name, message in (
        ("process", r"use apply\(lambda df: ...\), whose DataFrame has the rows of the windows"),
        ("evictor", r"use apply\(lambda df: ...\), which can leave rows out"),
    ):
        with pytest.raises(AttributeError, match=f"WindowedStream has no {name}; {message}"):
            getattr(windowed, name)


def test_connected_streams_say_it_too() -> None:
    stream = Environment().from_sequence(0, 10)
    connected = stream.connect(stream)
    for name, message in (
        ("process", r"use co_process\(function, schema\) with a CoProcessFunction, after key_by"),
        ("map", r"use map_in_arrow\(first_function, second_function, schema\)"),
        ("coProcess", "it is co_process here"),
    ):
        with pytest.raises(AttributeError, match=f"ConnectedStreams has no {name}; {message}"):
            getattr(connected, name)


@pytest.mark.parametrize("name", sorted({**_INSTEAD, **_OF_ENVIRONMENTS}))
def test_every_hint_can_be_shown_and_names_what_there_is(name: str) -> None:
    for holder in (Environment().from_sequence(0, 10), Environment()):
        if name in dir(holder):
            continue
        with pytest.raises(AttributeError) as raised:
            getattr(holder, name)
        hint = str(raised.value).partition("; ")[2]
        assert "{name}" not in hint and "{{" not in hint
        if text := re.search(r"configuration=({.*?})", hint.replace(", ...", "")):
            assert not list(Configuration(json.loads(text[1])).warnings)
