"""PostgresSink on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg2
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.connectors import PostgresSink
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.testing import OperatorHarness
from taskexecutor.executor.connectors.runtime import sink_runtime
from taskexecutor.executor.state import RestoredOperatorState
from tests.long import fewer
from tests.proxy import Proxy

PAIR = pa.schema([("k", pa.int64()), ("v", pa.string())])
RICH = pa.schema(
    [
        ("flag", pa.bool_()),
        ("small", pa.int16()),
        ("number", pa.int64()),
        ("single", pa.float32()),
        ("ratio", pa.float64()),
        ("price", pa.decimal128(12, 3)),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("list", pa.list_(pa.int64())),
        ("record", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ('Odd, "name"', pa.string()),
    ]
)
ROW: dict[str, Any] = {
    "flag": True,
    "small": -3,
    "number": 2**60,
    "single": 0.5,
    "ratio": float("inf"),
    "price": Decimal("-12.345"),
    "text": 'a "quoted", ü\nline\\N',
    "raw": b"\x00\xff\\",
    "day": date(1969, 12, 31),
    "at": datetime(2013, 1, 1, 5, 0, 0, 123456, tzinfo=UTC),
    "local": datetime(2013, 3, 10, 2, 30),
    "list": [1, None],
    "record": {"a": None, "b": "x"},
    'Odd, "name"': "",
}


@pytest.fixture
def connection(postgres: str) -> Iterator[Any]:
    connection = psycopg2.connect(postgres)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public; SET TIME ZONE 'UTC'")
    yield connection
    connection.close()


def rows(connection: Any, query: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall()) if cursor.description else []


def write(sink: PostgresSink, *batches: pa.RecordBatch, schema: pa.Schema | None = None) -> None:
    schema = schema or batches[0].schema
    sink_runtime(sink).analyze(schema)
    harness = OperatorHarness(sink_runtime(sink).operator(), [schema])
    try:
        harness.open()
        for batch in batches:
            harness.process(batch)
        harness.end()
    except BaseException:
        harness.close()
        raise


def pairs(*values: tuple[int, str | None]) -> pa.RecordBatch:
    return pa.record_batch([[k for k, _ in values], [v for _, v in values]], schema=PAIR)


def test_a_table_is_created_that_holds_every_type(postgres: str, connection: Any) -> None:
    nothing = dict.fromkeys(RICH.names)
    write(
        PostgresSink(postgres, "public.rich"),
        pa.RecordBatch.from_pylist([ROW, nothing], schema=RICH),
    )
    first, second = rows(connection, "SELECT * FROM rich ORDER BY number")
    assert [bytes(value) if isinstance(value, memoryview) else value for value in first] == list(
        ROW.values()
    )
    assert set(second) == {None}


TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=5)
DAYS = (date(1900, 1, 1), date(2200, 1, 1))
TIMES = (datetime(1900, 1, 1), datetime(2200, 1, 1))
ANY: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "small": st.integers(-(2**15), 2**15 - 1),
    "number": st.integers(-(2**63), 2**63 - 1),
    "single": st.integers(-(2**20), 2**20).map(
        lambda n: n / 8
    ),  # PostgreSQL shows other floats with fewer digits than it stores
    "ratio": st.floats(allow_nan=False),
    "price": st.integers(-(10**11), 10**11).map(lambda n: Decimal(n).scaleb(-3)),
    "text": TEXT,
    "raw": st.binary(max_size=5),
    "day": st.dates(*DAYS),
    "at": st.datetimes(*TIMES, timezones=st.just(UTC)),
    "local": st.datetimes(*TIMES),
    "list": st.lists(st.none() | st.integers(-9, 9), max_size=3),
    "record": st.fixed_dictionaries({"a": st.none() | st.integers(-9, 9), "b": st.none() | TEXT}),
    'Odd, "name"': TEXT,
}


@settings(max_examples=fewer(15))
@given(
    batches=st.lists(
        st.lists(
            st.fixed_dictionaries({name: st.none() | values for name, values in ANY.items()}),
            max_size=4,
        ),
        max_size=3,
    ),
    batch_rows=st.integers(1, 5),
)
def test_any_rows_arrive_as_they_were(
    postgres: str, connection: Any, batches: list[Any], batch_rows: int
) -> None:
    rows(connection, "DROP TABLE IF EXISTS rich")
    given = [pa.RecordBatch.from_pylist(batch, schema=RICH) for batch in batches]
    write(PostgresSink(postgres, "rich", batch_rows=batch_rows), *given, schema=RICH)
    found = rows(connection, "SELECT * FROM rich")
    expected = [list(row.values()) for batch in given for row in batch.to_pylist()]
    assert sorted(map(comparable, found)) == sorted(map(comparable, expected))


def comparable(row: Sequence[Any]) -> str:
    plain = [bytes(value) if isinstance(value, memoryview) else value for value in row]
    return repr(
        [
            value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value
            for value in plain
        ]
    )


def test_what_is_nested_arrives_as_json_that_postgres_takes(postgres: str, connection: Any) -> None:
    kind = pa.map_(
        pa.string(),
        pa.struct(
            [("x", pa.float64()), ("d", pa.decimal128(5, 2)), ("at", pa.timestamp("us", "UTC"))]
        ),
    )
    inner = {"x": float("nan"), "d": Decimal("1.50"), "at": datetime(2024, 1, 1, 2, tzinfo=UTC)}
    write(
        PostgresSink(postgres, "nested"),
        pa.record_batch([pa.array([[("k", inner)]], kind)], names=["by"]),
    )
    assert rows(connection, "SELECT by->'k'->>'at', by FROM nested") == [
        (
            "2024-01-01T02:00:00+00:00",
            {"k": {"x": "NaN", "d": "1.50", "at": "2024-01-01T02:00:00+00:00"}},
        )
    ]


def test_upserts_replace_rows_and_the_last_of_a_key_counts(postgres: str, connection: Any) -> None:
    sink = PostgresSink(postgres, "kv", mode="upsert", key="K")  # as in Spark: it means k
    write(sink, pairs((1, "a"), (2, "b"), (1, "c")))
    write(sink, pairs((2, None), (3, "d")), pairs((3, "e")))
    assert rows(connection, "SELECT k, v FROM kv ORDER BY k") == [(1, "c"), (2, None), (3, "e")]


@settings(max_examples=fewer(25))
@given(
    batches=st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 5),
                st.text(st.characters(exclude_characters="\0", codec="utf-8")) | st.none(),
            )
        )
    ),
    batch_rows=st.integers(1, 7),
)
def test_upserts_leave_what_a_dict_would(
    postgres: str, connection: Any, batches: list[Any], batch_rows: int
) -> None:
    rows(connection, "DROP TABLE IF EXISTS kv")
    sink = PostgresSink(postgres, "kv", mode="upsert", key=["k"], batch_rows=batch_rows)
    write(sink, *(pairs(*batch) for batch in batches), schema=PAIR)
    assert rows(connection, "SELECT k, v FROM kv ORDER BY k") == sorted(
        {k: v for batch in batches for k, v in batch}.items()
    )


CHANGE = PAIR.append(pa.field("row_kind", pa.string()))


@settings(max_examples=fewer(20))
@given(
    batches=st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 4), st.sampled_from("abc"), st.sampled_from(["insert", "delete"])
            )
        )
    ),
    batch_rows=st.integers(1, 7),
)
def test_upserts_delete_what_a_dict_would(
    postgres: str, connection: Any, batches: list[Any], batch_rows: int
) -> None:
    rows(connection, "DROP TABLE IF EXISTS kv")
    sink = PostgresSink(postgres, "kv", mode="upsert", key=["k"], batch_rows=batch_rows)
    write(sink, *(changes(*batch) for batch in batches), schema=CHANGE)
    expected: dict[int, str] = {}
    for k, v, kind in (change for batch in batches for change in batch):
        if kind == "insert":
            expected[k] = v
        else:
            expected.pop(k, None)
    assert rows(connection, "SELECT * FROM kv ORDER BY k") == sorted(expected.items())


def changes(*values: tuple[int | None, str, str]) -> pa.RecordBatch:
    return pa.record_batch(list(zip(*values, strict=True)) or [[], [], []], schema=CHANGE)


def test_a_key_that_is_null_is_not_one_more_row_with_each_update(
    postgres: str, connection: Any
) -> None:
    sink = PostgresSink(postgres, "kv", mode="upsert", key=["k"])
    rows(connection, "CREATE TABLE kv (k bigint, v text); CREATE UNIQUE INDEX one ON kv (k)")
    with pytest.raises(FiresteelError, match="'k' of a row is null.*NULLS NOT DISTINCT"):
        write(sink, changes((1, "a", "insert"), (None, "b", "insert")))
    rows(connection, "DROP INDEX one; CREATE UNIQUE INDEX ON kv (k) NULLS NOT DISTINCT")
    for value in "cd":
        write(sink, changes((1, value, "insert"), (None, value, "insert")))
    assert rows(connection, "SELECT k, v FROM kv ORDER BY k") == [(1, "d"), (None, "d")]


def test_what_marks_deleted_rows_is_checked(postgres: str, connection: Any) -> None:
    sink = PostgresSink(postgres, "kv", mode="upsert", key=["k"])
    with pytest.raises(FiresteelError, match="a row's row_kind is 'D'; in an upsert it must mark"):
        write(sink, changes((1, "a", "insert"), (1, "a", "D")))
    with pytest.raises(FiresteelError, match="key column 'k' of a row to delete is null"):
        write(sink, changes((None, "a", "delete")))
    numbers = PAIR.append(pa.field("row_kind", pa.int64()))
    with pytest.raises(FiresteelError, match="column 'row_kind' is int64; in an upsert it marks"):
        sink_runtime(sink).analyze(numbers)
    rows(connection, "ALTER TABLE kv ADD COLUMN row_kind text")
    with pytest.raises(FiresteelError, match="table kv has a column 'row_kind'"):
        sink_runtime(sink).analyze(CHANGE)
    write(PostgresSink(postgres, "appended"), changes((1, "a", "insert"), (1, "a", "delete")))
    assert rows(connection, "SELECT row_kind FROM appended") == [("insert",), ("delete",)]


def test_appends_fill_a_table_that_is_there(postgres: str, connection: Any) -> None:
    rows(
        connection,
        "CREATE TABLE t (id serial, v varchar(9), k numeric, at timestamptz DEFAULT now())",
    )
    write(
        PostgresSink(postgres, "t", batch_rows=2),
        pairs((1, "a"), (2, "b"), (3, None)),
        pairs((4, "")),
    )
    assert rows(connection, "SELECT id, k, v FROM t ORDER BY id") == [
        (1, 1, "a"),
        (2, 2, "b"),
        (3, 3, None),
        (4, 4, ""),
    ]


def test_rows_are_there_when_the_input_runs_dry(postgres: str, connection: Any) -> None:
    harness = OperatorHarness(sink_runtime(PostgresSink(postgres, "t")).operator(), [PAIR]).open()
    harness.process(pairs((1, "a")))
    harness.flush()
    assert rows(connection, "SELECT * FROM t") == [(1, "a")]
    harness.process(pairs((2, "b")))
    harness.close()  # failed or cancelled
    assert rows(connection, "SELECT * FROM t") == [(1, "a")]


def test_several_subtasks_may_create_the_table(postgres: str, connection: Any) -> None:
    sink = PostgresSink(postgres, "t", mode="upsert", key=["k"])
    first, second = (
        OperatorHarness(sink_runtime(sink).operator(), [PAIR], subtask=i, parallelism=2).open()
        for i in range(2)
    )
    for harness, text in ((first, "a"), (second, "b")):
        harness.process(pairs((1, text)))
        harness.end()
    assert rows(connection, "SELECT * FROM t") == [(1, "b")]


@pytest.mark.parametrize(
    ("table", "arguments", "message"),
    [
        (
            "CREATE TABLE t (k bigint)",
            {},
            r"no column 'v'; it has: k. Add it \(ALTER TABLE t ADD COLUMN ... text\)",
        ),
        (
            "CREATE TABLE t (k bigint, v integer)",
            {},
            r"column 'v' of the stream is string, but that of table t is integer; cast it",
        ),
        (
            "CREATE TABLE t (k bigint, v text)",
            {"mode": "upsert", "key": ["k"]},
            r"no unique index over exactly \(k\).*CREATE UNIQUE",
        ),
        (
            "",
            {"mode": "upsert", "key": ["q"]},
            r"key column 'q' is not in the stream, which has: k, v",
        ),
    ],
)
def test_what_does_not_fit_is_found_before_data_flows(
    postgres: str, connection: Any, table: str, arguments: dict[str, Any], message: str
) -> None:
    if table:
        rows(connection, table)
    with pytest.raises(FiresteelError, match=message):
        sink_runtime(PostgresSink(postgres, "t", **arguments)).analyze(PAIR)


def test_a_database_that_cannot_be_reached_is_named_without_the_password(postgres: str) -> None:
    for url, message in (
        (
            "postgresql://me:secret@127.0.0.1:1/db",
            r"cannot connect to postgresql://me:\*\*\*@127.0.0.1:1/db: .*refused",
        ),
        (postgres.replace("/postgres?", "/nowhere?"), 'database "nowhere" does not exist'),
        ("mysql://me:secret@host/db", "is not PostgreSQL"),
        ("secret:what is this", "does not parse"),
    ):
        with pytest.raises(FiresteelError, match=message) as raised:
            sink_runtime(PostgresSink(url, "t")).analyze(PAIR)
        assert "secret" not in str(raised.value)
    assert "secret" not in repr(PostgresSink("postgresql://me:secret@host/db", "t"))


def test_a_refused_row_fails_the_task_with_the_databases_message(
    postgres: str, connection: Any
) -> None:
    rows(connection, "CREATE TABLE t (k smallint, v text CHECK (length(v) < 4))")
    with pytest.raises(FiresteelError, match=r'table t: .*violates check constraint "t_v_check"'):
        write(PostgresSink(postgres, "t"), pairs((1, "ok"), (2, "too long")))
    with pytest.raises(
        FiresteelError, match=r"table t: value \"70000\" is out of range for type smallint"
    ):
        write(PostgresSink(postgres, "t"), pairs((70_000, "x")))
    with pytest.raises(FiresteelError, match="table t: invalid byte sequence"):
        write(PostgresSink(postgres, "t"), pairs((1, "\0")))
    assert rows(connection, "SELECT * FROM t") == []


def test_modes_are_checked_where_the_program_is_written() -> None:
    with pytest.raises(InvalidProgram, match="allowed: append, upsert"):
        PostgresSink("postgresql:///db", "t", mode="replace")  # type: ignore[arg-type]
    with pytest.raises(InvalidProgram, match="is required with"):
        PostgresSink("postgresql:///db", "t", mode="upsert")
    with pytest.raises(InvalidProgram, match="only there"):
        PostgresSink("postgresql:///db", "t", key=["k"])


# -- with checkpoints


def attempt(
    sink: PostgresSink,
    number: int,
    restored: RestoredOperatorState | None = None,
    schema: pa.Schema = PAIR,
) -> OperatorHarness:
    return OperatorHarness(
        sink_runtime(sink).operator(), [schema], checkpoints=True, attempt=number, restored=restored
    ).open()


def test_rows_are_there_once_when_their_checkpoint_is_complete(
    postgres: str, connection: Any
) -> None:
    def there() -> list[Any]:
        return rows(connection, "SELECT k FROM t ORDER BY k")

    def waiting() -> int:
        ((count,),) = rows(connection, "SELECT count(*) FROM t_firesteel")
        return int(count)

    sink = PostgresSink(postgres, "t", batch_rows=2)
    first = attempt(sink, 0)
    first.process(pairs((1, "a"), (2, None), (3, "c")))
    lost = first.checkpoint(1)
    first.process(pairs((4, "d")))
    restored = first.checkpoint(2)
    first.process(pairs((5, "e")))
    first.flush()
    assert (there(), waiting()) == ([], 5)
    first.complete(1)
    assert there() == [(1,), (2,), (3,)]
    first.close()
    assert waiting() == 1, "only what a checkpoint may hold is left"

    second = attempt(sink, 1, restored)  # checkpoint 2 was complete, but its notice was lost
    assert there() == [(1,), (2,), (3,), (4,)]
    second.process(pairs((5, "e")))
    restored = second.checkpoint(3)  # is given up
    second.process(pairs((6, "f"), (6, "f")))
    killed = second.checkpoint(4)  # is complete
    third = attempt(sink, 2, killed)
    with pytest.raises(FiresteelError, match="0 of the 1 rows that a .* another attempt"):
        second.complete(4)  # it was declared dead, and keeps running
    assert there() == [(1,), (2,), (3,), (4,), (5,), (6,), (6,)]
    attempt(sink, 3, lost).close()  # all of it is committed: nothing is committed twice
    assert there() == [(1,), (2,), (3,), (4,), (5,), (6,), (6,)]
    second.process(pairs((7, "g")))
    second.flush()
    second.checkpoint(5)
    second.close()
    assert waiting() == 1, "rows that will never be committed"
    third.process(pairs((7, "g")))
    third.finish()
    third.checkpoint(5, finished=True)
    third.complete(5)
    third.close()
    assert (there(), waiting()) == ([(1,), (2,), (3,), (4,), (5,), (6,), (6,), (7,)], 0)


@pytest.fixture
def proxy(postgres: str, connection: Any) -> Iterator[Proxy]:
    (folder,) = parse_qs(urlsplit(postgres).query)["host"]
    proxy = Proxy(f"{folder}/.s.PGSQL.5432")
    yield proxy
    proxy.down()


def through(proxy: Proxy) -> str:
    return f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"


@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "key": ["k"]}])
def test_a_server_that_is_away_for_a_while_costs_no_row_and_no_restart(
    connection: Any, proxy: Proxy, options: dict[str, Any]
) -> None:
    writer = attempt(PostgresSink(through(proxy), "t", **options), 0)
    steps = (lambda n: writer.checkpoint(n), lambda n: writer.complete(n))
    with ThreadPoolExecutor(1) as thread:
        for n in range(1, 5):
            writer.process(pairs((n, "x"), (n + 10, "y")))
            for step in steps:
                if n == 1:
                    proxy.down()
                    waiting = thread.submit(step, n)
                    proxy.up()
                    waiting.result(60)
                elif n == 3:
                    proxy.lost.clear()
                    proxy.lose_answer_to(b"COMMIT")  # it is done, but the answer is lost
                    step(n)
                    assert proxy.lost.is_set()
                else:
                    step(n)
    writer.close()
    found = rows(connection, "SELECT k FROM t ORDER BY k")
    assert found == [(1,), (2,), (3,), (4,), (11,), (12,), (13,), (14,)]
    assert rows(connection, "SELECT count(*) FROM t_firesteel") == [(0,)]


def test_without_checkpoints_rows_that_may_be_there_are_not_appended_again(proxy: Proxy) -> None:
    harness = OperatorHarness(
        sink_runtime(PostgresSink(through(proxy), "t")).operator(), [PAIR]
    ).open()
    harness.process(pairs((1, "x")))
    proxy.lose_answer_to(b"COMMIT")
    with pytest.raises(FiresteelError, match="server closed the connection"):
        harness.flush()
    harness.close()


def test_a_server_that_stays_away_fails_the_task(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskexecutor.executor.connectors.postgres.connection.PATIENCE_S", 0.2)
    writer = attempt(PostgresSink(through(proxy), "t"), 0)
    writer.process(pairs((1, "x")))
    proxy.down()
    with pytest.raises(FiresteelError, match=r"cannot connect to postgresql://postgres@127.*"):
        writer.checkpoint(1)
    writer.close()
    proxy.up()


def test_the_last_row_of_a_key_counts_over_several_checkpoints(
    postgres: str, connection: Any
) -> None:
    sink = PostgresSink(postgres, "t", mode="upsert", key=["k"], batch_rows=2)
    first = attempt(sink, 0, schema=CHANGE)
    first.process(changes((1, "a", "insert"), (2, "b", "insert"), (1, "c", "insert")))
    first.checkpoint(1)
    first.process(changes((1, "d", "insert"), (2, "-", "delete"), (3, "e", "insert")))
    first.checkpoint(2)
    assert rows(connection, "SELECT * FROM t") == []
    first.complete(2)
    assert rows(connection, "SELECT * FROM t ORDER BY k") == [(1, "d"), (3, "e")]
    first.process(changes((3, "-", "delete")))
    restored = first.checkpoint(3)
    first.close()
    attempt(sink, 1, restored, schema=CHANGE).close()
    assert rows(connection, "SELECT * FROM t") == [(1, "d")]


def test_two_who_commit_the_same_rows_insert_them_once(postgres: str, connection: Any) -> None:
    sink = PostgresSink(postgres, "t")
    first = attempt(sink, 0)
    first.process(pairs(*((k, "x") for k in range(5_000))))
    restored = first.checkpoint(1)
    with ThreadPoolExecutor(3) as threads:
        others = [threads.submit(attempt, sink, number, restored) for number in (1, 2)]
        threads.submit(first.complete, 1).exception()  # at most: that its rows are gone
        for other in others:
            other.result().close()
    first.close()
    assert rows(connection, "SELECT count(*), count(DISTINCT k) FROM t") == [(5_000, 5_000)]


def test_waiting_rows_that_somebody_deleted_are_missed(postgres: str, connection: Any) -> None:
    sink = PostgresSink(postgres, "t")
    writer = attempt(sink, 0)
    for checkpoint_id in (1, 2):
        writer.process(pairs((checkpoint_id, "x"), (checkpoint_id, "y")))
        writer.checkpoint(checkpoint_id)
    rows(connection, "DELETE FROM t_firesteel WHERE v = 'x' AND k = 1")
    with pytest.raises(FiresteelError, match="t_firesteel has 1 of the 2 rows that a checkpoint"):
        writer.complete(1)
    assert rows(connection, "SELECT * FROM t") == []
    writer.close()


def test_a_table_that_has_changed_gets_other_waiting_rows(postgres: str, connection: Any) -> None:
    sink = PostgresSink(postgres, "t")
    writer = attempt(sink, 0)
    writer.process(pairs((1, "x")))
    restored = writer.checkpoint(1)
    writer.close()
    rows(connection, "ALTER TABLE t ALTER COLUMN k TYPE numeric")
    with pytest.raises(FiresteelError, match="t_firesteel holds rows that wait for their"):
        attempt(sink, 0)
    rows(connection, "DELETE FROM t_firesteel")
    attempt(sink, 0).close()
    attempt(sink, 1, restored).close()


def test_long_names_of_tables_have_waiting_rows_of_their_own(
    postgres: str, connection: Any
) -> None:
    for last in "ab":
        write(PostgresSink(postgres, f"{'t' * 60}{last}"), pairs((1, "x")))
        attempt(PostgresSink(postgres, f"public.{'t' * 60}{last}"), 0).close()
    names = rows(connection, "SELECT tablename FROM pg_tables WHERE tablename LIKE '%firesteel'")
    assert len(names) == 2
