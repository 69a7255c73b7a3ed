from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from dispatcher.results import (
    Chunk,
    ChunkOutOfOrder,
    ChunkReader,
    Limits,
    ResultsGone,
    ResultsNotWritten,
    ResultStore,
    follow,
)

JOB, SINK = "1" * 32, "2" * 32
ATTEMPT, OTHER = "3" * 32, "4" * 32
FIRST, SECOND = 2**32, 2**32 + 1  # generations


@pytest.fixture
def results(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path)


def append(
    results: ResultStore, index: int, chunk: bytes, generation: int = FIRST, group: str = ""
) -> None:
    results.append(JOB, SINK, generation, index, chunk, group)


def read(
    results: ResultStore,
    *,
    offset: int = 0,
    of_generation: int = 0,
    meanwhile: tuple[object, ...] = (),
) -> list[Chunk]:
    """Returns the chunks that a client gets of a job that ends after these steps."""
    steps = list(meanwhile)

    async def wait() -> None:
        steps.pop(0)()  # type: ignore[operator]

    async def collect() -> list[Chunk]:
        chunks = follow(
            results,
            JOB,
            SINK,
            offset=offset,
            of_generation=of_generation,
            ended=lambda: not steps,
            wait=wait,
        )
        return [chunk async for chunk in chunks]

    return asyncio.run(collect())


def chunks_of(generation: int, *contents: bytes, first: int = 0) -> list[Chunk]:
    return [
        Chunk(generation=generation, index=index, ipc_stream=content)
        for index, content in enumerate(contents, first)
    ]


def test_a_group_is_seen_when_it_is_shown_and_only_once(results: ResultStore) -> None:
    append(results, 0, b"a0", group="a")
    append(results, 1, b"b0", group="b")
    append(results, 2, b"a1", group="a")
    assert read(results) == []
    append(results, 3, b"", group="a")
    append(results, 4, b"c0", group="c")
    append(results, 5, b"", group="a")  # again, by whoever restored the checkpoint
    assert read(results) == chunks_of(FIRST, b"a0", b"a1")
    meanwhile = (lambda: append(results, 6, b"", group="c"),)
    assert read(results, meanwhile=meanwhile) == chunks_of(FIRST, b"a0", b"a1", b"c0")
    assert read(results, offset=2, of_generation=FIRST) == chunks_of(FIRST, b"c0", first=2)


def test_rows_that_a_checkpoint_holds_and_the_store_does_not_are_an_error(tmp_path: Path) -> None:
    append(ResultStore(tmp_path), 0, b"a0", group="a")
    opened_again = ResultStore(tmp_path)
    with pytest.raises(ChunkOutOfOrder, match="no rows of group b, which a checkpoint"):
        append(opened_again, 1, b"", group="b")
    append(opened_again, 1, b"", group="a")
    assert read(opened_again) == chunks_of(FIRST, b"a0")


def test_a_reopened_store_knows_the_rows_that_were_collected_before(tmp_path: Path) -> None:
    results = ResultStore(tmp_path)
    for index, sender in enumerate((OTHER, ATTEMPT, ATTEMPT)):
        results.append(JOB, SINK, FIRST, index, b"a0", "a", sender)
    for opened_again in (results, ResultStore(tmp_path)):
        assert opened_again.collected(JOB) == [(SINK, FIRST, 3, {OTHER: 1, ATTEMPT: 2})]
    assert opened_again.collected("f" * 32) == []


def test_a_chunk_is_there_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "chunks"
    reader = ChunkReader(path)
    assert reader.next() is None
    written = b"".join(len(c).to_bytes(8, "little") + c for c in (b"one", b"", b"three"))
    chunks = []
    for end in range(len(written) + 1):
        path.write_bytes(written[:end])
        while (got := reader.next()) is not None:
            chunks.append((end, got))
    assert chunks == [(11, b"one"), (19, b""), (32, b"three")]


def test_following_from_an_offset_ends_with_the_job(results: ResultStore) -> None:
    append(results, 0, b"zero")
    append(results, 1, b"one")
    later = (lambda: append(results, 2, b"two"), lambda: append(results, 3, b"three"))
    assert read(results, offset=1, meanwhile=later) == chunks_of(
        FIRST, b"one", b"two", b"three", first=1
    )


def test_a_job_that_ended_without_results(results: ResultStore) -> None:
    assert read(results, offset=3) == []


def test_a_chunk_that_is_sent_again_is_kept_once(results: ResultStore) -> None:
    append(results, 0, b"zero")
    append(results, 0, b"zero")
    append(results, 1, b"one")
    append(results, 0, b"zero")
    assert read(results) == chunks_of(FIRST, b"zero", b"one")


def test_a_chunk_before_which_one_is_missing_is_refused(results: ResultStore) -> None:
    append(results, 0, b"zero")
    with pytest.raises(ChunkOutOfOrder, match="chunk 2 of operator .* came before chunk 1"):
        append(results, 2, b"two")


def test_a_restarted_dispatcher_resumes_after_the_last_complete_chunk(tmp_path: Path) -> None:
    before = ResultStore(tmp_path)
    append(before, 0, b"zero")
    with before.path(JOB, SINK, FIRST).open("ab") as file:
        file.write((100).to_bytes(8, "little") + b"cut off")
    after = ResultStore(tmp_path)
    append(after, 0, b"zero")
    append(after, 1, b"one")
    assert read(after) == chunks_of(FIRST, b"zero", b"one")


def test_rows_of_a_job_that_starts_over_come_once(results: ResultStore) -> None:
    append(results, 0, b"zero")
    append(results, 1, b"one")
    append(results, 0, b"zero again", SECOND)
    assert read(results) == chunks_of(SECOND, b"zero again")
    with pytest.raises(ChunkOutOfOrder, match="older than"):
        append(results, 2, b"late", FIRST)


def test_rows_are_gone_when_a_job_starts_over_and_sends_none(results: ResultStore) -> None:
    append(results, 0, b"zero")
    results.begin(JOB, SINK, SECOND)
    assert read(results) == []


def test_a_reader_meets_the_new_generation_at_its_first_chunk(results: ResultStore) -> None:
    append(results, 0, b"zero")

    def start_over() -> None:
        append(results, 0, b"zero again", SECOND)
        append(results, 1, b"one", SECOND)

    assert read(results, meanwhile=(start_over,)) == [
        *chunks_of(FIRST, b"zero"),
        *chunks_of(SECOND, b"", b"zero again", b"one", first=-1),
    ]


def test_a_reader_meets_a_new_generation_without_rows(results: ResultStore) -> None:
    append(results, 0, b"zero")
    assert read(results, meanwhile=(lambda: results.begin(JOB, SINK, SECOND),)) == [
        *chunks_of(FIRST, b"zero"),
        *chunks_of(SECOND, b"", first=-1),
    ]


def test_a_reader_that_returns_with_an_older_generation_starts_over(results: ResultStore) -> None:
    append(results, 0, b"zero", SECOND)
    append(results, 1, b"one", SECOND)
    assert read(results, offset=1, of_generation=FIRST) == chunks_of(
        SECOND, b"", b"zero", b"one", first=-1
    )
    assert read(results, offset=1, of_generation=SECOND) == chunks_of(SECOND, b"one", first=1)


def test_what_is_dropped_is_gone(results: ResultStore) -> None:
    append(results, 0, b"zero")
    results.drop(JOB)
    assert read(results) == []


A_DAY_MS = 86_400_000
LIMITS = Limits(max_bytes=100, max_age_s=86_400.0)
SIZES = {"old": 30, "new": 40, "runs": 30}


def test_rows_of_ended_jobs_make_room_the_oldest_first() -> None:
    ended_ms = {"old": 1_000, "new": 2_000, "no rows": 3_000}
    assert LIMITS.to_evict(SIZES, ended_ms, now_ms=3_000) == {}
    assert list(LIMITS.to_evict(SIZES, ended_ms, now_ms=3_000, more=1)) == ["old"]
    assert list(LIMITS.to_evict(SIZES, ended_ms, now_ms=3_000, more=31)) == ["old", "new"]
    assert LIMITS.to_evict(SIZES, ended_ms, now_ms=3_000, more=71) == {}, "it would not help"
    no_limit = Limits(max_bytes=0, max_age_s=0.0)
    assert no_limit.to_evict(SIZES, ended_ms, now_ms=9 * A_DAY_MS, more=10**12) == {}


def test_rows_that_are_too_old_are_deleted_whatever_room_there_is() -> None:
    ended_ms = {"old": 1_000, "new": 2_000}
    evicted = LIMITS.to_evict(SIZES, ended_ms, now_ms=A_DAY_MS + 1_500)
    assert evicted == {
        "old": "collected rows are kept for 1 d after the job's end (results.max-age)"
    }


def test_a_reader_of_deleted_rows_gets_the_reason_instead_of_a_part(
    results: ResultStore, tmp_path: Path
) -> None:
    append(results, 0, b"zero")
    assert results.total_bytes == 12
    full = Limits(max_bytes=20, max_age_s=0.0)
    delete = partial(results.keep_to, full, {JOB: 1}, now_ms=2, more=10)
    for meanwhile in ((delete,), ()):  # while they are read, and later
        with pytest.raises(ResultsGone, match=rf"rows of job {JOB} are gone: .*\(results.max-size"):
            read(results, meanwhile=meanwhile)
    assert results.total_bytes == 0
    with pytest.raises(ResultsGone):
        read(ResultStore(tmp_path))
    results.drop(JOB)
    assert results.jobs() == []
    assert results.evicted(JOB) is None


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_chunk_that_cannot_be_written_leaves_the_file_as_it_was(results: ResultStore) -> None:
    append(results, 0, b"zero")
    with files_of_at_most(50), pytest.raises(ResultsNotWritten, match="cannot be written"):
        append(results, 1, b"x" * 100)
    assert results.path(JOB, SINK, FIRST).stat().st_size == 12
    append(results, 1, b"one")
    assert read(results) == chunks_of(FIRST, b"zero", b"one")
