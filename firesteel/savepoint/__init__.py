"""Reads the state in savepoints and retained checkpoints as tables.

from firesteel import savepoint

saved = savepoint.read("/shared/savepoints/savepoint-8a3f5f-5ac1e9b7d204")
saved["counts"]["count"].to_pandas()
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.common.checkpoints.savepoint import Restored, open_checkpoint
from firesteel.errors import FiresteelError
from firesteel.savepoint.keyed import KeyedStates
from firesteel.savepoint.operator_state import operator_states
from firesteel.savepoint.tables import StateTable

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SavedOperator", "SavedState", "Savepoint", "read"]


def read(path: str) -> Savepoint:
    """Opens a savepoint or a retained checkpoint. `path` is the path or URI of its directory.

    Values of state are unpickled: open only trusted data. Raises FiresteelError if it cannot be
    read.
    """
    return Savepoint(open_checkpoint(path if "://" in path else os.path.abspath(path)))


class Savepoint(Mapping[str, "SavedOperator"]):
    """The operators with state, by uid, or by name if they have no uid."""

    def __init__(self, opened: Restored) -> None:
        metadata = opened.metadata
        self.path = opened.directory
        self.kind = "savepoint" if metadata.savepoint else "checkpoint"
        self.checkpoint_id = metadata.checkpoint_id
        self.job_id: str = metadata.job_id
        self.job_name = metadata.job_name
        self.taken = datetime.datetime.fromtimestamp(metadata.timestamp_ms / 1000, tz=datetime.UTC)
        self._operators: dict[str, SavedOperator] = {}
        for operator in metadata.operators:
            if operator.has_state or operator.states:
                name = operator.uid or operator.name
                if name in self._operators:  # of the same name: by their ids
                    name = operator.operator_id
                self._operators[name] = SavedOperator(operator, opened.base)

    def __getitem__(self, uid: str) -> SavedOperator:
        operator = self._operators.get(uid)
        if operator is None:
            raise NoSuchState(
                f"the {self.kind} {self.path} has no state of an operator {uid!r}; it has state of"
                f" {', '.join(map(repr, self)) or 'none'}"
            )
        return operator

    def __contains__(self, uid: object) -> bool:
        return uid in self._operators

    def __iter__(self) -> Iterator[str]:
        return iter(self._operators)

    def __len__(self) -> int:
        return len(self._operators)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.path} of {self.job_name!r}: {', '.join(self) or 'no state'}>"


class NoSuchState(FiresteelError, KeyError):
    """There is no operator, or no state, with this name; the message lists the existing ones."""

    __str__ = FiresteelError.__str__


class SavedOperator(Mapping[str, "SavedState"]):
    """The states of an operator, by name."""

    def __init__(self, operator: CheckpointedOperator, directory: str) -> None:
        self.uid = operator.uid  # empty: the operator has no uid
        self.name = operator.name
        self.parallelism = operator.parallelism
        self.max_parallelism = operator.max_parallelism
        self.finished = operator.finished  # all of its subtasks had ended
        self.coordinator: Any = operator.coordinator  # of a source: the assignment of its splits
        self.size_bytes = sum(part.size_bytes for part in operator.subtasks.values())
        self._keyed = KeyedStates(operator, directory)
        self._operator_states = operator_states(operator)

    def __getitem__(self, name: str) -> SavedState:
        table = self._operator_states.get(name) or self._keyed.tables.get(name)
        if table is None:
            raise NoSuchState(
                f"operator {self.uid or self.name!r} has no state {name!r} in the savepoint; it has"
                f" {', '.join(map(repr, self)) or 'none'}"
            )
        return SavedState(name, table)

    def __contains__(self, name: object) -> bool:
        return name in self._operator_states or name in self._keyed.tables

    def __iter__(self) -> Iterator[str]:
        yield from self._keyed.tables
        yield from self._operator_states

    def __len__(self) -> int:
        return len(self._keyed.tables) + len(self._operator_states)

    def __repr__(self) -> str:
        return f"<state of {self.uid or self.name}: {', '.join(self) or 'none'}>"


class SavedState:
    """A state as a table: the columns of its key, then those of its values.

    A list has a row per element (`position`), a map one per entry. A state with a TTL has a column
    `expires`.
    """

    def __init__(self, name: str, table: StateTable) -> None:
        self.name = name
        # "value", "list", "map", "rows", "timers", "keyed" (not declared before the job runs), or,
        # for operator state, "operator list", "union list", "broadcast".
        self.kind = table.kind
        # Describes what the rows represent, such as {"window": ..., "key": ...}.
        self.meaning: Mapping[str, str] = table.meaning
        self._table = table

    def to_arrow(self) -> pa.Table:
        """Returns the whole state, in memory. In a state without a schema, values that Arrow has no
        type for are converted to text. Raises FiresteelError for a damaged file, and for values
        whose class cannot be imported here.
        """
        return self._table.to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        """Returns the whole state as a pandas DataFrame. See `to_arrow`."""
        return self.to_arrow().to_pandas()

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Returns the state as a DataFrame. Spark's Python workers read it; they need Firesteel and
        the modules of the values' classes, and must have access to the savepoint's directory.
        """
        return self._table.to_spark(spark)

    def __repr__(self) -> str:
        return f"<{self.kind} state {self.name!r}>"
