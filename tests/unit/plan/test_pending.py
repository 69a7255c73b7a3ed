"""The next job of a program consists of all operators that lead to a sink."""

from __future__ import annotations

import threading
import warnings

import pytest

from firesteel import Environment
from firesteel.client.execution_context import ExecutionContext, StopProgram, active
from firesteel.common.config import Configuration
from firesteel.common.job_graph import JobGraph
from firesteel.connectors import CollectSink, DiscardSink
from firesteel.errors import InvalidProgram
from firesteel.operator import StreamOperator


def planned(env: Environment) -> JobGraph:
    """Returns the JobGraph of `env.execute()`."""
    graphs: list[JobGraph] = []
    context = ExecutionContext(mode="plan-only", conf=Configuration(), on_job_graph=graphs.append)
    with active(context), pytest.raises(StopProgram):
        env.execute()
    (graph,) = graphs
    return graph


def names(graph: JobGraph) -> list[str]:
    return [operator.name for vertex in graph.vertices for operator in vertex.operators]


def test_a_program_without_a_sink_names_its_streams_ends_and_their_lines() -> None:
    env = Environment()
    numbers = env.from_sequence(0, 10)
    numbers.filter("value > 1")
    numbers.map_in_arrow(iter, name="Mine", uid="mine")
    with pytest.raises(InvalidProgram) as refused:
        env.execute()
    message = str(refused.value)
    assert "no sink" in message
    assert "'Filter(value > 1)' (test_pending.py, line 36)" in message
    assert "'Mine' (uid 'mine', test_pending.py, line 37)" in message
    assert "Sequence" not in message, "its rows are read"
    assert "print()" in message
    assert "DiscardSink()" in message


def test_a_stream_without_a_sink_is_not_run_and_execute_reports_it() -> None:
    env = Environment()
    numbers = env.from_sequence(0, 10)
    numbers.filter("value > 1").print()
    forgotten = numbers.filter("value > 2").map_in_arrow(iter, name="Forgotten")
    with pytest.warns(UserWarning, match=r"'Forgotten' \(test_pending.py.* nothing computes") as w:
        graph = planned(env)
    assert w[0].filename == __file__
    assert names(graph) == ["Source: Sequence", "Filter(value > 1)", "Sink: Print"]
    forgotten.sink_to(DiscardSink())
    assert names(planned(env))[-3:] == ["Filter(value > 2)", "Forgotten", "Sink: Discard"]


def test_what_leads_to_no_sink_leaves_the_ids_of_the_rest_alone() -> None:
    def program(*, with_others: bool) -> JobGraph:
        env = Environment()
        numbers = env.from_sequence(0, 10)
        if with_others:
            numbers.filter("value > 1")
        numbers.sink_to(CollectSink(), uid="collected")
        return env.job_graph()

    assert [v.vertex_id for v in program(with_others=True).vertices] == [
        v.vertex_id for v in program(with_others=False).vertices
    ]


class _Sides(StreamOperator):
    pass


def test_a_sink_on_a_side_output_is_enough() -> None:
    env = Environment()
    split = env.from_sequence(0, 10).operator("split", _Sides, side_outputs={"odd": None})
    split.side_output("odd").print()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names(planned(env)) == ["Source: Sequence", "split", "Sink: Print"]


def test_a_job_that_was_not_submitted_leaves_its_sinks_to_the_next_one() -> None:
    env = Environment()
    env.from_sequence(0, 10).print()
    assert names(planned(env)) == names(planned(env)) == names(env.job_graph())


def test_rows_that_one_job_could_not_collect_are_not_in_the_next_job() -> None:
    env = Environment()
    numbers = env.from_sequence(0, 10)
    lock = threading.Lock()
    broken = numbers.map_in_arrow(lambda batches: [lock.locked()] and batches, name="Broken")
    with active(ExecutionContext(mode="plan-only")):
        with pytest.raises(
            InvalidProgram, match=r"'Broken' \(test_pending\.py, line \d+\) cannot be shipped"
        ):
            broken.execute_and_collect()
        with pytest.raises(StopProgram):
            numbers.execute_and_collect()
    numbers.print()
    assert names(env.job_graph()) == ["Source: Sequence", "Sink: Print"]
