"""The streams of a query while it is planned. Each has a stretch that is still to be applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from firesteel.datastream import DataStream
from firesteel.operators import EventTimeWatermarkSpec, SessionParts
from firesteel.spark_connect.catalyst import Catalyst, children, has_node, kind, output, same
from firesteel.spark_connect.names import Names
from firesteel.static_table import StaticTable

# The column with the time of a watermark, if the query does not need it.
TIME_OF_WATERMARK = "time_of_watermark"


@dataclass(frozen=True, kw_only=True)
class Watermark:
    """A watermark that is assigned after the stretch above it, whose rows are as many.

    So Spark plans the stretch together with the nodes below the watermark.
    """

    time: Any  # attribute
    title: str
    uid: str
    spec: EventTimeWatermarkSpec  # its column is not known yet

    def with_parts(self, parts: SessionParts) -> Watermark:
        return replace(self, spec=replace(self.spec, parts=parts))


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A stream and the stretch that is still to be applied to it.

    `attributes` are those of the stream's columns `names`; `plan` has them as its leaf, and
    `statics` for others. If `hides_time`, the last column of the plan is the time of the
    `watermark`, which the query itself does not need.
    """

    stream: DataStream
    attributes: list[Any]
    names: list[str]
    plan: Any
    statics: Mapping[int, StaticTable] = field(default_factory=dict)
    watermark: Watermark | None = None
    hides_time: bool = False

    @property
    def output(self) -> list[Any]:
        """The attributes of the plan's columns."""
        columns = output(self.plan)
        return columns[:-1] if self.hides_time else columns


class Flows:
    """Makes flows of one query, and adds their stretches to their streams."""

    def __init__(self, catalyst: Catalyst, names: Names) -> None:
        self.catalyst = catalyst
        self.names = names

    def on(self, stream: DataStream, attributes: list[Any], names: list[str]) -> Flow:
        leaf = self.catalyst.leaf(attributes)
        return Flow(stream=stream, attributes=attributes, names=names, plan=leaf)

    def projected(self, flow: Flow, columns: list[Any]) -> Flow:
        """Returns the flow with these columns, and the time of its watermark."""
        hides = flow.watermark is not None
        every = [*columns, flow.watermark.time] if flow.watermark is not None else columns
        return replace(flow, plan=self.catalyst.project(every, flow.plan), hides_time=hides)

    def cut(self, flow: Flow, names: Sequence[str] | None = None) -> Flow:
        """Adds the stretch of `flow` to the stream, and its watermark. Its columns get `names`."""
        if names is None:
            if kind(flow.plan) == "LocalRelation":
                return flow
            names = [self.names.column(each) for each in flow.output]
        elif list(names) == flow.names and kind(flow.plan) == "LocalRelation":
            return flow
        return self.cut_as(flow, names)

    def cut_as(self, flow: Flow, names: Sequence[str]) -> Flow:
        attributes = flow.output
        columns = [
            self.catalyst.renamed(attribute, name)
            for attribute, name in zip(attributes, names, strict=True)
        ]
        watermark, time = flow.watermark, ""
        if watermark is not None:
            known = (same(each, watermark.time) for each in attributes)
            time = next((name for name, is_time in zip(names, known, strict=True) if is_time), "")
            if not time:
                columns.append(self.catalyst.named(watermark.time, TIME_OF_WATERMARK))
        whole = self.catalyst.project(columns, flow.plan)
        stretch = self.catalyst.stretch(whole, flow.statics)
        stream = flow.stream.transform(stretch, name=_title(flow.plan))
        if watermark is not None:
            stream = with_watermark(stream, watermark, time or TIME_OF_WATERMARK, drops=not time)
        return self.on(stream, attributes, list(names))

    def computed(self, stream: DataStream, plan: Any, names: Sequence[str]) -> DataStream:
        """Returns the stream whose columns a plan computes, one bundle at a time."""
        attributes = output(plan)
        columns = [
            self.catalyst.renamed(attribute, name)
            for attribute, name in zip(attributes, names, strict=True)
        ]
        stretch = self.catalyst.stretch(self.catalyst.project(columns, plan))
        return stream.transform(stretch, name=_title(plan), per_bundle=True)

    def assigned(self, flow: Flow) -> Flow:
        """Returns the flow with its watermark assigned."""
        return flow if flow.watermark is None else self.cut(flow)

    def timed(self, plan: Any, child: Any, flow: Flow) -> DataStream:
        """Returns the stream of an input. Without a watermark it never holds back those of the
        other inputs. Each consumer gets the watermarks of all subtasks: that of a subtask alone,
        which may have no rows, is not that of the input.
        """
        if not has_node(plan, "EventTimeWatermark"):
            return flow.stream
        if has_node(child, "EventTimeWatermark"):
            return flow.stream.rebalance()
        return flow.stream.operator("No watermark", EventTimeWatermarkSpec()).rebalance()


def with_watermark(
    stream: DataStream, watermark: Watermark, column: str, *, drops: bool = False
) -> DataStream:
    spec = replace(watermark.spec, column=column, drops_column=drops)
    return stream.operator(watermark.title, spec, uid=watermark.uid)


def _title(plan: Any) -> str:
    names = []
    while children(plan):
        names.append(kind(plan))
        plan = children(plan)[0]
    return ", ".join(reversed(names)) or "Rename"
