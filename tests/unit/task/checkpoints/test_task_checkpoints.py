"""A task's checkpoints: where the barrier goes, what the snapshot holds, and what a task waits for
at its end (spec 000, spec 001).
"""

from __future__ import annotations

import queue
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from firesteel.common.checkpoints.messages import (
    CheckpointAcknowledged,
    CheckpointAnswer,
    CheckpointDeclined,
    DataEnded,
)
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import OperatorId, stable_id
from firesteel.common.operator_messages import SplitAssigned
from firesteel.common.rpc.errors import MessageTooLarge
from firesteel.common.states import ExecutionState
from firesteel.elements import MAX_WATERMARK, CheckpointBarrier, EndOfData, EndOfPartition
from firesteel.operator import OperatorState, StreamOperator
from firesteel.testing import Journal, RecordingOperator, RecordingSource
from taskexecutor.executor.state import RestoredOperatorState
from taskexecutor.executor.state.files import read_snapshot
from taskexecutor.executor.task.interfaces import CheckpointServices
from taskexecutor.executor.task.meters import TASK_PREFIX
from taskexecutor.executor.timing.clock import wall_clock_ms
from tests.object_store import ObjectStore
from tests.unit.task.runs import Run, batch, in_edge, operator, out_edge, vertex
from tests.waiting import PATIENCE_S

RUNNING, FINISHED = ExecutionState.RUNNING, ExecutionState.FINISHED
IN, OUT = in_edge("in"), out_edge("out", 0)


def barrier(checkpoint_id: int) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint_id=checkpoint_id, timestamp_ms=0)


class Summing(StreamOperator):
    """Keeps the sum of each key, which is the value modulo 10, and records the calls that it gets."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def initialize_state(self, state: OperatorState) -> None:
        self.state = state

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        for value in batch.column(0).to_pylist():
            key = value % 10
            self.state.keyed.put("sum", key, (self.state.keyed.get("sum", key) or 0) + value)
        self.output.emit(batch)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.calls.append(f"complete {checkpoint_id}")

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.calls.append(f"aborted {checkpoint_id}")

    def stop(self) -> None:
        self.calls.append("stop")


class Checkpoints:
    """The answers of the tasks."""

    def __init__(self, directory: Path | str) -> None:
        self.storage = CheckpointStorage(str(directory))
        self.answers: queue.Queue[CheckpointAcknowledged | CheckpointDeclined] = queue.Queue()
        self.answered_by: list[threading.Thread] = []
        self.data_ended = threading.Event()
        self.services = CheckpointServices(self.storage, self._put)

    def _put(self, answer: CheckpointAnswer) -> None:
        if isinstance(answer, DataEnded):
            self.data_ended.set()
        else:
            self.answered_by.append(threading.current_thread())
            self.answers.put(answer)

    def answer(self) -> CheckpointAcknowledged | CheckpointDeclined:
        return self.answers.get(timeout=PATIENCE_S)

    def acknowledged(self) -> CheckpointAcknowledged:
        answer = self.answer()
        assert isinstance(answer, CheckpointAcknowledged)
        return answer

    def sums(self, answer: CheckpointAcknowledged) -> dict[object, object]:
        (part,) = answer.snapshot.operators
        return {entry.key: entry.value for entry in read_snapshot(self.storage, part).keyed}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def summing_run(checkpoints: Checkpoints, producers: int = 1, **options: object) -> Run:
    """(in) -> sum -> (out)"""
    return Run(
        vertex(operator("sum", ())),
        {"sum": Summing()},
        in_edges=[(IN, producers)],
        out_edges=[OUT],
        checkpoints=checkpoints.services,
        **options,  # type: ignore[arg-type]
    )


def test_the_snapshot_holds_exactly_what_came_before_the_barrier(checkpoints: Checkpoints) -> None:
    run = summing_run(checkpoints)
    producer = run.producer(IN)
    producer.emit(batch(1, 11, 2))
    producer.emit_event(barrier(1))
    producer.emit(batch(3))
    run.start()
    answer = checkpoints.acknowledged()
    assert answer.checkpoint_id == 1
    assert checkpoints.sums(answer) == {1: 12, 2: 2}
    for event in (EndOfData(), EndOfPartition()):
        producer.emit_event(event)
    run.task.trigger_checkpoint(barrier(2))
    assert checkpoints.sums(checkpoints.acknowledged()) == {1: 12, 2: 2, 3: 3}
    run.task.notify_checkpoint(2, completed=True)
    run.join()
    assert run.sent(OUT)[:3] == [batch(1, 11, 2), barrier(1), batch(3)]


def test_only_keyed_state_is_written_by_another_thread(checkpoints: Checkpoints) -> None:
    run = summing_run(checkpoints)
    producer = run.producer(IN)
    producer.emit_event(barrier(1))
    run.start()
    assert checkpoints.sums(checkpoints.acknowledged()) == {}
    producer.emit(batch(1))
    producer.emit_event(barrier(2))
    assert checkpoints.sums(checkpoints.acknowledged()) == {1: 1}
    own, other = checkpoints.answered_by
    assert own is run.thread
    assert other is not run.thread
    run.task.cancel()
    run.join()


class Meeting:
    """A state that is written only when another one is being written."""

    both = threading.Barrier(2)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        self.both.wait(PATIENCE_S)
        return str, ("met",)


class MeetingKept(Summing):
    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        self.state.keyed.put("sum", 1, Meeting())
        self.output.emit(batch)


def test_operators_are_written_concurrently_where_files_take_time(
    object_store: ObjectStore,
) -> None:
    checkpoints = Checkpoints(object_store.uri("at-once"))
    run = Run(
        vertex(operator("a", ()), operator("b", (0,))),
        {"a": MeetingKept(), "b": MeetingKept()},
        in_edges=[(IN, 1)],
        out_edges=[out_edge("out", 1)],
        checkpoints=checkpoints.services,
    )
    producer = run.producer(IN)
    for element in (batch(1), barrier(1), EndOfData(), EndOfPartition()):
        producer.emit(element) if isinstance(element, pa.RecordBatch) else producer.emit_event(
            element
        )
    run.start()
    parts = checkpoints.acknowledged().snapshot.operators
    found = [[e.value for e in read_snapshot(checkpoints.storage, part).keyed] for part in parts]
    assert found == [["met"], ["met"]]
    run.task.cancel()
    run.join()


def test_a_channel_whose_barrier_has_come_waits_for_the_others(checkpoints: Checkpoints) -> None:
    run = summing_run(checkpoints, producers=2)
    ahead, behind = (run.producer(IN, subtask, producers=2) for subtask in range(2))
    a_second_ago = wall_clock_ms() - 1_000
    first = replace(barrier(1), timestamp_ms=a_second_ago)
    ahead.emit_event(first)
    ahead.emit(batch(5))
    behind.emit(batch(1))
    run.start()
    behind.emit(batch(2))
    behind.emit_event(first)
    answer = checkpoints.acknowledged()
    assert checkpoints.sums(answer) == {1: 1, 2: 2}
    assert answer.snapshot.alignment_ms > 0
    assert answer.snapshot.start_delay_ms >= 1_000
    samples = {sample.name: sample.value for sample in run.task.samples()}
    assert samples[TASK_PREFIX + "checkpointAlignmentTime"] == round(
        answer.snapshot.alignment_ms * 1e6
    )
    assert (
        samples[TASK_PREFIX + "checkpointStartDelayNanos"] == answer.snapshot.start_delay_ms * 1e6
    )
    for producer in (ahead, behind):
        producer.emit_event(EndOfData())
        producer.emit_event(barrier(2))
        producer.emit_event(EndOfPartition())
    assert checkpoints.sums(checkpoints.acknowledged()) == {1: 1, 2: 2, 5: 5}
    run.task.notify_checkpoint(2, completed=True)
    run.join()


def test_a_task_resumes_from_what_it_restores(checkpoints: Checkpoints) -> None:
    run = summing_run(checkpoints)
    producer = run.producer(IN)
    producer.emit(batch(1, 2))
    producer.emit_event(barrier(7))
    run.start()
    (part,) = checkpoints.acknowledged().snapshot.operators
    run.task.cancel()
    run.join()
    restored = {OperatorId(stable_id("sum")): read_snapshot(checkpoints.storage, part)}
    again = summing_run(checkpoints, restored=restored)
    producer = again.producer(IN)
    producer.emit(batch(11))
    producer.emit_event(barrier(8))
    again.start()
    assert checkpoints.sums(checkpoints.acknowledged()) == {1: 12, 2: 2}
    again.task.cancel()
    again.join()


def test_a_source_sends_the_barrier_when_it_is_triggered(checkpoints: Checkpoints) -> None:
    journal = Journal()
    run = Run(
        vertex(operator("src")),
        {"src": RecordingSource("src", journal, [batch(1)], endless=True)},
        out_edges=[OUT],
        checkpoints=checkpoints.services,
    ).start()
    run.wait_for(RUNNING)
    run.task.trigger_checkpoint(barrier(3))
    answer = checkpoints.acknowledged()
    assert answer.checkpoint_id == 3
    assert run.sent(OUT)[0] == batch(1)
    assert barrier(3) in run.sent(OUT)
    run.task.cancel()
    run.join()
    restored = {
        OperatorId(stable_id("src")): read_snapshot(
            checkpoints.storage, answer.snapshot.operators[0]
        )
    }
    again = Run(
        vertex(operator("src")),
        {"src": RecordingSource("src", journal, [batch(1), batch(2)])},
        out_edges=[OUT],
        restored=restored,
    ).run()
    assert again.sent(OUT)[0] == batch(2), "it continues where it was"


def test_a_source_that_had_finished_reads_nothing_again(checkpoints: Checkpoints) -> None:
    journal = Journal()
    run = Run(
        vertex(operator("src")),
        {"src": RecordingSource("src", journal, [batch(1)])},
        out_edges=[OUT],
        restored={OperatorId(stable_id("src")): RestoredOperatorState(finished=True)},
    ).run()
    assert run.sent(OUT) == [MAX_WATERMARK, EndOfData(), EndOfPartition()]
    assert run.states[-1] is FINISHED


def test_what_had_finished_says_nothing_again_and_stays_finished(checkpoints: Checkpoints) -> None:
    """Invariant 15: this includes checkpoints taken before its task has ended again."""
    journal = Journal()
    names = ("src", "sum")
    run = Run(
        vertex(operator("src"), operator("sum", (0,))),
        {
            "src": RecordingSource("src", journal, [batch(1)]),
            "sum": RecordingOperator("sum", journal),
        },
        out_edges=[out_edge("out", 1)],
        checkpoints=checkpoints.services,
        restored={
            OperatorId(stable_id(name)): RestoredOperatorState(finished=True) for name in names
        },
    )
    run.task.trigger_checkpoint(barrier(1))
    run.start()
    first = checkpoints.acknowledged()
    run.task.trigger_checkpoint(barrier(2))
    for answer in (first, checkpoints.acknowledged()):
        assert [part.finished for part in answer.snapshot.operators] == [True, True]
        assert not any(part.lists for part in answer.snapshot.operators), (
            "a position would be read from"
        )
    run.task.notify_checkpoint(2, completed=True)
    run.join()
    assert run.states[-1] is FINISHED
    assert journal.of("poll", "end_input", "finish") == []
    assert run.sent(out_edge("out", 1))[-1] == EndOfPartition()


def test_an_operator_that_keeps_what_no_checkpoint_holds_is_refused(
    checkpoints: Checkpoints,
) -> None:
    class Forgetful(Summing):
        not_checkpointed = "its sums are not part of checkpoints"

    run = Run(
        vertex(operator("sum", ())),
        {"sum": Forgetful()},
        in_edges=[(IN, 1)],
        checkpoints=checkpoints.services,
    ).run()
    assert run.errors[0].summary.startswith(
        "sum cannot take part in checkpoints yet: its sums are not part of"
    )


def finishing_source(checkpoints: Checkpoints, journal: Journal) -> Run:
    """src -> sum -> (out), with one batch."""
    return Run(
        vertex(operator("src"), operator("sum", (0,))),
        {"src": RecordingSource("src", journal, [batch(4)]), "sum": Summing()},
        out_edges=[out_edge("out", 1)],
        checkpoints=checkpoints.services,
    )


def test_a_task_closes_when_a_checkpoint_holds_what_finish_has_done(
    checkpoints: Checkpoints,
) -> None:
    """Spec 001: the first notice of any checkpoint that started after finish() suffices."""
    journal = Journal()
    run = finishing_source(checkpoints, journal)
    run.task.trigger_checkpoint(barrier(1))
    run.start()
    assert not checkpoints.acknowledged().snapshot.operators_finished
    assert checkpoints.data_ended.wait(PATIENCE_S), "the master need not wait for the interval"
    finished = run.exchange.partitions[(out_edge("out", 1).result_id, 0, 0)]
    for checkpoint_id in (42, 43, 44):
        run.task.trigger_checkpoint(barrier(checkpoint_id))
        assert checkpoints.acknowledged().snapshot.operators_finished
    first = next(e for e in finished.sent if isinstance(e, EndOfData))
    assert finished.sent.index(first) < finished.sent.index(barrier(42))
    assert run.thread.is_alive()
    assert "src.close" not in journal.calls
    run.task.notify_checkpoint(41, completed=True)
    run.task.notify_checkpoint(42, completed=False)
    run.task.notify_checkpoint(43, completed=True)
    run.join()
    assert run.states[-1] is FINISHED
    assert finished.sent[-1] == EndOfPartition()
    summing = run.operators["sum"]
    assert isinstance(summing, Summing)
    assert summing.calls == ["complete 41", "aborted 42", "complete 43"]


def test_a_task_that_is_cancelled_waits_for_no_checkpoint(checkpoints: Checkpoints) -> None:
    journal = Journal()
    run = finishing_source(checkpoints, journal).start()
    run.task.trigger_checkpoint(barrier(1))
    checkpoints.acknowledged()
    run.task.cancel()
    run.join()
    assert run.states[-1] is ExecutionState.CANCELED


def test_a_failed_write_declines_the_checkpoint_and_the_task_continues(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    (tmp_path / "chk-1").write_text("a file where the directory should be")
    run = summing_run(checkpoints)
    producer = run.producer(IN)
    producer.emit(batch(1))
    producer.emit_event(barrier(1))
    run.start()
    declined = checkpoints.answer()
    assert isinstance(declined, CheckpointDeclined)
    assert "cannot be written" in declined.cause
    producer.emit(batch(2))
    producer.emit_event(barrier(2))
    assert checkpoints.sums(checkpoints.acknowledged()) == {1: 1, 2: 2}
    run.task.cancel()
    run.join()


def test_a_checkpoint_whose_acknowledgement_cannot_be_sent_is_declined(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    put = checkpoints.services.answer

    def refuse(answer: CheckpointAnswer) -> None:
        if isinstance(answer, CheckpointAcknowledged):
            raise MessageTooLarge("operator state 'rules' is too large")
        put(answer)

    checkpoints.services = CheckpointServices(checkpoints.storage, refuse)
    run = summing_run(checkpoints)
    producer = run.producer(IN)
    producer.emit(batch(1))
    producer.emit_event(barrier(1))
    run.start()
    declined = checkpoints.answer()
    assert isinstance(declined, CheckpointDeclined)
    assert declined.cause == "operator state 'rules' is too large"
    run.task.cancel()
    run.join()


def test_an_operator_that_waits_for_mail_is_not_interrupted_by_checkpoints(
    checkpoints: Checkpoints,
) -> None:
    """A snapshot in the middle of an element would hold half of it."""
    journal = Journal()
    waited: list[list[str]] = []

    def wait(op: RecordingOperator, data: pa.RecordBatch, input_index: int) -> None:
        run.task.trigger_checkpoint(barrier(1))
        op.context.request_mail(lambda: journal.note("mail", "ran"))
        op.context.yield_to_mail(PATIENCE_S)
        waited.append(list(journal.calls))

    run = Run(
        vertex(operator("src"), operator("map", (0,))),
        {
            "src": RecordingSource("src", journal, [batch(1)], endless=True),
            "map": RecordingOperator("map", journal, on_batch=wait),
        },
        out_edges=[out_edge("out", 1)],
        checkpoints=checkpoints.services,
    )
    run.start()
    checkpoints.acknowledged()
    assert "mail.ran" in waited[0]
    sent = run.sent(out_edge("out", 1))
    assert sent.index(barrier(1)) > 0, "after the batch that was in progress"
    run.task.cancel()
    run.join()


def test_a_split_that_was_assigned_after_the_checkpoint_began_is_not_in_it(
    checkpoints: Checkpoints,
) -> None:
    """It is not in the enumerator's snapshot as assigned, so it will be assigned again."""
    journal = Journal()
    source = RecordingSource("src", journal, [batch(1)], endless=True)

    def deliver_late() -> None:
        if not source.splits:
            run.task.trigger_checkpoint(barrier(1))
            run.task.handle_event(stable_id("src"), SplitAssigned(number=0, split_json="0"))

    journal.hooks["src.poll"] = deliver_late
    run = Run(
        vertex(operator("src")), {"src": source}, out_edges=[OUT], checkpoints=checkpoints.services
    )
    run.start()
    (part,) = checkpoints.acknowledged().snapshot.operators
    position = read_snapshot(checkpoints.storage, part).lists["firesteel.position"]
    assert position == [[1, 0]], "one element, no split"
    run.task.trigger_checkpoint(barrier(2), splits=1)
    run.task.trigger_checkpoint(barrier(3), splits=2)
    (part,) = checkpoints.acknowledged().snapshot.operators
    assert read_snapshot(checkpoints.storage, part).lists["firesteel.position"] == [[1, 1]]
    run.task.handle_event(stable_id("src"), SplitAssigned(number=1, split_json="1"))
    answer = checkpoints.acknowledged()
    assert answer.checkpoint_id == 3, "it has waited for the split on its way"
    run.task.cancel()
    run.join()


def test_a_barrier_in_a_job_without_checkpoints_fails_the_task() -> None:
    run = Run(vertex(operator("sum", ())), {"sum": Summing()}, in_edges=[(IN, 1)], out_edges=[OUT])
    run.producer(IN).emit_event(barrier(1))
    run.run()
    assert "in a job without checkpoints" in run.errors[0].summary


def test_a_stopped_source_emits_nothing_after_the_barrier(
    checkpoints: Checkpoints,
) -> None:
    journal = Journal()
    source = RecordingSource("src", journal, [batch(1), batch(2), batch(3)], endless=True)
    polled = threading.Semaphore(0)

    journal.hooks["src.poll"] = polled.release
    run = Run(
        vertex(operator("src")), {"src": source}, out_edges=[OUT], checkpoints=checkpoints.services
    )
    run.task.trigger_checkpoint(barrier(1), stops=True)
    run.start()
    assert checkpoints.acknowledged().checkpoint_id == 1
    assert run.sent(OUT) == [barrier(1)], "it has not produced anything yet"
    run.task.notify_checkpoint(1, completed=False, stops=True)
    for _ in range(3):
        assert polled.acquire(timeout=PATIENCE_S)
    run.task.trigger_checkpoint(barrier(2), stops=True)
    answer = checkpoints.acknowledged()
    assert not answer.snapshot.operators_finished, "a job that restores it reads on"
    run.task.notify_checkpoint(2, completed=True, stops=True)
    run.join()
    sent = run.sent(OUT)
    assert sent[-3:] == [barrier(2), EndOfData(finished=False), EndOfPartition()]
    assert [batch(1), batch(2), batch(3)] == [e for e in sent if isinstance(e, pa.RecordBatch)]
    assert "src.finish" not in journal.calls


def test_a_task_behind_stopped_ones_ends_without_another_checkpoint(
    checkpoints: Checkpoints,
) -> None:
    run = summing_run(checkpoints)
    producer = run.producer(IN)
    producer.emit(batch(1))
    producer.emit_event(barrier(1))
    run.start()
    checkpoints.acknowledged()
    for event in (EndOfData(finished=False), EndOfPartition()):
        producer.emit_event(event)
    run.task.notify_checkpoint(1, completed=True, stops=True)
    run.join()
    assert run.sent(OUT)[-2:] == [EndOfData(finished=False), EndOfPartition()]
    summing = run.operators["sum"]
    assert isinstance(summing, Summing)
    assert summing.calls == ["complete 1", "stop"]
    assert not checkpoints.data_ended.is_set()


def test_a_source_that_is_drained_ends_as_if_it_had_nothing_more_to_read(
    checkpoints: Checkpoints,
) -> None:
    source = RecordingSource("src", Journal(), [batch(1)], endless=True)
    run = Run(
        vertex(operator("src")), {"src": source}, out_edges=[OUT], checkpoints=checkpoints.services
    )
    run.task.drain()
    run.start()
    assert checkpoints.data_ended.wait(PATIENCE_S)
    checkpoints.data_ended.clear()
    run.task.drain()
    assert checkpoints.data_ended.wait(PATIENCE_S), "it says so again: the message may be lost"
    run.task.trigger_checkpoint(barrier(1))
    assert checkpoints.acknowledged().snapshot.operators_finished
    run.task.notify_checkpoint(1, completed=True)
    run.join()
    sent = [element for element in run.sent(OUT) if not isinstance(element, pa.RecordBatch)]
    assert sent == [MAX_WATERMARK, EndOfData(), barrier(1), EndOfPartition()]
