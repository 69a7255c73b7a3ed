"""transform_with_state in a program: what is recorded, and which arguments are rejected."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import IntegerType, StructField, StructType

from firesteel import Environment, Watermarks
from firesteel.connectors import FileSource
from firesteel.errors import InvalidProgram


class Nothing(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return iter(())


def test_the_operator_is_recorded_under_the_processors_name() -> None:
    env = Environment()
    stream = (
        env.from_sequence(0, 10)
        .key_by("value")
        .transform_with_state(Nothing(), "n INT", "Update", "ProcessingTime", uid="u")
    )
    stream.print()
    (operator,) = [
        o
        for v in env.job_graph().vertices
        for o in v.operators
        if o.name == "TransformWithState(Nothing)"
    ]
    spec = cloudpickle.loads(operator.spec)
    assert (spec.output_mode, spec.time_mode, spec.pandas, spec.key_columns) == (
        "update",
        "processing_time",
        False,
        ("value",),
    )
    assert spec.initial_key_columns is None


def test_arguments_have_the_names_of_pyspark_too() -> None:
    env = Environment()
    initial = env.from_sequence(0, 10, column="id").key_by("id")
    stream: Any = env.from_sequence(0, 10).key_by("value")
    added = stream.transform_with_state(
        statefulProcessor=Nothing(),
        outputStructType=StructType([StructField("n", IntegerType())]),
        outputMode="Update",
        timeMode="ProcessingTime",
        initialState=initial,
        eventTimeColumnName="",
    )
    spec = added._operator().spec
    assert (spec.output_mode, spec.time_mode, spec.initial_key_columns) == (
        "update",
        "processing_time",
        ("id",),
    )
    in_pandas = stream.transform_with_state_in_pandas(
        Nothing(), outputStructType="n INT", outputMode="append", timeMode="none"
    )
    assert in_pandas._operator().spec.pandas
    for arguments, reason in (
        (
            {"output_mode": "append", "outputMode": "append"},
            "outputMode is output_mode; pass only one",
        ),
        ({"outputMode": "Complete"}, "output_mode is 'Complete'; allowed"),
        ({"timeMode": "EventTimes"}, "time_mode is 'EventTimes'; allowed"),
        ({"eventTimeColumnName": "at"}, r"not supported; .* Tumbling\(..., on='at'\)"),
    ):
        with pytest.raises(InvalidProgram, match=reason):
            stream.transform_with_state(Nothing(), "n INT", **arguments)


def test_an_initial_state_is_a_second_input_partitioned_by_its_own_key() -> None:
    env = Environment()
    initial = env.from_sequence(0, 10, column="id").key_by("id")
    stream = env.from_sequence(0, 10).key_by("value")
    stream.transform_with_state_in_pandas(Nothing(), "n INT", initial_state=initial).print()
    graph = env.job_graph()
    (vertex,) = [
        v
        for v in graph.vertices
        if any(o.name.startswith("TransformWithState") for o in v.operators)
    ]
    edges = [edge for edge in graph.edges if edge.target_vertex_id == vertex.vertex_id]
    assert {edge.target_input: edge.key_columns for edge in edges} == {0: ("value",), 1: ("id",)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"processor": Nothing}, r"takes a StatefulProcessor, not its class: Nothing\(\.\.\.\)"),
        (
            {"processor": len},
            "takes a pyspark.sql.streaming.StatefulProcessor, not builtin_function_or_method",
        ),
        ({"output_schema": None}, "needs the output schema of the processor"),
        ({"output_mode": "complete"}, 'output_mode is \'complete\'; allowed: "append", "update"'),
        (
            {"time_mode": "sometimes"},
            'time_mode is \'sometimes\'; allowed: "none", "processing_time", "event_time"',
        ),
        (
            {"time_mode": "event_time"},
            'time_mode="event_time" needs watermarks, and the sources have none',
        ),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    stream = Environment().from_sequence(0, 10).key_by("value")
    with pytest.raises(InvalidProgram, match=message):
        stream.transform_with_state(
            **{"processor": Nothing(), "output_schema": "n INT", **arguments}
        )


def test_event_time_comes_from_any_source_above() -> None:
    env = Environment()
    source = FileSource("/data/*.csv", format="csv", schema="at TIMESTAMP, k INT")
    stream = (
        env.from_source(source, watermarks=Watermarks.bounded("at"))
        .transform(lambda df: df)
        .key_by("k")
    )
    stream.transform_with_state(Nothing(), "n INT", time_mode="event_time")


def test_initial_states_that_cannot_be_read_first() -> None:
    env = Environment()
    source = env.from_sequence(0, 10)
    stream = source.key_by("value")
    with pytest.raises(
        InvalidProgram,
        match="both come from 'Source: Sequence'.*so it needs a separate source",
    ):
        stream.transform_with_state(
            Nothing(), "n INT", initial_state=source.transform(lambda df: df).key_by("value")
        )
    other = env.from_sequence(0, 10)
    with pytest.raises(
        InvalidProgram, match=r"initial_state must be a stream with key_by\(\), not DataStream"
    ):
        stream.transform_with_state(Nothing(), "n INT", initial_state=other)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidProgram,
        match="keyed by value and initial_state by value, n; key both by the same number of columns",
    ):
        stream.transform_with_state(Nothing(), "n INT", initial_state=other.key_by("value", "n"))
    timed = FileSource("/data/*.csv", format="csv", schema="at TIMESTAMP")
    watermarks = Watermarks.bounded("at").with_alignment("g", max_drift="1 min")
    first, second = (env.from_source(timed, watermarks=watermarks).key_by("at") for _ in range(2))
    with pytest.raises(InvalidProgram, match="alignment group 'g'.*wait for each other forever"):
        first.transform_with_state(Nothing(), "n INT", initial_state=second)
    watched = env.from_source(
        FileSource("/data/*.csv", format="csv", schema="value BIGINT", watch="1 s")
    )
    with pytest.raises(
        InvalidProgram, match="initial_state must end before the stream starts, and .* never ends"
    ):
        stream.transform_with_state(Nothing(), "n INT", initial_state=watched.key_by("value"))
