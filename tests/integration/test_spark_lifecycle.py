"""The lifecycle of one real chain: a source, Spark stages that are fused, operators before and
after them, and a sink.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firesteel.common.ids import AttemptId, OperatorId, stable_id
from firesteel.common.job_graph import Operator
from firesteel.common.operator_messages import (
    OperatorEvent,
    SplitAssigned,
    SplitsExhausted,
    ToOperator,
)
from firesteel.common.states import ExecutionState
from firesteel.connectors import FileSink, SequenceSource
from firesteel.errors import ErrorInfo
from firesteel.operator import StreamOperator
from firesteel.operators import (
    CustomSpec,
    MapInArrowSpec,
    SinkSpec,
    SourceSpec,
    Spec,
    TransformSpec,
)
from firesteel.testing import Journal, MemoryExchange, RecordingOperator
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.operators.registry import create_operator
from taskexecutor.executor.task import StreamTask, TaskConfig, TaskServices
from tests.unit.task.runs import JOB, SCHEMA, vertex

CALLS = ("setup", "initialize_state", "open", "end_input", "finish", "close")
# Operators of the chain, and which of them become one: both transforms are one Catalyst plan.
NAMES = ("source+filter", "before", "double+triple", "after", "sink")


def chain(folder: Path) -> list[Operator]:
    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    specs: list[tuple[str, Spec, bool]] = [
        ("source", SourceSpec(source=SequenceSource(0, 1000)), True),
        ("filter", TransformSpec(function=lambda df: df.where("value % 2 = 0")), True),
        (
            "before",
            CustomSpec(factory=lambda: None, schema=None),
            False,
        ),  # a RecordingOperator: see `run`
        ("double", TransformSpec(function=lambda df: df.selectExpr("value * 2 AS value")), True),
        ("triple", TransformSpec(function=lambda df: df.selectExpr("value * 3 AS value")), True),
        ("after", MapInArrowSpec(function=passed, schema=None), False),
        ("sink", SinkSpec(sink=FileSink(str(folder))), False),
    ]
    return [
        Operator(
            operator_id=OperatorId(stable_id(name)),
            name=name,
            kind="",
            spec=cloudpickle.dumps(spec),
            inputs=((index - 1,),) if index else (),
            runs_on_spark=on_spark,
            coordinator_kind="sequence-source" if index == 0 else "",
        )
        for index, (name, spec, on_spark) in enumerate(specs)
    ]


def run(
    engine: SparkEngine, folder: Path, journal: Journal
) -> tuple[list[ExecutionState], list[ErrorInfo]]:
    """One task of the chain, to its end."""
    states: list[ExecutionState] = []
    errors: list[ErrorInfo] = []

    def recorded(group: Sequence[OpenedOperator]) -> StreamOperator:
        name = "+".join(opened.operator.name for opened in group)
        if name == "before":
            return RecordingOperator(name, journal)
        operator = create_operator(group)

        def noting(call: str, method: Any) -> Any:
            def noted(*arguments: Any) -> Any:
                journal.note(name, f"{call}({arguments[0]})" if call == "end_input" else call)
                return method(*arguments)

            return noted

        for call in CALLS:
            setattr(operator, call, noting(call, getattr(operator, call)))
        return operator

    def report(
        attempt_id: str, state: ExecutionState, error: ErrorInfo | None, metrics: Any
    ) -> None:
        states.append(state)
        errors.extend([error] if error else [])

    def answer(event: OperatorEvent) -> None:
        """The coordinator: one split, then no more."""
        asked.append(event)
        answered: ToOperator = SplitsExhausted()
        if len(asked) == 1:
            answered = SplitAssigned(number=0, split_json='{"start": 0, "end": 1000}')
        task.handle_event(event.operator_id, answered)

    asked: list[OperatorEvent] = []
    operators = chain(folder)
    config = TaskConfig(
        job_id=JOB,
        job_name="a job",
        vertex=vertex(*operators),
        subtask=0,
        attempt=0,
        attempt_id=AttemptId(stable_id("attempt")),
        in_edges=[],
        out_edges=[],
        output_schemas=[SCHEMA] * (len(operators) - 1) + [None],
    )
    task = StreamTask(config, TaskServices(MemoryExchange(), engine, recorded, report, answer))
    thread = threading.Thread(target=task.run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return states, errors


def test_operators_around_spark_open_backwards_and_finish_forwards(
    engine: SparkEngine, tmp_path: Path
) -> None:
    journal = Journal()
    states, errors = run(engine, tmp_path, journal)
    assert errors == []
    assert states == [ExecutionState.INITIALIZING, ExecutionState.RUNNING, ExecutionState.FINISHED]
    for call in ("setup", "initialize_state", "open"):
        assert journal.of(call) == [f"{name}.{call}" for name in reversed(NAMES)]
    assert journal.of("end_input", "finish", "close") == [
        "source+filter.finish",
        *(f"{name}.{call}" for name in NAMES[1:] for call in ("end_input(0)", "finish")),
        *(f"{name}.close" for name in NAMES),
    ]
    (file,) = tmp_path.iterdir()
    assert sorted(pq.read_table(file).column("value").to_pylist()) == [
        n * 6 for n in range(0, 1000, 2)
    ]


@pytest.mark.parametrize(
    "where",
    ["before.process_batch(0)", "before.finish", "double+triple.open", "sink.setup", "sink.finish"],
)
def test_a_failure_anywhere_closes_what_was_set_up_and_leaves_no_file(
    engine: SparkEngine, tmp_path: Path, where: str
) -> None:
    journal = Journal()
    journal.fail_in(where, ValueError("no"))
    states, errors = run(engine, tmp_path, journal)
    assert states[-1] is ExecutionState.FAILED
    assert errors[0].summary == "ValueError: no"
    set_up = [name.split(".")[0] for name in journal.of("setup")]
    assert journal.of("close") == [f"{name}.close" for name in reversed(set_up)]
    assert list(tmp_path.iterdir()) == []
