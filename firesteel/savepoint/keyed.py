"""Keyed state as tables, read one key group at a time by Spark's workers, or completely into
memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

from firesteel.common.checkpoints.descriptions import StateDescription, StateKind
from firesteel.common.checkpoints.key_group_content import (
    EVENT_TIME_TIMERS,
    PROCESSING_TIME_TIMERS,
    KeyedStateEntry,
    RowsSlice,
    decode_inline,
    decode_key_group,
    decode_table,
    has_timers,
)
from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.common.checkpoints.state import (
    DatabaseHandle,
    InlineHandle,
    KeyGroupSlice,
    StateFile,
    TableSlice,
)
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.savepoint.operator_state import declared_states
from firesteel.savepoint.tables import (
    TIME,
    StateTable,
    ValuesTable,
    array_of,
    arrow_type,
    cannot_import,
    fields_of,
    unique,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

_DECLARED = "user."  # prefix of the names of states that a program declares
_TIMERS = "timers"
_PARTITIONS = 64  # of a DataFrame; a maximum
_TIMER_DOMAINS = {EVENT_TIME_TIMERS: "event_time", PROCESSING_TIME_TIMERS: "processing_time"}
# Readable names of the columns that operators add to rows.
_ADDED = {
    "_pane_start": "pane_start",
    "_session_start": "session_start",
    "_session_end": "session_end",
    "_fresh": "not_fired",
    "_time": "time",
    "_rows": "rows",
}
_TIMES = ("_pane_start", "_session_start", "_session_end", "_time")


class Stored(NamedTuple):
    """The state of one key group in one file, or rows of several key groups."""

    file: StateFile
    part: KeyGroupSlice | TableSlice


Content: TypeAlias = Iterator[KeyedStateEntry | RowsSlice]  # the content of a key group


@dataclass(frozen=True)
class KeyGroups:
    """The keyed state of an operator, wherever it is read, including in Spark's workers."""

    what: str  # the operator, for error messages
    directory: str
    stored: tuple[Stored | InlineHandle | DatabaseHandle, ...]

    def read(self, number: int, names: Sequence[str] | None = None) -> Iterator[Content]:
        """Reads one element of `stored`, by key group if it is in files. `names` are the minimum of
        entries to read; None: all. Raises FiresteelError.
        """
        stored = self.stored[number]
        storage = CheckpointStorage(self.directory)
        if isinstance(stored, Stored):
            (content,) = storage.read_slices(stored.file, [stored.part])
            if isinstance(stored.part, TableSlice):
                yield iter([decode_table(content, stored.part.name, stored.part.key_groups)])
            else:
                yield self._loaded(decode_key_group(content))
        elif isinstance(stored, InlineHandle):
            yield self._loaded(decode_inline(stored.content, stored.key_groups))
        elif names is None or names:
            # Imported late: it needs 10 MB, which most programs do not.
            from firesteel.common.checkpoints.rocksdb.reading import read_entries

            for _, entries in read_entries(storage, stored, names):
                yield self._loaded(entries)

    def read_all(self, names: Sequence[str] | None = None) -> Content:
        for number in range(len(self.stored)):
            for content in self.read(number, names):
                yield from content

    def _loaded(self, content: Content) -> Content:
        try:
            yield from content
        except (ImportError, AttributeError) as error:
            raise cannot_import(f"the state of {self.what}", error) from error


class KeyedStates:
    def __init__(self, operator: CheckpointedOperator, directory: str) -> None:
        stored: list[Stored | InlineHandle | DatabaseHandle] = []
        for _, snapshot in sorted(operator.subtasks.items()):
            for handle in snapshot.keyed:
                stored += [Stored(handle.file, part) for part in handle.tables]
                stored += [Stored(handle.file, part) for part in handle.slices]
            stored += snapshot.inline
            stored += snapshot.databases
        self._groups = KeyGroups(str(operator), directory, tuple(stored))
        self._states = operator.states
        self._declared = declared_states(operator)  # by tasks, next to others without a schema

    @functools.cached_property
    def tables(self) -> dict[str, StateTable]:
        """The tables by name. If the program did not declare its states before it ran, reads all
        state. Raises FiresteelError.
        """
        tables: dict[str, StateTable] = {
            name: _table_of(self._groups, name, state) for name, state in self._states.items()
        }
        for name, state in self._declared.items():
            tables[name] = _table_of(self._groups, name, state)
        if not self._states:
            keys = next((s.keys for s in self._declared.values() if s.keys is not None), None)
            names = [] if keys is None else [field.name for field in fields_of(keys)]
            for entry_name in dict.fromkeys(entry.name for entry in self._groups.read_all()):
                if entry_name in _TIMER_DOMAINS:
                    tables[_TIMERS] = _FunctionTimers(self._groups, names)
                elif not has_timers(entry_name):
                    name = entry_name.removeprefix(_DECLARED)
                    if name not in self._declared:
                        tables[name] = _Undeclared(self._groups, entry_name, names)
        for state in self._states.values():
            if state.keys is not None:
                (name,) = unique([_TIMERS], "firesteel.", tables)
                tables[name] = _ProcessorTimers(self._groups, "timers", {}, state)
                break
        return tables


class _Table:
    """A table with a known schema, which is read one key group at a time."""

    def __init__(
        self, groups: KeyGroups, kind: str, meaning: Mapping[str, str], state: StateDescription
    ) -> None:
        self.kind = kind
        self.meaning = meaning
        self._groups = groups
        self._state = state

    entries: Sequence[str] = ()  # the names of the entries that it consists of

    def schema(self) -> pa.Schema:
        raise NotImplementedError

    def part(self, elements: Iterable[KeyedStateEntry | RowsSlice]) -> list[pa.Table]:
        """Converts the entries of one key group."""
        raise NotImplementedError

    def to_arrow(self) -> pa.Table:
        tables = [
            table
            for number in range(len(self._groups.stored))
            for content in self._groups.read(number, self.entries)
            for table in self.part(content)
        ]
        return pa.concat_tables([self.schema().empty_table(), *tables])

    def to_spark(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        count = len(self._groups.stored)
        groups, part, entries = self._groups, self.part, self.entries

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for content in groups.read(number, entries):
                        for table in part(content):
                            yield from table.to_batches()

        numbers = spark.range(0, count, 1, max(1, min(count, _PARTITIONS)))
        schema = from_arrow_schema(self.schema(), prefer_timestamp_ntz=True)
        return numbers.mapInArrow(read, schema)


class _Declared(_Table):
    """A value, list or map state of a processor."""

    def __init__(self, groups: KeyGroups, name: str, state: StateDescription) -> None:
        super().__init__(groups, state.kind.value, {}, state)
        self._name = _DECLARED + name
        self.entries = (self._name,)
        self._keys = fields_of(state.keys)
        self._map_keys = [] if state.map_keys is None else fields_of(state.map_keys)
        self._values = fields_of(state.values)

    @property
    def _types(self) -> list[tuple[str, pa.DataType]]:
        keys = [field.name for field in self._keys]
        position = ["position"] if self._state.kind is StateKind.LIST else []
        names = [*keys, *unique(position, "list_", keys)]
        names += unique([field.name for field in self._map_keys], "map_", names)
        names += unique([field.name for field in self._values], "value_", names)
        types = [arrow_type(field.dataType) for field in self._keys]
        types += [pa.int64()] * len(position)
        types += [arrow_type(field.dataType) for field in (*self._map_keys, *self._values)]
        if self._state.ttl_ms is not None:
            names += unique(["expires"], "state_", names)
            types.append(TIME)
        return list(zip(names, types, strict=True))

    def schema(self) -> pa.Schema:
        return pa.schema(self._types)

    def part(self, elements: Iterable[KeyedStateEntry | RowsSlice]) -> list[pa.Table]:
        keys: list[Any] = []
        positions: list[int] = []
        map_keys: list[Any] = []
        values: list[Any] = []
        for entry in elements:
            if entry.name != self._name or not isinstance(entry, KeyedStateEntry):
                continue
            match self._state.kind:
                case StateKind.LIST:
                    positions += range(len(entry.value))
                    values += entry.value
                    keys += [entry.key] * len(entry.value)
                case StateKind.MAP:
                    map_keys += entry.value
                    values += entry.value.values()
                    keys += [entry.key] * len(entry.value)
                case _:
                    values.append(entry.value)
                    keys.append(entry.key)
        if not values:
            return []
        columns = _columns(keys, self._keys)
        if self._state.kind is StateKind.LIST:
            columns.append(pa.array(positions, pa.int64()))
        columns += _columns(map_keys, self._map_keys)
        dated = self._state.ttl_ms is not None
        columns += _columns([v for _, v in values] if dated else values, self._values)
        if dated:
            columns.append(pa.array([expiry_ms * 1000 for expiry_ms, _ in values], TIME))
        return [pa.Table.from_arrays(columns, schema=self.schema())]


class _ProcessorTimers(_Table):
    """The timers of a processor, in its time mode."""

    entries = (_TIMERS,)

    def schema(self) -> pa.Schema:
        keys = fields_of(self._state.keys)
        names = [field.name for field in keys]
        types = [(field.name, arrow_type(field.dataType)) for field in keys]
        return pa.schema([*types, (unique(["time"], "timer_", names)[0], TIME)])

    def part(self, elements: Iterable[KeyedStateEntry | RowsSlice]) -> list[pa.Table]:
        timers = [
            (entry.key, time_ms)
            for entry in elements
            if isinstance(entry, KeyedStateEntry) and entry.name == _TIMERS
            for time_ms in sorted(entry.value)
        ]
        if not timers:
            return []
        columns = _columns([key for key, _ in timers], fields_of(self._state.keys))
        columns.append(pa.array([time_ms * 1000 for _, time_ms in timers], TIME))
        return [pa.Table.from_arrays(columns, schema=self.schema())]


class _Rows(_Table):
    """State in columns: of windows, aggregates and rows without duplicates."""

    def __init__(self, groups: KeyGroups, name: str, state: StateDescription) -> None:
        super().__init__(groups, StateKind.ROWS.value, state.meaning, state)
        self._name = name

    def schema(self) -> pa.Schema:
        """Returns the schema of the first rows; without rows, a schema without columns."""
        for number in range(len(self._groups.stored)):
            for content in self._groups.read(number, self.entries):
                for table in self.part(content):
                    return table.schema
        return pa.schema([])

    def part(self, elements: Iterable[KeyedStateEntry | RowsSlice]) -> list[pa.Table]:
        return [
            self._shown(rows.table)
            for rows in elements
            if isinstance(rows, RowsSlice) and rows.name == self._name
        ]

    def _shown(self, table: pa.Table) -> pa.Table:
        columns = table.columns
        names: list[str] = []
        for place, field in enumerate(table.schema):
            name = _ADDED.get(field.name, field.name)
            if text := self._state.columns.get(field.name):
                name = text.removesuffix(f" {field.type}")
            if field.name in _TIMES and pa.types.is_int64(field.type):
                columns[place] = columns[place].cast(pa.timestamp("us")).cast(TIME)
            names += unique([name], "_", names)
        return pa.table(columns, names)


class _Undeclared(ValuesTable):
    """A state without a schema, of `co_process` or of a custom operator."""

    kind = "keyed"

    def __init__(self, groups: KeyGroups, name: str, keys: Sequence[str] = ()) -> None:
        """`keys` are the names of the key columns; empty: unknown."""
        self._groups = groups
        self._name = name
        self._keys = keys

    def columns(self) -> Mapping[str, Sequence[Any]]:
        entries = [
            entry
            for entry in self._groups.read_all((self._name,))
            if isinstance(entry, KeyedStateEntry) and entry.name == self._name
        ]
        columns = _key_columns([entry.key for entry in entries], self._keys)
        if any(entry.namespace is not None for entry in entries):
            columns[_free("namespace", columns)] = [entry.namespace for entry in entries]
        columns[_free("value", columns)] = [entry.value for entry in entries]
        return columns


class _FunctionTimers(ValuesTable):
    """Timers that the task keeps, such as those of `co_process`."""

    kind = "timers"

    def __init__(self, groups: KeyGroups, keys: Sequence[str]) -> None:
        """`keys` are the names of the key columns; empty: unknown."""
        self._groups = groups
        self._keys = keys

    def columns(self) -> Mapping[str, Sequence[Any]]:
        timers = [
            (entry.key, _TIMER_DOMAINS[entry.name], *entry.namespace)
            for entry in self._groups.read_all(tuple(_TIMER_DOMAINS))
            if isinstance(entry, KeyedStateEntry) and entry.name in _TIMER_DOMAINS
        ]
        columns = _key_columns([key for key, *_ in timers], self._keys)
        per_us = {"event_time": 1, "processing_time": 1000}
        times = pa.array([at * per_us[of] for _, of, at, _ in timers], TIME)
        columns[_free("time", columns)] = times
        columns[_free("domain", columns)] = [domain for _, domain, _, _ in timers]
        if any(namespace is not None for *_, namespace in timers):
            columns[_free("namespace", columns)] = [namespace for *_, namespace in timers]
        return columns


def _table_of(groups: KeyGroups, name: str, state: StateDescription) -> StateTable:
    if state.kind is StateKind.ROWS:
        return _Rows(groups, name, state)
    if state.keys is None:
        return _Undeclared(groups, _DECLARED + name)
    return _Declared(groups, name, state)


def _columns(values: Sequence[Sequence[Any]], fields: Sequence[StructField]) -> list[pa.Array]:
    return [
        array_of([value[place] for value in values], field.dataType)
        for place, field in enumerate(fields)
    ]


def _free(name: str, columns: Mapping[str, Any]) -> str:
    """Returns the name of a column that is added to the key columns."""
    return unique([name], "timer_" if name == "time" else "state_", [*columns])[0]


def _key_columns(keys: Sequence[Any], names: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the columns of keys. Without `names`, they are `key`, or `key_1`, `key_2`, ..."""
    if names:
        return {name: [key[place] for key in keys] for place, name in enumerate(names)}
    width = max((len(key) for key in keys if isinstance(key, tuple)), default=1)
    if width == 1:
        return {"key": [key[0] if isinstance(key, tuple) else key for key in keys]}
    return {f"key_{n + 1}": [key[n] for key in keys] for n in range(width)}
