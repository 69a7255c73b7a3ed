"""Streaming and batch: what decides, and what becomes of the job graph."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming import StatefulProcessor

from firesteel import (
    CoProcessFunction,
    DataStream,
    Environment,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
    Watermarks,
)
from firesteel.common.job_graph import JobGraph, ResultType
from firesteel.connectors import DiscardSink, FileSource, SequenceSource
from firesteel.errors import InvalidProgram
from firesteel.operators import SourceSpec


def graph(env: Environment, end: int | None = 10, **overrides: str) -> JobGraph:
    numbers = env.from_source(SequenceSource(0, end, "n"), name="Numbers")
    numbers.rebalance().filter("n > 1").key_by("n").aggregate("count(*) AS c").sink_to(
        DiscardSink()
    )
    return env.job_graph(overrides={key.replace("_", "."): text for key, text in overrides.items()})


def result_types(found: JobGraph) -> set[ResultType]:
    assert len(found.edges) >= 2
    return {edge.result_type for edge in found.edges}


def test_a_batch_exchanges_whole_results_and_takes_no_checkpoints() -> None:
    with pytest.warns(UserWarning, match="takes no checkpoints: execution.checkpointing.interval"):
        found = graph(
            Environment(
                mode="batch",
                parallelism=2,
                configuration={"execution.checkpointing.interval": "1 s"},
            )
        )
    assert found.batch
    assert result_types(found) == {ResultType.BLOCKING}
    assert found.config["execution.checkpointing.interval"] == "0 s", "whatever the cluster's is"
    assert found.config["execution.runtime-mode"] == "BATCH"


def test_a_program_is_a_stream_unless_it_says_otherwise() -> None:
    for env in (Environment(), Environment(mode="streaming")):
        found = graph(env)
        assert not found.batch
        assert result_types(found) == {ResultType.PIPELINED}


def test_automatic_is_batch_if_all_sources_end_and_no_state_is_restored() -> None:
    assert graph(Environment(mode="automatic")).batch
    assert not graph(Environment(mode="automatic"), end=None).batch
    savepoint = {"execution.state-recovery.path": "/savepoint"}
    assert not graph(Environment(mode="automatic", configuration=savepoint)).batch


def test_the_command_line_wins_and_exchanges_can_stay_pipelined() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = Environment(configuration={"execution.batch-shuffle-mode": "all_exchanges_pipelined"})
        numbers = env.from_sequence(0, 10)
        numbers.key_by("value").aggregate("count(*) AS c").sink_to(DiscardSink())
        found = env.job_graph(overrides={"execution.runtime-mode": "batch"})
    assert found.batch
    assert {edge.result_type for edge in found.edges} == {ResultType.PIPELINED}


def test_what_cannot_be_a_batch_is_refused_with_its_place() -> None:
    with pytest.raises(
        InvalidProgram, match=r"'Source: Numbers' \(test_runtime_mode.py.*never ends"
    ):
        graph(Environment(mode="batch"), end=None)
    env = Environment(mode="batch", configuration={"execution.state-recovery.path": "/savepoint"})
    with pytest.raises(InvalidProgram, match="cannot start from state: omit '/savepoint'"):
        graph(env)
    with pytest.raises(InvalidProgram, match=r"mode='bulk'.*'streaming', 'batch', 'automatic'"):
        Environment(mode="bulk")


class Counted(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> None: ...

    def process_element2(self, value: Any, ctx: Any) -> None: ...


class Timed(Counted):
    def process_element2(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(1)

    def on_timer(self, timestamp_ms: int, ctx: Any) -> None: ...


class TimedElsewhere(Counted):
    def process_element2(self, value: Any, ctx: Any) -> None:
        set_timer(ctx)

    def on_timer(self, timestamp_ms: int, ctx: Any) -> None: ...


class Clocked(Counted):
    def process_element2(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_processing_time_timer(1)

    def on_timer(self, timestamp_ms: int, ctx: Any) -> None: ...


def set_timer(ctx: Any) -> None:
    ctx.timer_service().register_event_time_timer(1)


class Rules(KeyedBroadcastProcessFunction):
    process_element = process_broadcast_element = Timed.process_element2
    on_timer = Timed.on_timer


class Processor(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any: ...


def processed(function: CoProcessFunction) -> Callable[[DataStream, DataStream], DataStream]:
    return lambda a, b: a.connect(b).key_by("n", "n").co_process(function, "n LONG", name="Timers")


class TimedOne(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        set_timer(ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> None: ...


def stateful(time_mode: str) -> Callable[[DataStream, DataStream], DataStream]:
    def program(a: DataStream, _: DataStream) -> DataStream:
        timed = a.with_column("at", "timestamp_seconds(n)").assign_timestamps_and_watermarks(
            Watermarks.bounded("at")
        )
        return timed.key_by("n").transform_with_state(
            Processor(), "n LONG", time_mode=time_mode, name="Timers"
        )

    return program


@pytest.mark.parametrize(
    ("program", "warned"),
    [
        (processed(Timed()), True),
        (processed(TimedElsewhere()), True),
        (processed(Clocked()), False),
        (processed(Counted()), False),
        (lambda a, b: a.key_by("n").process(TimedOne(), "n LONG", name="Timers"), True),
        (lambda a, b: a.process(ProcessFunction(), "n LONG", name="Timers"), False),
        (stateful("event_time"), True),
        (stateful("processing_time"), False),
        (
            lambda a, b: (
                a.key_by("n").connect(b.broadcast("r")).process(Rules(), "n LONG", name="Timers")
            ),
            True,
        ),
    ],
)
def test_timers_of_a_batch_are_due_at_its_end(
    program: Callable[[DataStream, DataStream], DataStream], warned: bool
) -> None:
    for mode, shuffle in (
        ("batch", "ALL_EXCHANGES_BLOCKING"),
        ("batch", "ALL_EXCHANGES_PIPELINED"),
        ("streaming", "ALL_EXCHANGES_BLOCKING"),
    ):
        env = Environment(mode=mode, configuration={"execution.batch-shuffle-mode": shuffle})
        one, other = env.from_sequence(0, 9, column="n"), env.from_sequence(0, 9, column="n")
        program(one, other).sink_to(DiscardSink())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            env.job_graph()
        blocking = mode == "batch" and shuffle == "ALL_EXCHANGES_BLOCKING"
        said = [str(one.message) for one in caught]
        assert len(said) == (warned and blocking)
        if said:
            assert re.match(
                r"'Timers' \(test_runtime_mode.py, .* timers in event time: in a batch", said[0]
            )


def test_sources_of_a_batch_do_not_wait_for_each_others_watermarks() -> None:
    def aligned(mode: str) -> str:
        env = Environment(mode=mode)
        watermarks = Watermarks.bounded("t").with_alignment("group", max_drift="1 s")
        source = FileSource("/data", format="csv", schema="t timestamp")
        env.from_source(source, watermarks=watermarks).sink_to(DiscardSink())
        operators = [o for v in env.job_graph().vertices for o in v.operators]
        return " ".join(operator.coordinator_options_json for operator in operators)

    assert "alignment" in aligned("streaming")
    assert "alignment" not in aligned("batch")


def test_a_watched_folder_never_ends() -> None:
    source = FileSource("/data", format="csv", schema="t timestamp")
    assert SourceSpec(source=source).bounded
    watched = FileSource("/data", format="csv", schema="t timestamp", watch="1 s").resolved()
    assert not SourceSpec(source=watched).bounded


def test_a_function_of_a_whole_stream_needs_one_that_ends() -> None:
    env = Environment()
    endless = env.from_source(SequenceSource(0, None, "n"), name="Numbers")
    endless.key_by("n").apply(lambda df: df, name="All").sink_to(DiscardSink())
    with pytest.raises(
        InvalidProgram, match=r"All.* waits for its end, and 'Source: Numbers'.* may never"
    ):
        env.job_graph()


def test_it_does_not_wait_for_other_streams() -> None:
    env = Environment()
    env.from_source(SequenceSource(0, None, "n")).sink_to(DiscardSink())
    env.from_sequence(0, 9, column="n").apply(lambda df: df).sink_to(DiscardSink())
    assert not env.job_graph().batch


def test_functions_of_two_whole_streams_have_the_same_keys_or_none() -> None:
    env = Environment(parallelism=2)
    one, two = env.from_sequence(0, 9, column="n"), env.from_sequence(0, 9, column="m")
    with pytest.raises(InvalidProgram, match="rows with equal keys from both"):
        one.key_by("n").connect(two).apply(lambda left, right: left)
    with pytest.raises(InvalidProgram, match="the same number of columns for each"):
        one.connect(two).key_by(["n", "x"], "m").apply(lambda left, right: left)
    one.connect(two).apply(lambda left, right: left, name="Both").sink_to(DiscardSink())
    whole = next(vertex for vertex in env.job_graph().vertices if "Both" in vertex.name)
    assert whole.parallelism == 1


def edges_of(env: Environment) -> dict[tuple[str, str], ResultType]:
    found = env.job_graph()
    names = {vertex.vertex_id: vertex.name for vertex in found.vertices}
    return {
        (names[edge.source_vertex_id], names[edge.target_vertex_id]): edge.result_type
        for edge in found.edges
    }


def test_exchanges_are_chosen_one_by_one() -> None:
    env = Environment(mode="batch", parallelism=2)
    numbers = env.from_source(SequenceSource(0, 10, "n"), name="Numbers")
    counted = numbers.exchange("pipelined").key_by("n").aggregate("count(*) AS c", name="Count")
    counted.rebalance().where("c > 1", name="Many").sink_to(DiscardSink(), name="Sink")
    assert edges_of(env) == {
        ("Source: Numbers -> Count partial", "Count"): ResultType.PIPELINED,
        ("Count", "Many -> Sink"): ResultType.BLOCKING,
    }


def test_an_operator_after_a_chosen_exchange_has_a_separate_task() -> None:
    env = Environment(mode="batch", parallelism=2)
    numbers = env.from_source(SequenceSource(0, 10, "n"), name="Numbers").exchange("blocking")
    numbers.where("n > 1", name="Many").sink_to(DiscardSink(), name="Sink")
    assert edges_of(env) == {("Source: Numbers", "Many -> Sink"): ResultType.BLOCKING}


def test_a_stream_has_no_blocking_exchange() -> None:
    env = Environment()
    env.from_sequence(0, 10).exchange("blocking").rebalance().sink_to(DiscardSink())
    with pytest.raises(InvalidProgram, match="is blocking, which a stream cannot have"):
        env.job_graph()


def test_what_would_wait_for_itself_is_refused() -> None:
    env = Environment(mode="batch", parallelism=2)
    numbers = env.from_source(SequenceSource(0, 10, "n"), name="Numbers")
    doubled = numbers.exchange("pipelined").rebalance().where("n > 1", name="Many")
    both = numbers.rebalance().connect(doubled.exchange("pipelined").rebalance())
    both.map_in_arrow(lambda rows: rows, lambda rows: rows, "n LONG", name="Both").sink_to(
        DiscardSink()
    )
    with pytest.raises(InvalidProgram, match=r"'Both.*' would wait for 'Source: Numbers' to end"):
        env.job_graph()


def test_an_unknown_kind_of_exchange() -> None:
    with pytest.raises(InvalidProgram, match="allowed are 'pipelined', 'blocking'"):
        Environment().from_sequence(0, 1).exchange("lazy")  # type: ignore[arg-type]
