"""Split enumerators and the collect coordinator; what they need of the disk."""

from __future__ import annotations

import json
import os
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.file_parts import ListedFile, from_json
from firesteel.common.ids import AttemptId
from firesteel.common.operator_messages import (
    ChunkAcknowledged,
    ChunkCollected,
    NoSplitYet,
    SplitAssigned,
    SplitRequested,
    SplitsExhausted,
)
from firesteel.common.units import MIB
from jobmaster.core.coordinators import (
    BadOptions,
    CollectCoordinator,
    FileSourceEnumerator,
    ListedSplitsEnumerator,
    SequenceSourceEnumerator,
    create,
)
from jobmaster.core.coordinators.base import Spool, UnexpectedMessage
from jobmaster.core.coordinators.file_source import MAX_SPLIT_BYTES
from jobmaster.core.coordinators.splits import SplitEnumerator
from jobmaster.paths import PathProblem, list_files
from tests.job_master import vertex

A, B = AttemptId("a"), AttemptId("b")


def files(*names: str, size: int = 10) -> list[ListedFile]:
    return [ListedFile(f"/x/{name}", size, 7) for name in names]


def split_json(name: str) -> str:
    return f'{{"parts":[["/x/{name}",10,7]]}}'


def ask_files(enumerator: SplitEnumerator, attempt: AttemptId, **had: int) -> list[str] | None:
    """The names of the files of the next split."""
    split = ask(enumerator, attempt, **had)
    return split and [part.path.removeprefix("/x/") for part in from_json(split)]


def ask(
    enumerator: SplitEnumerator, attempt: AttemptId, *, received: int | None = None
) -> dict[str, object] | None:
    """The next split of an attempt that has had `received`; None: all that were assigned to it."""
    had = len(enumerator._owned.get(attempt, ())) if received is None else received
    (answer,) = enumerator.receive(attempt, 0, SplitRequested(received=had))
    if isinstance(answer, SplitsExhausted):
        return None
    assert isinstance(answer, SplitAssigned)
    assert answer.number == had
    return json.loads(answer.split_json)  # type: ignore[no-any-return]


def test_splits_that_a_program_listed_are_handed_out_in_order() -> None:
    enumerator = ListedSplitsEnumerator.from_options({"splits": [{"shard": 1}, {"shard": 2}]})
    assert [ask(enumerator, A), ask(enumerator, B), ask(enumerator, A)] == [
        {"shard": 1},
        {"shard": 2},
        None,
    ]
    with pytest.raises(BadOptions, match="must be a list of objects"):
        ListedSplitsEnumerator.from_options({"splits": ["shard"]})


def test_no_subtask_holds_a_second_split_while_there_is_one_for_each() -> None:
    splits = [{"shard": 1}, {"shard": 2}]
    enumerator = ListedSplitsEnumerator.from_options({"splits": splits, "one_each": True})
    assert ask(enumerator, A) == {"shard": 1}
    assert ask(enumerator, A) is None, "the first may never end"
    assert ask(enumerator, A, received=0) == {"shard": 1}, "sent again"
    assert ask(enumerator, B) == {"shard": 2}


def test_a_snapshot_has_the_splits_that_no_reader_owns() -> None:
    enumerator = FileSourceEnumerator(paths=["/x"])
    enumerator.paths_listed(files("a", "b", "c"), 0.0)
    for attempt in (A, B):
        ask(enumerator, attempt)
    enumerator.attempt_ended(A)
    snapshot = json.loads(json.dumps(enumerator.snapshot()))
    restored = FileSourceEnumerator(paths=["/x"])
    restored.restore(snapshot)
    assert restored.ready
    assert [ask_files(restored, A) for _ in range(3)] == [["a"], ["c"], None]


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("/x", ["a", "day=1/b", "day=1/hour=2/c"]),
        ("/x/", ["a", "day=1/b", "day=1/hour=2/c"]),
        ("/x/*", ["a", "day=1/b", "day=1/hour=2/c", "old/d", "old/day=3/e"]),
        ("/x/old/d", ["old/d"]),
        ("/x/ol", []),
        ("/x/**/e", ["a", "day=1/b", "day=1/hour=2/c", "day=1/old/e", "old/d", "old/day=3/e"]),
    ],
)
def test_subfolders_that_are_not_partitions_are_not_read(path: str, read: list[str]) -> None:
    options = {"paths": [path], "subfolders": False}
    enumerator = FileSourceEnumerator.from_options(options)
    below = ("a", "day=1/b", "day=1/hour=2/c", "day=1/old/e", "old/d", "old/day=3/e")
    enumerator.paths_listed(files(*below), 0.0)
    found = []
    while names := ask_files(enumerator, A):
        found += names
    assert found == read


def test_a_sequence_is_cut_into_ranges_in_order() -> None:
    enumerator = SequenceSourceEnumerator(start=0, end=25, split_rows=10)
    assert [ask(enumerator, A) for _ in range(4)] == [
        {"start": 0, "end": 10},
        {"start": 10, "end": 20},
        {"start": 20, "end": 25},
        None,
    ]


def test_a_sequence_continues_with_its_first_piece_size() -> None:
    """Another rate, or another parallelism, would cut it into others."""
    enumerator = SequenceSourceEnumerator(start=0, end=25, split_rows=10)
    ask(enumerator, A)
    snapshot = json.loads(json.dumps(enumerator.snapshot()))
    restored = SequenceSourceEnumerator(start=0, end=25, split_rows=3)
    assert not restored.mismatch(snapshot)
    restored.restore(snapshot)
    assert [ask(restored, B) for _ in range(3)] == [
        {"start": 10, "end": 20},
        {"start": 20, "end": 25},
        None,
    ]
    restored.start_over()
    assert ask(restored, A) == {"start": 0, "end": 3}


def test_splits_of_another_program_are_a_mismatch() -> None:
    sequence = SequenceSourceEnumerator(start=0, end=25, split_rows=10)
    longer = SequenceSourceEnumerator(start=0, end=None, split_rows=10)
    assert longer.mismatch(sequence.snapshot()) == (
        "it was from 0 to 25 and is now from 0 to no end"
    )
    listed = ListedSplitsEnumerator([{"shard": 1}])
    assert not ListedSplitsEnumerator([{"shard": 1}]).mismatch(listed.snapshot())
    more = ListedSplitsEnumerator([{"shard": 0}, {"shard": 1}])
    assert "returns different splits" in more.mismatch(listed.snapshot())


def test_an_empty_sequence_has_no_split() -> None:
    assert ask(SequenceSourceEnumerator(start=5, end=5, split_rows=10), A) is None


def test_a_sequence_may_be_endless() -> None:
    enumerator = SequenceSourceEnumerator.from_options({"start": 5, "end": None, "split_rows": 10})
    assert [ask(enumerator, A) for _ in range(2)] == [
        {"start": 5, "end": 15},
        {"start": 15, "end": 25},
    ]


def test_files_are_handed_out_sorted_each_to_one_reader() -> None:
    enumerator = FileSourceEnumerator(paths=["/x/*"])
    assert not enumerator.ready
    enumerator.paths_listed(files("b", "a", "b"), 0.0)
    assert enumerator.ready
    assert [ask_files(enumerator, A), ask_files(enumerator, B), ask_files(enumerator, A)] == [
        ["a"],
        ["b"],
        None,
    ]


@given(
    sizes=st.lists(st.sampled_from([0, 1, 10_000, MIB, 5 * MIB, 300 * MIB]), max_size=40),
    parallelism=st.integers(1, 4),
    cut=st.booleans(),
)
def test_every_byte_of_every_file_is_in_one_split_in_order(
    sizes: list[int], parallelism: int, cut: bool
) -> None:
    enumerator = FileSourceEnumerator(paths=["/x"], parallelism=parallelism, cut=cut)
    listed = [ListedFile(f"/x/{n:02}", size, n) for n, size in enumerate(sizes)]
    enumerator.paths_listed(listed, 0.0)
    splits = []
    while (split := ask(enumerator, A)) is not None:
        splits.append(from_json(split))
    parts = [part for split in splits for part in split]
    for file in listed:
        own = [part for part in parts if part.path == file.path]
        assert {(part.size, part.modified_ns) for part in own} == {file[1:]}
        assert [part.start for part in own] == [0, *accumulate(part.length for part in own[:-1])]
        assert sum(part.length for part in own) == file.size
        assert cut or own[0].whole
    assert [part.path for part in parts] == sorted(part.path for part in parts)
    for split in splits:
        assert len(split) == 1 or all(part.whole for part in split)
        if cut or len(split) > 1:
            assert sum(part.length for part in split) < 1.5 * MAX_SPLIT_BYTES
    if sum(sizes) > 2 * MAX_SPLIT_BYTES * parallelism and cut:
        assert len(splits) >= 4 * parallelism


def test_small_files_share_splits_and_a_compressed_one_is_never_cut() -> None:
    enumerator = FileSourceEnumerator(paths=["/x"], parallelism=2, cut=True)
    large = ("y.GZ", "y.gzip", "y.zstd")
    enumerator.paths_listed([*files(*map(str, range(5000))), *files(*large, size=MIB << 12)], 0.0)
    found = [ask_files(enumerator, A) for _ in range(enumerator.split_count())]
    assert len(found) < 25
    assert found[-3:] == [[name] for name in large]
    assert sum(map(len, filter(None, found))) == 5003


def test_new_files_of_a_watched_directory_go_to_those_that_wait_each_once() -> None:
    enumerator = FileSourceEnumerator(paths=["/x"], watch_s=1.0)
    assert enumerator.paths_listed(files("b", "a"), 10.0) == []
    assert enumerator.ready
    assert [ask_files(enumerator, A), ask_files(enumerator, B)] == [["b"], ["a"]], (
        "as listed: by time"
    )
    assert enumerator.receive(A, 0, SplitRequested(received=1)) == (NoSplitYet(),)
    assert enumerator.receive(A, 0, SplitRequested(received=1)) == (NoSplitYet(),), (
        "sent again, it waits once"
    )
    assert enumerator.receive(B, 1, SplitRequested(received=1)) == (NoSplitYet(),)
    assert enumerator.next_deadline() == 11.0
    assert not enumerator.tick(10.5)
    assert enumerator.tick(11.0)
    assert enumerator.next_deadline() is None, "while it is listed"
    assert enumerator.paths_listed(files("b", "a", "c"), 11.2) == [
        (A, SplitAssigned(number=1, split_json=split_json("c"), place=2)),
        (B, NoSplitYet()),
    ]
    assert ask_files(enumerator, A, received=1) == ["c"], "the answer may have been lost"
    assert enumerator.next_deadline() == 12.2
    assert enumerator.paths_listed(files("c", "d", "e"), 12.3) == [
        (B, SplitAssigned(number=1, split_json=split_json("d"), place=3))
    ]
    assert ask_files(enumerator, A) == ["e"]
    assert enumerator.paths_listed(files("a"), 13.0) == [], (
        "a file that comes back under its name is not new"
    )


def test_skipped_files_are_not_read_also_after_a_restore() -> None:
    options = {"paths": ["/x"], "watch_s": 1.0, "skipped": ["/x/a"]}
    enumerator = FileSourceEnumerator.from_options(options)
    enumerator.paths_listed(files("a", "b"), 10.0)
    assert ask_files(enumerator, A) == ["b"]
    restored = FileSourceEnumerator.from_options(options)
    restored.restore(json.loads(json.dumps(enumerator.snapshot())))
    restored.paths_listed(files("a", "b"), 12.0)
    assert restored.split_count() == 1
    with pytest.raises(BadOptions, match='"skipped" must be a list of paths'):
        FileSourceEnumerator.from_options({**options, "skipped": "a"})


def test_a_watched_directory_resumes_from_a_checkpoint() -> None:
    enumerator = FileSourceEnumerator(paths=["/x"], watch_s=1.0)
    enumerator.paths_listed(files("a", "b"), 10.0)
    assert ask_files(enumerator, A) == ["a"]
    snapshot = json.loads(json.dumps(enumerator.snapshot()))
    enumerator.paths_listed(files("a", "b", "c"), 11.0)
    assert [ask_files(enumerator, A), ask_files(enumerator, A)] == [["b"], ["c"]]
    enumerator.receive(A, 0, SplitRequested(received=3))
    enumerator.tick(12.0)  # a listing is on its way
    enumerator.attempt_ended(A)
    of_another_master = FileSourceEnumerator(paths=["/x"], watch_s=1.0)
    for restored in (enumerator, of_another_master):
        restored.restore(snapshot)
        assert ask_files(restored, B) == ["b"], "a is in the reader's snapshot"
        assert restored.receive(B, 0, SplitRequested(received=1)) == (), "it has to list again"
        assert restored.paths_listed(files("a", "b", "c"), 13.0) == [
            (B, SplitAssigned(number=1, split_json=split_json("c"), place=2))
        ], "new since the checkpoint"
        assert restored.next_deadline() == 14.0
    assert restored.paths_listed(files("a", "b", "c"), 15.0) == []


def test_a_restored_reader_has_caught_up_once_the_directory_is_listed_again() -> None:
    enumerator = FileSourceEnumerator(paths=["/x"], watch_s=1.0)
    enumerator.paths_listed(files("a"), 10.0)
    ask(enumerator, A)
    enumerator.restore(json.loads(json.dumps(enumerator.snapshot())))
    assert enumerator.receive(B, 0, SplitRequested(received=0)) == ()
    assert enumerator.paths_listed(files("a"), 11.0) == [(B, NoSplitYet())]
    assert enumerator.paths_listed(files("a"), 12.0) == [(B, NoSplitYet())], "with each listing"


def test_splits_of_an_ended_attempt_go_to_those_that_wait() -> None:
    enumerator = FileSourceEnumerator(paths=["/x"], watch_s=1.0)
    enumerator.paths_listed(files("a"), 0.0)
    ask(enumerator, A)
    assert enumerator.receive(B, 1, SplitRequested(received=0)) == (NoSplitYet(),)
    enumerator.attempt_ended(A)
    assert enumerator.paths_listed([], 1.0) == [
        (B, SplitAssigned(number=0, split_json=split_json("a")))
    ]
    enumerator.start_over()
    assert ask_files(enumerator, A) == ["a"]


def test_what_an_ended_attempt_owned_is_handed_out_again_first() -> None:
    enumerator = SequenceSourceEnumerator(start=0, end=40, split_rows=10)
    ask(enumerator, A), ask(enumerator, B), ask(enumerator, A)
    enumerator.attempt_ended(A)
    assert [ask(enumerator, B) for _ in range(4)] == [
        {"start": 0, "end": 10},
        {"start": 20, "end": 30},
        {"start": 30, "end": 40},
        None,
    ]


def test_a_request_said_again_is_answered_with_the_same_split() -> None:
    enumerator = SequenceSourceEnumerator(start=0, end=30, split_rows=10)
    first = ask(enumerator, A, received=0)
    assert ask(enumerator, A, received=0) == first == {"start": 0, "end": 10}
    assert ask(enumerator, B, received=0) == {"start": 10, "end": 20}
    assert ask(enumerator, A, received=1) == {"start": 20, "end": 30}
    assert ask(enumerator, A, received=0) == first, "a request that was long under way"
    assert ask(enumerator, A, received=2) is None
    assert ask(enumerator, A, received=2) is None


def test_a_source_cannot_have_had_more_than_it_was_given() -> None:
    with pytest.raises(UnexpectedMessage, match="had 1 splits; it was assigned 0"):
        ask(SequenceSourceEnumerator(start=0, end=30, split_rows=10), A, received=1)


def test_starting_over_restarts_at_the_first_split() -> None:
    enumerator = SequenceSourceEnumerator(start=0, end=20, split_rows=10)
    ask(enumerator, A), ask(enumerator, B), ask(enumerator, A)
    enumerator.start_over()
    assert ask(enumerator, A) == {"start": 0, "end": 10}


def test_an_enumerator_has_no_use_for_rows() -> None:
    with pytest.raises(UnexpectedMessage):
        SequenceSourceEnumerator(start=0, end=1, split_rows=1).receive(
            A, 0, ChunkCollected(sequence=0, ipc_stream=b"")
        )


def test_chunks_are_kept_once_and_acknowledged_when_they_are() -> None:
    collect = CollectCoordinator()
    chunk = ChunkCollected(sequence=0, ipc_stream=b"rows")
    assert collect.receive(A, 0, chunk) == (Spool(sequence=0, ipc_stream=b"rows"),)
    assert collect.receive(A, 0, chunk) == ()  # sent again while it is being written
    assert collect.spooled(A, 0, "") == (ChunkAcknowledged(sequence=0),)
    assert collect.receive(A, 0, chunk) == (ChunkAcknowledged(sequence=0),)  # sent again afterwards
    assert collect.receive(B, 1, chunk) == (Spool(sequence=0, ipc_stream=b"rows"),)


def test_a_missing_chunk_is_an_error() -> None:
    (answer,) = CollectCoordinator().receive(A, 0, ChunkCollected(sequence=1, ipc_stream=b""))
    assert answer == ChunkAcknowledged(sequence=1, error="chunk 0 never arrived")


def test_a_chunk_that_cannot_be_kept_is_answered_with_the_problem() -> None:
    collect = CollectCoordinator()
    collect.receive(A, 0, ChunkCollected(sequence=0, ipc_stream=b"rows"))
    refused = (ChunkAcknowledged(sequence=0, error="the disk is full"),)
    assert collect.spooled(A, 0, "the disk is full") == refused
    assert (
        collect.receive(A, 0, ChunkCollected(sequence=0, ipc_stream=b"rows")) == refused
    )  # the answer was lost


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("file-source", {"paths": []}, "at least one path"),
        ("sequence-source", {"start": 0, "end": 1}, "split_rows"),
        ("sequence-source", {"start": 0, "end": 1, "split_rows": 0}, "at least 1"),
        ("magic", {}, "'magic' is unknown"),
    ],
)
def test_bad_options_name_the_operator_and_the_fault(
    kind: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(BadOptions, match=f"'src'.*{words}"):
        create(vertex("src", 1, coordinator=(kind, options)).operators[0])


def paths_of(paths: list[str], watched: bool = False) -> list[str]:
    listed = list_files(paths, watched).files
    for path, size, modified_ns in listed:
        found = os.stat(path)
        assert (size, modified_ns) == (found.st_size, found.st_mtime_ns)
    return [file.path for file in listed]


def test_paths_are_listed_sorted_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "_SUCCESS", ".hidden", "sub/c.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    (tmp_path / "empty.csv").touch()
    assert paths_of([str(tmp_path)]) == [str(tmp_path / n) for n in ("a.csv", "b.csv", "sub/c.csv")]
    assert paths_of([f"file://{tmp_path}/*.csv"]) == [str(tmp_path / n) for n in ("a.csv", "b.csv")]


def test_what_spark_leaves_out_is_left_out(tmp_path: Path) -> None:
    """A glob that names it includes it. Folders of a column named with an underscore stay."""
    names = ("_k=1/a", "b", "c._COPYING_", "_SUCCESS", "_temporary/0/d", "e2", "e3")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")

    def listed(path: str) -> list[str]:
        return [os.path.relpath(path, tmp_path) for path in paths_of([f"{tmp_path}/{path}"])]

    assert listed("") == listed("*") == listed("**") == ["_k=1/a", "b", "e2", "e3"]
    assert listed("_t*/*/*") == ["_temporary/0/d"]
    assert listed("e[^2]") == listed("e[!2]") == ["e3"]


def test_a_path_that_matches_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(PathProblem, match=r"nothing/\*\.csv' matches no file"):
        list_files([str(tmp_path), f"{tmp_path}/nothing/*.csv"][1:])
    with pytest.raises(PathProblem, match="missing.csv' does not exist"):
        list_files([f"{tmp_path}/missing.csv"])
    with pytest.raises(PathProblem, match="is an empty directory"):
        list_files([str(tmp_path)])
    with pytest.raises(PathProblem, match="'s3' is not supported"):
        list_files(["s3://bucket/x"])


def test_what_is_not_a_regular_file_is_skipped_or_refused(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("1")
    os.mkfifo(tmp_path / "a.csv")
    (tmp_path / "c.csv").symlink_to("/nowhere")
    for path in (tmp_path, f"{tmp_path}/*.csv", f"{tmp_path}/{{a,b,c}}.csv"):
        files, skipped = list_files([str(path)])
        assert [file.path for file in files] == [str(tmp_path / "b.csv")]
        assert skipped == [
            f"{tmp_path}/a.csv is a named pipe (FIFO)",
            f"{tmp_path}/c.csv is a link to '/nowhere', which does not exist",
        ]
    for path, problem in (
        ("a.csv", r"a.csv' is a named pipe \(FIFO\), and only regular files are read"),
        ("c.csv", "c.csv' is a link to '/nowhere', which does not exist"),
        ("[ac].csv", r"no regular file: .*a.csv is a named pipe \(FIFO\), and 1 more"),
        ("{x,y}.csv", "matches no file"),
    ):
        with pytest.raises(PathProblem, match=problem):
            list_files([f"{tmp_path}/{path}"])


def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.csv")).touch()
    with pytest.raises(PathProblem, match=r"cannot open '.*/caf\\xe9.csv'.*not valid UTF-8"):
        list_files([str(tmp_path)])


def test_watched_files_are_listed_by_time_and_a_lost_directory_is_named(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "in"
    with pytest.raises(PathProblem, match=r"the directory .*/in' does not exist"):
        list_files([str(folder)], watched=True)
    folder.mkdir()
    assert paths_of([f"{folder}/*.csv"], watched=True) == []
    for name, time_s in (("b.csv", 1), ("a.csv", 3), ("c.csv", 3), (".hidden.csv", 0)):
        (folder / name).write_text("1")
        os.utime(folder / name, (time_s, time_s))
    assert paths_of([str(folder)], watched=True) == [
        str(folder / name) for name in ("b.csv", "a.csv", "c.csv")
    ]


def of_another_master(
    found: object, snapshot: object = None, *, watch_s: float = 1.0
) -> FileSourceEnumerator:
    """It restores the snapshot, and takes what was found since an earlier one, or since this."""
    another = FileSourceEnumerator(paths=["/x"], watch_s=watch_s)
    if snapshot is not None:
        another.restore(json.loads(json.dumps(snapshot)))
    another.take_found(json.loads(json.dumps(found)))
    return another


def test_findings_since_the_latest_checkpoint_are_reported() -> None:
    enumerator = FileSourceEnumerator(paths=["/x"], watch_s=1.0)
    assert enumerator.found(None) is None, "it is not listed"
    enumerator.paths_listed(files("a", "b"), 10.0)
    earlier, version = enumerator.snapshot(), enumerator.found_version
    assert enumerator.found(earlier) is None
    of_all = enumerator.found(None)
    enumerator.paths_listed(files("a", "b", "c"), 11.0)
    assert enumerator.found_version > version
    later, since = enumerator.snapshot(), enumerator.found(earlier)
    for another in (
        of_another_master(enumerator.found(None)),
        of_another_master(since, earlier),
        of_another_master(since, later),
    ):
        assert another.ready
        assert [ask_files(another, A) for _ in range(3)] == [["a"], ["b"], ["c"]]
        assert another.paths_listed(files("a", "b", "c"), 12.0) == [], "they are not new"
    assert of_another_master(of_all).split_count() == 2
    nothing = FileSourceEnumerator(paths=["/x"], watch_s=1.0)
    nothing.paths_listed([], 10.0)
    assert of_another_master(nothing.found(None)).ready, "there are no files, as far as is known"


def test_what_was_found_counts_for_nothing_beside_another_list() -> None:
    enumerator = FileSourceEnumerator(paths=["/x"], watch_s=1.0)
    enumerator.paths_listed(files("a"), 10.0)
    earlier = json.loads(json.dumps(enumerator.snapshot()))
    enumerator.paths_listed(files("a", "b"), 11.0)
    since = enumerator.found(earlier)
    enumerator.restore(earlier)
    enumerator.paths_listed(files("a", "c", "b"), 12.0)
    another = of_another_master(since, enumerator.snapshot())
    assert [ask_files(another, A) for _ in range(3)] == [["a"], ["c"], ["b"]]
    assert another.split_count() == 3
    assert not of_another_master(since).ready, "what is before it is not known"


def test_a_source_knows_what_it_has_not_assigned() -> None:
    sequence = SequenceSourceEnumerator(start=5, end=30, split_rows=10)
    assert sequence.backlog() == {"unassignedSplits": 3, "pendingRecords": 25}
    for _ in range(3):
        ask(sequence, A)
    assert sequence.backlog() == {"unassignedSplits": 0, "pendingRecords": 0}
    sequence.attempt_ended(A)
    assert sequence.backlog() == {"unassignedSplits": 3, "pendingRecords": 25}
    assert SequenceSourceEnumerator(start=0, end=None, split_rows=10).backlog() == {}

    source = FileSourceEnumerator(paths=["/x"], parallelism=1, cut=True)
    assert source.backlog() == {}
    source.paths_listed([*files("a", "b"), ListedFile("/x/c", 2 * MAX_SPLIT_BYTES, 7)], 0.0)
    total = {"unassignedSplits": source.split_count(), "pendingFiles": 3}
    assert source.backlog() == {**total, "pendingBytes": 20 + 2 * MAX_SPLIT_BYTES}
    assigned = 0
    while (split := ask(source, A)) is not None:
        assigned += sum(part.length for part in from_json(split))
        left = source.backlog()
        assert left["pendingBytes"] == 20 + 2 * MAX_SPLIT_BYTES - assigned
    assert set(left.values()) == {0}
    source.attempt_ended(A)
    assert source.backlog()["pendingBytes"] == 20 + 2 * MAX_SPLIT_BYTES
    source.start_over()
    source.restore(source.snapshot())
    assert source.backlog() == {**total, "pendingBytes": 20 + 2 * MAX_SPLIT_BYTES}
