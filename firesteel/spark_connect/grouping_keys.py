"""The keys of an aggregate of a streaming query as columns of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from firesteel.operators import SessionSpec, SlidingSpec, TumblingSpec
from firesteel.operators.assigners import WINDOW_END, WINDOW_START
from firesteel.plan.catalyst_plan import alias
from firesteel.spark_connect.catalyst import Catalyst, delay_ms, is_window, kind
from firesteel.spark_connect.names import Names


@dataclass(frozen=True, kw_only=True)
class Key:
    """A grouping expression as columns: a window is two, its start and end."""

    attribute: Any
    columns: list[tuple[str, Any]]  # names and expressions before the aggregate
    names: list[str]  # after it
    parts: list[Any]  # their attributes
    time: str = ""  # the column with the key's event time
    window: bool = False
    size_us: int | None = None  # of the window; None: its start is a column, too
    session: bool = False

    @staticmethod
    def of(catalyst: Catalyst, names: Names, grouping: Any) -> Key:
        attribute = grouping.toAttribute()
        name = names.column(attribute)
        if not is_window(attribute):
            return Key(
                attribute=attribute,
                columns=[(name, grouping)],
                names=[name],
                parts=[attribute],
                time=name if delay_ms(attribute) is not None else "",
            )
        parts = parts_of_window(catalyst, attribute, name)
        names_of_parts = [part.name() for part in parts]
        return Key(
            attribute=attribute,
            columns=list(zip(names_of_parts, parts, strict=True)),
            names=names_of_parts,
            parts=[part.toAttribute() for part in parts],
            time=names_of_parts[1] if delay_ms(attribute) is not None else "",
            window=True,
            session=is_session(grouping),
        )

    @staticmethod
    def of_window(
        catalyst: Catalyst, attribute: Any, spec: TumblingSpec | SlidingSpec | SessionSpec
    ) -> Key:
        """Returns the key of a window that the aggregate computes: its end, and of a session its
        start.
        """
        if isinstance(spec, SessionSpec):
            names = [WINDOW_START, WINDOW_END]
            parts = _bounds(catalyst, attribute, names)
            return Key(
                attribute=attribute,
                columns=[],
                names=names,
                parts=[part.toAttribute() for part in parts],
                time=names[1],
                window=True,
                session=True,
            )
        end = catalyst.named(catalyst.field(attribute, 1), WINDOW_END)
        return Key(
            attribute=attribute,
            columns=[],
            names=[WINDOW_END],
            parts=[end.toAttribute()],
            time=WINDOW_END if delay_ms(attribute) is not None else "",
            window=True,
            size_us=spec.size_us,
        )

    def whole(self, catalyst: Catalyst) -> Any:
        if not self.window:
            return self.attribute
        start, end = (
            self.parts
            if self.size_us is None
            else (catalyst.earlier(self.parts[0], self.size_us), self.parts[0])
        )
        struct = catalyst.struct([("start", start), ("end", end)])
        return alias(catalyst.jvm, struct, self.attribute)


def parts_of_window(catalyst: Catalyst, attribute: Any, name: str) -> list[Any]:
    """Returns the start and the end of a window as columns, since rows are not distributed by
    structs; nothing for an attribute that is not a window.
    """
    if not is_window(attribute):
        return []
    return _bounds(catalyst, attribute, [f"{name}_start", f"{name}_end"])


def _bounds(catalyst: Catalyst, window: Any, names: Sequence[str]) -> list[Any]:
    """Returns the start and the end of a window as columns with these names."""
    return [catalyst.named(catalyst.field(window, index), name) for index, name in enumerate(names)]


def only_window(grouping: Sequence[Any], calls: Sequence[Any]) -> Any:
    """Returns the grouping expression that is a window of time or a session which no other part of
    the aggregate uses; None if there is none.
    """
    for each in grouping:
        if kind(each) == "AttributeReference" and is_window(each):
            others = [other for other in (*grouping, *calls) if other is not each]
            used = any(other.references().contains(each) for other in others)
            return None if used else each
    return None


def is_session(grouping: Any) -> bool:
    return bool(grouping.toAttribute().metadata().contains("spark.sessionWindow"))
