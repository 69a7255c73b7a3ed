"""The keyed half of an aggregation without windows."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.operators.aggregates import AggregateExpression
from firesteel.operators.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAggregateSpec(Spec):
    """The keyed half without windows: emits the new values of the changed keys, as an upsert
    stream.

    Output: key columns, one column per aggregate, and `row_kind` if its rows are `changes`, or
    those of its input are.
    """

    key_columns: tuple[str, ...]
    aggregates: tuple[AggregateExpression, ...]
    changes: bool = False  # a key's earlier values are retracted before the new ones are emitted

    uses_pandas = False
    state_in_columns = True
