"""The translation of a program into its JobGraph."""

from __future__ import annotations

import json
import os
import threading

import cloudpickle
import pytest

from firesteel import (
    BroadcastProcessFunction,
    CoProcessFunction,
    Environment,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
    ResourceProfile,
    Tumbling,
    Watermarks,
)
from firesteel.common.job_graph import JobGraph, Partitioner
from firesteel.common.resources import UNKNOWN
from firesteel.connectors import (
    MALFORMED_TAG,
    CollectSink,
    DiscardSink,
    FileSink,
    FileSource,
    PrintSink,
    SequenceSource,
)
from firesteel.errors import InvalidProgram
from firesteel.operator import StreamOperator
from firesteel.operators import ProcessSpec, RowTimeSpec


def flights(env: Environment) -> object:
    return env.from_source(
        FileSource("flights/*.csv", format="csv", header=True),
        watermarks=Watermarks.bounded("time_hour", max_out_of_orderness="1 day"),
        uid="flights",
    )


def daily_delays(env: Environment) -> JobGraph:
    (
        flights(env)
        .transform(lambda df: df.where("dep_delay IS NOT NULL"))
        .key_by("origin")
        .window(Tumbling("1 day"))
        .aggregate("count(*) AS flights", "avg(dep_delay) AS avg_delay", uid="windows")
        .sink_to(FileSink("out/daily", format="parquet"), uid="sink")
    )
    return env.job_graph("daily")


def test_the_partial_aggregate_chains_to_the_source_the_merge_to_the_sink() -> None:
    graph = daily_delays(Environment(parallelism=2))
    assert [v.name for v in graph.vertices] == [
        "Source: flights -> Transform -> Window(Tumbling 1 day) partial",
        "Window(Tumbling 1 day) -> Sink: File",
    ]
    source, merge = graph.vertices
    assert [o.runs_on_spark for o in source.operators] == [True, True, True]
    assert [o.runs_on_spark for o in merge.operators] == [False, False]
    (edge,) = graph.edges
    assert (edge.partitioner, edge.key_columns) == (Partitioner.HASH, ("origin",))
    assert (edge.source_vertex_id, edge.source_operator) == (source.vertex_id, 2)
    assert (edge.target_vertex_id, edge.target_operator, edge.target_input) == (
        merge.vertex_id,
        0,
        0,
    )
    assert source.operators[0].coordinator_kind == "file-source"
    assert os.path.abspath("flights/*.csv") in source.operators[0].coordinator_options_json
    assert cloudpickle.loads(merge.operators[1].spec).sink.path == os.path.abspath("out/daily")


def test_ids_are_the_same_every_time_the_program_is_built() -> None:
    first, second = (
        daily_delays(Environment(parallelism=2)),
        daily_delays(Environment(parallelism=4)),
    )
    assert [o.operator_id for v in first.vertices for o in v.operators] == [
        o.operator_id for v in second.vertices for o in v.operators
    ]
    assert first.job_id != second.job_id


def test_a_partial_aggregate_follows_the_parallelism_of_its_producer() -> None:
    env = Environment(parallelism=4)
    flights(env).set_parallelism(2).key_by("origin").window(Tumbling("1 day")).aggregate(
        "count(*) AS n"
    ).sink_to(CollectSink())
    assert [v.parallelism for v in env.job_graph().vertices] == [2, 4]


def test_union_feeds_one_input_over_several_edges() -> None:
    env = Environment(parallelism=2)
    a, b = env.from_sequence(0, 10), env.from_sequence(10, 20)
    a.union(b).map_in_arrow(lambda batches: batches).print()
    graph = env.job_graph()
    assert [(e.target_operator, e.target_input) for e in graph.edges] == [(0, 0), (0, 0)]
    assert len({e.result_id for e in graph.edges}) == 2


def test_connect_feeds_two_inputs() -> None:
    env = Environment(parallelism=2)
    a, b = env.from_sequence(0, 10), env.from_sequence(10, 20)
    a.connect(b).key_by("value", "value").map_in_arrow(iter, iter, "value long").print()
    graph = env.job_graph()
    assert [(e.target_input, e.partitioner) for e in graph.edges] == [
        (0, Partitioner.HASH),
        (1, Partitioner.HASH),
    ]


def test_groups_and_profiles_reach_the_vertices() -> None:
    env = Environment(parallelism=2)
    big = ResourceProfile(cpu_cores=1, heap_bytes=2**30)
    env.resource_group("big", big)
    env.from_sequence(0, 10).rebalance().map_in_arrow(iter).resource_group(
        "big"
    ).print().slot_sharing_group("sinks")
    source, mapped, sink = env.job_graph().vertices
    assert (source.resource_group, source.resources) == ("", UNKNOWN)
    assert (mapped.resource_group, mapped.resources) == ("big", big)
    assert sink.slot_sharing_group == "sinks"


def test_chaining_can_be_switched_off_for_the_whole_job() -> None:
    env = Environment(configuration={"pipeline.operator-chaining.enabled": "false"})
    env.from_sequence(0, 10).map_in_arrow(iter).print()
    assert len(env.job_graph().vertices) == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda env: env.from_sequence(0, 1).key_by(), "name at least one column"),
        (
            lambda env: env.from_sequence(0, 1).transform("x > 1"),
            r"transform\(\) takes a function, not str",
        ),
        (
            lambda env: (
                env.from_sequence(0, 1)
                .key_by("value")
                .window(Tumbling("1 day"))
                .aggregate("count(*) AS n")
            ),
            "no watermarks",
        ),
        (
            lambda env: (
                env.from_sequence(0, 1)
                .key_by("value")
                .window(Tumbling("soon"))
                .aggregate("count(*) AS n")
            ),
            "'soon'; specify a duration",
        ),
        (lambda env: env.from_sequence(0, 1).map_in_arrow(iter).set_parallelism(0), "at least 1"),
        (lambda env: env.from_sequence(0, 1).resource_group("none"), "no resource group 'none'"),
        (lambda env: env.from_sequence(0, 1).key_by("value").uid("x"), "directly after"),
        (
            lambda env: env.from_sequence(0, 1).union(Environment().from_sequence(0, 1)),
            "different environments",
        ),
        (
            lambda env: env.from_sequence(0, 1).sink_to("out"),
            "takes a Sink, such as FileSink or CollectSink, not str",
        ),
        (
            lambda env: env.from_sequence(0, 1).assign_timestamps_and_watermarks(
                Watermarks.bounded("value").with_alignment("g", max_drift="1 min")
            ),
            r"with_alignment\('g'\) pauses sources, .* pass these watermarks to from_source",
        ),
        (
            lambda env: Watermarks.bounded("at").with_alignment("", max_drift="1 min"),
            "takes the name of a group, not ''",
        ),
        (
            lambda env: Watermarks.bounded("at").with_alignment("g", max_drift="0 s"),
            r"max_drift of with_alignment\(\) is '0 s'",
        ),
        (
            lambda env: Watermarks.bounded("at").with_alignment(
                "g", max_drift="1 s", update_interval="1 us"
            ),
            "'1 us'",
        ),
        (lambda env: env.from_sequence(5, 1), "end must not be before start"),
        (lambda env: env.job_graph(), "no operators"),
    ],
)
def test_a_wrong_program_says_what_is_wrong(wrong: object, message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        wrong(Environment())  # type: ignore[operator]


def test_a_slot_too_small_for_spark_is_refused_with_the_minimum() -> None:
    def with_heaps(source_mib: int, map_mib: int, **parallelism: int) -> Environment:
        env = Environment(**parallelism)  # type: ignore[arg-type]
        stream = env.from_sequence(0, 1).set_resources(
            ResourceProfile(cpu_cores=1, heap_bytes=source_mib * 2**20)
        )
        stream.rebalance().map_in_arrow(iter, name="Map").set_resources(
            ResourceProfile(cpu_cores=1, heap_bytes=map_mib * 2**20)
        ).set_parallelism(2).print().set_parallelism(1)
        return env

    assert len(with_heaps(100, 100, parallelism=2).job_graph().vertices) == 3, (
        "they share slots of 200 MiB"
    )
    with pytest.raises(
        InvalidProgram, match=r"'Map' requests slots with a heap of 100 MiB.* needs 192 MiB or more"
    ):
        with_heaps(100, 100, parallelism=1).job_graph()  # the second Map is alone in its slot


def test_what_cannot_be_pickled_is_named() -> None:
    env = Environment()
    lock = threading.Lock()
    env.from_sequence(0, 1).map_in_arrow(
        lambda batches: [lock.locked()] and batches, name="Locked"
    ).print()
    with pytest.raises(
        InvalidProgram,
        match=r"'Locked' \(test_program\.py, line \d+\) cannot be shipped.*refers to 'lock' \(lock\) that cannot be pickled.*create it inside",
    ):
        env.job_graph()


def test_print_is_a_print_sink() -> None:
    env = Environment()
    env.from_sequence(0, 1).print("n: ")
    assert cloudpickle.loads(env.job_graph().vertices[0].operators[1].spec).sink == PrintSink("n: ")


class _Splits(StreamOperator):
    pass


def test_side_outputs_are_edges_of_their_own() -> None:
    env = Environment(parallelism=2)
    split = env.from_sequence(0, 10).operator("split", _Splits, side_outputs={"odd": None})
    split.map_in_arrow(lambda batches: batches, name="even").sink_to(DiscardSink())
    split.side_output("odd").key_by("value").sink_to(DiscardSink(), name="odd")
    graph = env.job_graph()
    (edge,) = graph.edges
    assert (edge.side_output_tag, edge.partitioner, edge.key_columns) == (
        "odd",
        Partitioner.HASH,
        ("value",),
    )
    assert [v.name for v in graph.vertices] == [
        "Source: Sequence -> split -> even -> Sink: Discard",
        "odd",
    ]


def test_side_outputs_that_an_operator_does_not_have() -> None:
    env = Environment()
    source = env.from_sequence(0, 10)
    with pytest.raises(InvalidProgram, match="has no side output 'late'; it has: none"):
        source.side_output("late")
    split = source.operator("split", _Splits, side_outputs={"odd": None, "even": "value LONG"})
    with pytest.raises(InvalidProgram, match="has no side output 'late'; it has: even, odd"):
        split.side_output("late")
    with pytest.raises(InvalidProgram, match="directly after"):
        split.key_by("value").side_output("odd")
    with pytest.raises(InvalidProgram, match="'' is not a tag"):
        source.operator("split", _Splits, side_outputs={"": None})


def test_malformed_rows_are_a_side_output_of_their_source() -> None:
    env = Environment()
    source = env.from_source(
        FileSource("/tmp/x.csv", format="csv", schema="a INT", malformed="side_output")
    )
    source.side_output(MALFORMED_TAG).print()
    dropped = env.from_source(
        FileSource("/tmp/x.csv", format="csv", schema="a INT", malformed="drop")
    )
    with pytest.raises(InvalidProgram, match="has no side output"):
        dropped.side_output(MALFORMED_TAG)


def test_broadcast_states_need_names_a_function_and_a_schema() -> None:
    env = Environment()
    rows, rules = env.from_sequence(0, 9), env.from_sequence(0, 9)
    for names in (("",), (1,), ("firesteel.declared",)):
        with pytest.raises(InvalidProgram, match="name the states that the rows"):
            rules.broadcast(*names)  # type: ignore[arg-type]
    with pytest.raises(InvalidProgram, match="a state is named twice"):
        rules.broadcast("rules", "rules")
    both = rows.connect(rules.broadcast("rules"))
    with pytest.raises(InvalidProgram, match="takes a BroadcastProcessFunction, or for a keyed"):
        both.process(CoProcessFunction(), "n LONG")  # type: ignore[arg-type]
    with pytest.raises(InvalidProgram, match=r"takes the rows of keys: call key_by\(...\) before"):
        both.process(KeyedBroadcastProcessFunction(), "n LONG")
    with pytest.raises(InvalidProgram, match="needs the output schema of the function"):
        both.process(BroadcastProcessFunction(), None)
    keyed = rows.key_by("value").connect(rules.broadcast("rules"))
    with pytest.raises(InvalidProgram, match="takes rows without keys: derive it from Keyed"):
        keyed.process(BroadcastProcessFunction(), "n LONG")
    with pytest.raises(InvalidProgram, match="belong to different environments"):
        rows.connect(Environment().from_sequence(0, 1).broadcast("rules"))


def test_a_broadcast_stream_of_a_batch_has_a_separate_source() -> None:
    env = Environment(mode="batch")
    rows = env.from_sequence(0, 9)
    both = rows.connect(rows.broadcast("rules")).process(BroadcastProcessFunction(), "n LONG")
    both.print()
    with pytest.raises(InvalidProgram, match="so it needs a separate source"):
        env._program.job_graph("rules")


def test_process_needs_a_function_that_fits_the_stream_and_a_schema() -> None:
    rows = Environment().from_sequence(0, 9)
    keyed = rows.key_by("value")
    for stream, function, says in (
        (rows, KeyedProcessFunction(), r"call key_by\(...\).process\(KeyedProcessFunction"),
        (keyed, ProcessFunction(), "takes rows without keys: derive it from KeyedProcessFunction"),
        (keyed, CoProcessFunction(), r"which takes two streams: call connect\(other\).key_by"),
        (rows, BroadcastProcessFunction(), r'call connect\(rules.broadcast\("rules"\)\).process'),
        (keyed, KeyedProcessFunction, r"takes an object, not its class: KeyedProcessFunction\("),
        (rows, lambda row: row, r"<lambda> is a function; pass it to map\(...\) or flat_map"),
        (keyed, "f", "takes a KeyedProcessFunction of firesteel, not str 'f'"),
    ):
        with pytest.raises(InvalidProgram, match=says):
            stream.process(function, "n LONG")  # type: ignore[arg-type]
    with pytest.raises(InvalidProgram, match="needs the output schema of the function"):
        rows.process(ProcessFunction(), None)
    with pytest.raises(InvalidProgram, match="it has: odd"):
        keyed.process(KeyedProcessFunction(), "n LONG", side_outputs={"odd": None}).side_output("x")


def test_process_knows_the_time_of_its_rows() -> None:
    rows = Environment().from_sequence(0, 9).with_column("at", "timestamp_seconds(value)")
    timed = rows.assign_timestamps_and_watermarks(Watermarks.bounded("at"))
    windows = timed.with_column_renamed("at", "time").window_all(Tumbling("1 s"))
    for stream, time in (
        (rows, None),
        (timed, RowTimeSpec(column="at")),
        (timed.with_column_renamed("at", "time"), RowTimeSpec(column="time")),
        (windows.aggregate("count(*) AS n"), RowTimeSpec(column="window_end", shift_us=-1)),
    ):
        spec = stream.process(ProcessFunction(), "n LONG")._operator().spec
        assert isinstance(spec, ProcessSpec)
        assert spec.time == time


def test_co_process_needs_a_function_keys_and_a_schema() -> None:
    env = Environment()
    first, second = env.from_sequence(0, 10), env.from_sequence(0, 10)
    with pytest.raises(InvalidProgram, match="key_by"):
        first.connect(second).co_process(CoProcessFunction(), "n LONG")
    keyed = first.connect(second).key_by("value", "value")
    with pytest.raises(InvalidProgram, match="takes a CoProcessFunction, not str"):
        keyed.co_process("f", "n LONG")  # type: ignore[arg-type]
    with pytest.raises(InvalidProgram, match="needs the output schema"):
        keyed.co_process(CoProcessFunction(), None)
    with pytest.raises(InvalidProgram, match="different numbers of columns"):
        first.connect(second).key_by(("value", "other"), "value").co_process(
            CoProcessFunction(), "n LONG"
        )


def test_a_filter_in_sql_is_part_of_the_plan_and_a_function_is_not() -> None:
    env = Environment()
    numbers = env.from_sequence(0, 10)
    numbers.filter("value > 1").filter(lambda batch: batch["value"]).sink_to(DiscardSink())
    with pytest.raises(InvalidProgram, match="filter\\(\\) takes a function, not int"):
        env.from_sequence(0, 10).filter(1)  # type: ignore[arg-type]
    operators = [o for v in env.job_graph().vertices for o in v.operators]
    assert [(o.name, o.runs_on_spark) for o in operators if o.name.startswith("Filter")] == [
        ("Filter(value > 1)", True),
        ("Filter", False),
    ]


def aligned(watermarks: Watermarks) -> dict[str, object]:
    """Returns the coordinator options of a program with two sources, by operator."""
    env = Environment()
    env.from_source(
        FileSource("/data/*.csv", format="csv", schema="at TIMESTAMP"),
        watermarks=watermarks,
        uid="files",
    ).print()
    env.from_source(SequenceSource(0, 10), watermarks=watermarks, uid="numbers").print()
    operators = [operator for vertex in env.job_graph().vertices for operator in vertex.operators]
    return {
        o.name: (o.coordinator_kind, json.loads(o.coordinator_options_json))
        for o in operators
        if o.coordinator_kind
    }


def test_operators_that_assign_watermarks_have_an_alignment_coordinator() -> None:
    group = {"alignment": {"group": "g", "max_drift_us": 60_000_000, "update_interval_us": 50_000}}
    found = aligned(
        Watermarks.bounded("at").with_alignment("g", max_drift="1 min", update_interval="50 ms")
    )
    assert set(found) == {"Source: files", "Source: numbers", "Watermarks"}
    assert found["Source: files"] == (
        "file-source",
        {"paths": ["/data/*.csv"], "parallelism": 1, "cut": True, **group},
    )
    assert found["Watermarks"] == ("alignment", group)
    found = aligned(
        Watermarks.custom(lambda batch: None).with_alignment(
            "g", max_drift="1 min", update_interval="50 ms"
        )
    )
    assert [found[name] for name in found if name != "Source: numbers"] == [
        ("file-source", {"paths": ["/data/*.csv"], "parallelism": 1, "cut": True}),
        ("alignment", group),
    ]
    assert "Watermarks" not in aligned(Watermarks.custom(lambda batch: None))
