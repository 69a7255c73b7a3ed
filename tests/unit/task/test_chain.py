"""Grouping operators, and how a chain that is a DAG is wired."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from firesteel.common.job_graph import JobVertex
from firesteel.common.states import ExecutionState
from firesteel.elements import MAX_WATERMARK, EndOfData, EndOfPartition, StreamStatus, Watermark
from firesteel.plan.fusion import group_operators
from firesteel.testing import Journal, RecordingOperator, RecordingSource
from tests.unit.task.runs import Run, batch, in_edge, operator, out_edge, vertex


def grouped(
    task_vertex: JobVertex, *leaving: int, entering: tuple[int, ...] = ()
) -> list[tuple[int, ...]]:
    return group_operators(
        task_vertex,
        [in_edge(f"in {index}", index) for index in entering],
        [out_edge(f"out {index}", index) for index in leaving],
    )


def test_a_linear_run_on_spark_is_one_operator() -> None:
    chain = vertex(
        operator("src", spark=True),
        operator("a", (0,), spark=True),
        operator("b", (1,), spark=True),
    )
    assert grouped(chain, 2) == [(0, 1, 2)]


def test_what_follows_a_function_of_all_rows_is_in_its_plan() -> None:
    whole = replace(operator("whole", (0,)), kind="Apply")
    chain = vertex(
        operator("a", (), spark=True),
        whole,
        operator("b", (1,), spark=True),
        operator("c", (2,), spark=True),
        replace(whole, inputs=((3,),)),
    )
    assert grouped(chain, 4, entering=(0,)) == [(0,), (1, 2, 3), (4,)]


def test_python_operators_stand_alone_and_cut_runs() -> None:
    chain = vertex(
        operator("a", (), spark=True),
        operator("py", (0,)),
        operator("b", (1,), spark=True),
        operator("c", (2,), spark=True),
        operator("sink", (3,)),
    )
    assert grouped(chain, entering=(0,)) == [(0,), (1,), (2, 3), (4,)]


def test_an_edge_that_leaves_or_enters_in_between_cuts_a_run() -> None:
    chain = vertex(
        operator("a", (), spark=True),
        operator("b", (0,), spark=True),
        operator("c", (1,), spark=True),
    )
    assert grouped(chain, 0, 2, entering=(0,)) == [(0,), (1, 2)]
    assert grouped(chain, 2, entering=(0, 2)) == [(0, 1), (2,)]


def test_a_side_output_does_not_cut_a_run() -> None:
    chain = vertex(operator("src", spark=True), operator("a", (0,), spark=True))
    assert group_operators(chain, [], [out_edge("side", 0, "malformed"), out_edge("main", 1)]) == [
        (0, 1)
    ]


def test_branches_and_unions_cut_runs() -> None:
    branches = vertex(
        operator("a", (), spark=True),
        operator("b", (0,), spark=True),
        operator("c", (0,), spark=True),
    )
    assert grouped(branches, 1, 2, entering=(0,)) == [(0,), (1,), (2,)]
    union = vertex(
        operator("a", (), spark=True),
        operator("b", (), spark=True),
        operator("c", (0, 1), spark=True),
    )
    assert grouped(union, 2, entering=(0, 1)) == [(0,), (1,), (2,)]


def test_groups_are_in_topological_order() -> None:
    chain = vertex(
        operator("src", spark=True),
        operator("a", (0,), spark=True),
        operator("b", (1,)),
        operator("c", (1, 2)),
        operator("d", (3,)),
    )
    assert grouped(chain, 4) == [(0, 1), (2,), (3,), (4,)]


CALLS = (
    *("setup", "initialize_state", "open", "process_batch(0)", "process_watermark(5)"),
    *("on_event_time(5)", "on_processing_time", "mail", "end_input(0)", "finish", "close"),
)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("failing", ["right", "left"])
def test_a_failure_names_the_place_of_its_operator(failing: str, call: str) -> None:
    """src feeds right, which feeds left."""
    journal = Journal()
    journal.fail_in(f"{failing}.{call}", ValueError("boom"))
    run = places_run(journal)
    assert [error.summary for error in run.errors] == [f"job.py, line {failing}: ValueError: boom"]


def test_a_failure_of_a_source_names_its_place() -> None:
    journal = Journal()
    journal.fail_in("src.poll", ValueError("boom"))
    assert places_run(journal).errors[0].summary == "job.py, line src: ValueError: boom"


def test_an_operator_that_replaces_an_error_raises_the_new_one() -> None:
    journal = Journal()
    journal.fail_in("left.process_batch(0)", ValueError("boom"))

    def replaced(here: RecordingOperator, rows: pa.RecordBatch, _: int) -> None:
        try:
            here.output.emit(rows)
        except ValueError as error:
            raise KeyError("rows") from error

    run = places_run(journal, replaced)
    assert run.errors[0].summary.startswith("job.py, line right: KeyError")


def test_an_error_that_an_operator_passes_on_keeps_its_place() -> None:
    journal = Journal()
    journal.fail_in("left.process_batch(0)", ValueError("boom"))
    cleaned: list[str] = []

    def cleaning(here: RecordingOperator, rows: pa.RecordBatch, _: int) -> None:
        try:
            here.output.emit(rows)
        except ValueError:
            cleaned.append(here.name)
            raise

    run = places_run(journal, cleaning)
    assert cleaned == ["right"]
    assert run.errors[0].summary == "job.py, line left: ValueError: boom"


def places_run(
    journal: Journal,
    on_batch: Callable[[RecordingOperator, pa.RecordBatch, int], None] | None = None,
) -> Run:
    """src -> right -> left, each with a place."""

    def busy(here: RecordingOperator, rows: pa.RecordBatch, _: int) -> None:
        here.context.timers.register_event_time(5)
        here.context.timers.register_processing_time(0)
        here.context.request_mail(lambda: journal.note(here.name, "mail"))

    names = ("src", "right", "left")
    inputs: tuple[tuple[tuple[int, ...], ...], ...] = ((), ((0,),), ((1,),))
    chain = [
        replace(operator(name, *of), place=f"job.py, line {name}")
        for name, of in zip(names, inputs, strict=True)
    ]
    return Run(
        vertex(*chain),
        {
            "src": RecordingSource("src", journal, [batch(1), Watermark(5), batch(2)]),
            "right": RecordingOperator("right", journal, on_batch=on_batch or busy),
            "left": RecordingOperator("left", journal, on_batch=busy),
        },
    ).run()


def test_a_diamond_with_a_two_input_operator() -> None:
    """src feeds left and right, which feed the two inputs of join; left also leaves the task."""
    journal = Journal()
    tap, out = out_edge("tap", 1), out_edge("out", 3)
    run = Run(
        vertex(
            operator("src"),
            operator("left", (0,)),
            operator("right", (0,)),
            operator("join", (1,), (2,)),
        ),
        {
            "src": RecordingSource("src", journal, [batch(1), Watermark(5)]),
            "left": RecordingOperator("left", journal),
            "right": RecordingOperator("right", journal),
            "join": RecordingOperator("join", journal, inputs=2),
        },
        out_edges=[tap, out],
    ).run()
    assert run.states[-1] is ExecutionState.FINISHED
    assert journal.of("open") == ["join.open", "right.open", "left.open", "src.open"]
    assert journal.of("process_batch") == [
        "left.process_batch(0)", "join.process_batch(0)",
        "right.process_batch(0)", "join.process_batch(1)",
    ]  # fmt: skip
    assert journal.of("process_watermark")[:3] == [
        "left.process_watermark(5)", "right.process_watermark(5)", "join.process_watermark(5)"
    ]  # fmt: skip
    assert journal.of("end_input", "finish", "close") == [
        "src.finish",
        *["left.end_input(0)", "right.end_input(0)"],
        *["left.finish", "join.end_input(0)", "right.finish", "join.end_input(1)", "join.finish"],
        *["src.close", "left.close", "right.close", "join.close"],
    ]
    assert run.sent(tap) == [
        batch(1),
        Watermark(5),
        MAX_WATERMARK,
        EndOfData(True),
        EndOfPartition(),
    ]
    assert run.sent(out) == [
        batch(1),
        batch(1),
        Watermark(5),
        MAX_WATERMARK,
        EndOfData(True),
        EndOfPartition(),
    ]


def test_a_union_of_a_chained_producer_and_an_edge_into_one_input() -> None:
    journal = Journal()
    first, second, out = in_edge("first", 0), in_edge("second", 1), out_edge("out", 1)
    run = Run(
        vertex(operator("map", ()), operator("union", (0,))),
        {"map": RecordingOperator("map", journal), "union": RecordingOperator("union", journal)},
        in_edges=[(first, 1), (second, 1)],
        out_edges=[out],
    )
    for edge, watermark_us in ((first, 10), (second, 20)):
        producer = run.producer(edge)
        producer.emit(batch(watermark_us))
        for event in (Watermark(watermark_us), MAX_WATERMARK, EndOfData(True), EndOfPartition()):
            producer.emit_event(event)
    run.run()
    assert run.states[-1] is ExecutionState.FINISHED
    assert journal.of("end_input") == ["map.end_input(0)", "union.end_input(0)"]
    assert [element for element in run.sent(out) if isinstance(element, Watermark)] == [
        Watermark(10),
        Watermark(20),
        MAX_WATERMARK,
    ]


def test_side_outputs_go_to_the_edges_with_their_tag() -> None:
    journal = Journal()
    late, out = out_edge("late", 0, tag="late"), out_edge("out", 0)

    def split(op: RecordingOperator, data: pa.RecordBatch, index: int) -> None:
        op.output.emit_side("late", batch(99))
        op.output.emit_side("unused", batch(98))

    edge = in_edge("in")
    run = Run(
        vertex(operator("map", ())),
        {"map": RecordingOperator("map", journal, on_batch=split)},
        in_edges=[(edge, 1)],
        out_edges=[late, out],
    )
    producer = run.producer(edge)
    producer.emit(batch(1))
    for event in (EndOfData(True), EndOfPartition()):
        producer.emit_event(event)
    run.run()
    assert run.sent(late) == [batch(99), MAX_WATERMARK, EndOfData(True), EndOfPartition()]
    assert run.sent(out) == [batch(1), MAX_WATERMARK, EndOfData(True), EndOfPartition()]


def test_idleness_travels_and_ends_with_the_next_element() -> None:
    journal = Journal()
    out = out_edge("out", 1)
    run = Run(
        vertex(operator("src"), operator("map", (0,))),
        {
            "src": RecordingSource(
                "src",
                journal,
                [Watermark(1), StreamStatus(True), StreamStatus(True), batch(1), Watermark(2)],
            ),
            "map": RecordingOperator("map", journal),
        },
        out_edges=[out],
    ).run()
    assert run.sent(out)[:5] == [
        Watermark(1),
        StreamStatus(True),
        StreamStatus(False),
        batch(1),
        Watermark(2),
    ]


def test_empty_batches_and_late_watermarks_go_nowhere() -> None:
    journal = Journal()
    out = out_edge("out", 1)
    run = Run(
        vertex(operator("src"), operator("map", (0,))),
        {
            "src": RecordingSource(
                "src", journal, [Watermark(5), batch(), Watermark(5), Watermark(4), batch(1)]
            ),
            "map": RecordingOperator("map", journal),
        },
        out_edges=[out],
    ).run()
    assert run.sent(out)[:3] == [Watermark(5), batch(1), MAX_WATERMARK]


def test_an_operator_that_keeps_watermarks_to_itself_still_ends_event_time() -> None:
    class Silent(RecordingOperator):
        def process_watermark(self, watermark: Watermark) -> None: ...

    journal = Journal()
    out = out_edge("out", 2)
    run = Run(
        vertex(operator("src"), operator("silent", (0,)), operator("last", (1,))),
        {
            "src": RecordingSource("src", journal, [Watermark(5), batch(1)]),
            "silent": Silent("silent", journal),
            "last": RecordingOperator("last", journal),
        },
        out_edges=[out],
    ).run()
    assert journal.of("process_watermark") == [
        "src.process_watermark(max)",
        "last.process_watermark(max)",
    ]
    assert run.sent(out) == [batch(1), MAX_WATERMARK, EndOfData(True), EndOfPartition()]


def test_event_time_ends_behind_what_comes_at_the_end() -> None:
    class Emitting(RecordingOperator):
        emits_at_end = True

        def process_watermark(self, watermark: Watermark) -> None:
            """Keeps it."""

        def finish(self) -> None:
            super().finish()
            self.output.emit(batch(3))

    journal, out = Journal(), out_edge("out", 2)
    run = Run(
        vertex(operator("src"), operator("at end", (0,)), operator("last", (1,))),
        {
            "src": RecordingSource("src", journal, [batch(1), Watermark(5)]),
            "at end": Emitting("at end", journal),
            "last": RecordingOperator("last", journal),
        },
        out_edges=[out],
    ).run()
    assert [call for call in journal.calls if call.startswith("last.")][3:-1] == [
        "last.process_batch(0)",
        "last.process_batch(0)",
        "last.process_watermark(max)",
        "last.end_input(0)",
        "last.finish",
    ]
    assert run.sent(out) == [batch(1), batch(3), MAX_WATERMARK, EndOfData(True), EndOfPartition()]


def test_bundles_are_flushed_before_event_time_advances_and_on_dry_input() -> None:
    class Bundling(RecordingOperator):
        held: tuple[pa.RecordBatch, ...] = ()

        def process_batch(self, data: pa.RecordBatch, input_index: int) -> None:
            self.held = (*self.held, data)

        def flush(self) -> None:
            held, self.held = self.held, ()
            for data in held:
                self.output.emit(data)

    journal = Journal()
    edge, out = in_edge("in"), out_edge("out", 0)
    run = Run(
        vertex(operator("bundle", ())),
        {"bundle": Bundling("bundle", journal)},
        in_edges=[(edge, 1)],
        out_edges=[out],
    )
    producer = run.producer(edge)
    producer.emit(batch(1))
    producer.emit(batch(2))
    producer.emit_event(Watermark(5))
    producer.emit(batch(3))
    run.start()
    gate = run.exchange.create_gate(
        job_id="", result_id=out.result_id, consumer=0, producers=1, consumers=1,
        pattern=out.pattern, locations=None,
        on_available=(arrived := threading.Event()).set,
    )  # fmt: skip
    seen = []
    while len(seen) < 4:  # batch 3 comes though nothing follows it
        polled = gate.poll()
        if polled is None:
            assert arrived.wait(60)
            arrived.clear()
        else:
            seen.append(polled[1])
    assert seen == [batch(1), batch(2), Watermark(5), batch(3)]
    run.task.cancel()
    run.join()


def test_schemas_of_inputs_are_known() -> None:
    journal = Journal()
    schemas: list[object] = []
    edge = in_edge("in", 1, 1)
    source_edge = in_edge("first", 0)
    join = RecordingOperator("join", journal, inputs=2)
    journal.hooks["join.open"] = lambda: schemas.extend(join.context.input_schemas)
    run = Run(
        vertex(operator("map", ()), operator("join", (0,), ())),
        {"map": RecordingOperator("map", journal), "join": join},
        in_edges=[(source_edge, 1), (edge, 1)],
    )
    journal.hooks["map.open"] = run.task.cancel
    run.run()
    assert schemas == [batch(1).schema, batch(1).schema]
