"""Plans functions with state: `applyInPandasWithState` and `transformWithState`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.types import DataType, StructField, StructType, _parse_datatype_json_string
from pyspark.util import PythonEvalType

from firesteel.errors import InvalidProgram
from firesteel.plan.catalyst_plan import items
from firesteel.spark_connect.catalyst import Catalyst, children, delay_ms, output
from firesteel.spark_connect.flows import Flow, Flows
from firesteel.spark_connect.group_state import GroupStateProcessor
from firesteel.spark_connect.sources import schema_of

_TIME_MODES = {
    "NoTime": "none",
    "ProcessingTime": "processing_time",
    "EventTime": "event_time",
}
_WITH_STATE_IN_PANDAS = PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_UDF


class StatefulFunctions:
    """Plans the functions with state of one query. `flow_of` plans the nodes below."""

    def __init__(self, flows: Flows, *, flow_of: Callable[[Any], Flow]) -> None:
        self._flows = flows
        self._catalyst = flows.catalyst
        self._names = flows.names
        self._flow_of = flow_of

    def group_state(self, plan: Any) -> Flow:
        processor = GroupStateProcessor(
            _function_of(self._catalyst, plan.functionExpr()),
            schema_of(plan.stateType()),
            plan.timeout().toString(),
        )
        return self._stateful(
            plan, items(plan.groupingAttributes()), processor, processor.time_mode, pandas=True
        )

    def with_state(self, plan: Any) -> Flow:
        if plan.hasInitialState():
            raise InvalidProgram(
                "transformWithState with an initial state is not supported in PySpark programs"
            )
        processor = _function_of(self._catalyst, plan.functionExpr()).__self__._stateful_processor
        mode = plan.timeMode().toString()
        keys = items(plan.child().output())[: plan.groupingAttributesLen()]
        pandas = plan.functionExpr().evalType() == _WITH_STATE_IN_PANDAS
        return self._stateful(plan, keys, processor, _TIME_MODES[mode], pandas=pandas)

    def _stateful(
        self, plan: Any, keys: Sequence[Any], processor: Any, time_mode: str, *, pandas: bool
    ) -> Flow:
        """Adds a function that gets the columns under the names that the program gave them."""
        given = items(plan.functionExpr().children())
        names = [each.name() for each in given]
        by_id = {each.exprId().id(): each.name() for each in given}
        missing = [key.name() for key in keys if key.exprId().id() not in by_id]
        if missing or len(set(names)) < len(names):
            raise InvalidProgram(
                f"groupBy({', '.join(key.name() for key in keys)}): group by columns of the stream,"
                " whose names are unique: add others with withColumn(...) before"
            )
        (child, *_) = children(plan)
        flow = self._flows.assigned(self._flow_of(child))
        flow = self._flows.cut_as(
            replace(flow, plan=self._catalyst.project(given, flow.plan)), names
        )
        keyed = flow.stream.key_by(*(by_id[key.exprId().id()] for key in keys))
        mode = plan.outputMode().toString().lower()
        attributes = items(plan.outputAttrs())
        schema = StructType([StructField(a.name(), _type_of(a)) for a in attributes])
        uid = self._names.uid("function")
        times = (
            by_id.get(each.exprId().id(), "")
            for each in output(child)
            if delay_ms(each) is not None
        )
        stream = keyed._with_state(
            processor,
            schema,
            mode,
            time_mode,
            initial_state=None,
            name=None,
            uid=uid,
            pandas=pandas,
            late_column=next(times, "") if time_mode == "event_time" else "",
        )
        return self._flows.on(stream, attributes, [each.name() for each in attributes])


def _function_of(catalyst: Catalyst, expression: Any) -> Any:
    """Returns the program's function of a PythonUDF."""
    pickled = expression.func().command().toArray(catalyst.jvm.scala.reflect.ClassTag.Byte())
    function, _ = cloudpickle.loads(bytes(pickled))
    return function


def _type_of(attribute: Any) -> DataType:
    return _parse_datatype_json_string(attribute.dataType().json())
