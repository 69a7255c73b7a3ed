"""A method that a stream does not have: the error says what is meant."""

from __future__ import annotations

import copy

import pytest

from firesteel import Environment, Tumbling
from firesteel.datastream import DataStream, KeyedStream
from firesteel.missing_methods import _INSTEAD


@pytest.mark.parametrize(
    ("name", "told"),
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
        ("topN", r"use window_all\(...\).top_n\(n, by=...\), or for each key key_by"),
        ("distinct", r"use drop_duplicates\(\"column\", within=\"1 hour\"\)"),
        ("dropDuplicates", r"it is drop_duplicates here"),
        ("fliter", r"did you mean filter\?"),
        ("xyz", r"DataStream has no xyz$"),
    ],
)
def test_a_missing_method_says_what_is_meant(name: str, told: str) -> None:
    stream = Environment().from_sequence(0, 10)
    with pytest.raises(AttributeError, match=told):
        getattr(stream, name)
    assert not hasattr(stream, name)


def test_keyed_and_windowed_streams_say_it_too() -> None:
    keyed = Environment().from_sequence(0, 10).key_by("value")
    with pytest.raises(AttributeError, match="KeyedStream has no count; use aggregate"):
        _ = keyed.count  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="WindowedStream has no agregate; did you mean aggreg"):
        _ = keyed.window(Tumbling("1 s", on="at")).agregate  # type: ignore[attr-defined]


def test_nothing_that_streams_have_is_in_the_table() -> None:
    assert not set(_INSTEAD) & (set(dir(DataStream)) | set(dir(KeyedStream)))


def test_a_stream_can_be_copied() -> None:
    stream = Environment().from_sequence(0, 10)
    assert copy.copy(stream)._upstreams == stream._upstreams
