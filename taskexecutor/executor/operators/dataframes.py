"""Functions of the program over DataFrames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from firesteel.column_names import meant
from firesteel.common.error_report import summary_of
from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator
from firesteel.operators import ApplySpec, TransformSpec
from firesteel.plan.frame_methods import FrameMethod
from taskexecutor.executor.analysis.actions import refuse_action
from taskexecutor.executor.analysis.by_key import ByKey, KeyedFrame
from taskexecutor.executor.analysis.checks import (
    KeyedInput,
    check_keys,
    check_same_key_types,
)
from taskexecutor.executor.analysis.dropped_changes import dropped_by_plan
from taskexecutor.executor.analysis.random_numbers import Seed, check_seeds, is_repeatable
from taskexecutor.executor.analysis.row_by_row import AnyRows, RowByRow, check_row_by_row
from taskexecutor.executor.analysis.row_kinds import check_transform
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput, Frame
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.schemas import (
    missing_column,
    to_arrow,
    to_spark,
)
from taskexecutor.executor.columnar.stages.transform_stage import SparkTransformStage
from taskexecutor.executor.columnar.stages.whole_rows import ApplyToAll
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.operators.registry import OperatorKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def analyze_transform(step: AnalysisStep, spec: TransformSpec) -> AnalyzedOutput:
    from pyspark.errors import PySparkException

    frame = step.frame()
    before = frame.frame
    if spec.per_bundle:  # it may read its rows
        frame = frame.with_plan(composed.empty_frame(step.session, frame.frame.schema))
    method = spec.function if isinstance(spec.function, FrameMethod) else None
    try:
        result = composed.transform(frame.frame, spec)
    except Exception as error:
        refuse_action(step.operator_name, error)
        if method is None or not isinstance(error, PySparkException):
            raise
        hint = method.hint
        if error.getCondition() == "MISSING_GROUP_BY":
            hint = "; for aggregates, use key_by(...).window(...).aggregate(...)"
        raise FiresteelError(f"{step.operator_name}: {summary_of(error)}{hint}") from error
    if method is not None:
        _check_method(step.operator_name, method, frame.frame, result)
    check_transform(step, frame.frame, result)
    dropped = None
    if step.inputs[0].retracting:
        dropped = dropped_by_plan(step.operator_name, result)
    if spec.per_bundle:
        following = frame.with_plan(composed.unread_frame(step.session, result.schema))
        output = AnalyzedOutput.on_spark(following)
        output.plan = composed.analyzed_plan(result, frame.leaf)
        output.repeatable = all(map(is_repeatable, (before, result)))
    else:
        check_row_by_row(
            step.operator_name, frame, result, lambda: composed.transform(frame.frame, spec)
        )
        output = AnalyzedOutput.on_spark(frame.with_plan(result))
        output.repeatable = None
    output.dropped = dropped
    return output


def analyze_apply(step: AnalysisStep, spec: ApplySpec) -> AnalyzedOutput:
    given = []
    for number, (keys, producer) in enumerate(zip(spec.key_columns, step.inputs, strict=True)):
        if producer.schema is None:
            raise FiresteelError(
                f"{step.operator_name}: the schema of its input {number} is unknown;"
                " declare it on the upstream operator"
            )
        frame = composed.unread_frame(step.session, to_spark(producer.schema))
        given.append(KeyedFrame(Frame(frame, f"Input {number}"), keys))
        check_keys(producer.schema, keys)
    if len(given) == 2:
        check_same_key_types(
            step.operator_name,
            KeyedInput("the first stream", step.inputs[0].schema, spec.key_columns[0]),
            KeyedInput("the second", step.inputs[1].schema, spec.key_columns[1]),
        )
    try:
        result = composed.applied(spec, [each.frame.frame for each in given])
    except Exception as error:
        refuse_action(step.operator_name, error)
        raise
    if spec.key_columns[0]:
        check_seeds(
            step.operator_name,
            _checked(step, spec, given, result),
            lambda: _checked(
                step, spec, given, composed.applied(spec, [each.frame.frame for each in given])
            ),
            instead=", or apply it to a stream without keys, whose rows are all in one subtask",
        )
    return AnalyzedOutput(
        schema=to_arrow(result.schema),
        plan=composed.analyzed_plan(result, "Input"),
        repeatable=is_repeatable(result),
    )


def _checked(
    step: AnalysisStep, spec: ApplySpec, given: Sequence[KeyedFrame], result: DataFrame
) -> set[Seed]:
    """Raises FiresteelError if the function relates rows that it must not. Returns the seeds that
    rows pass in it.
    """
    checks: RowByRow
    if spec.across_keys:
        checks = AnyRows(step.operator_name, *(each.frame for each in given))
    else:
        checks = ByKey(step.operator_name, *given)
    checks.check(result)
    return checks.seeds


def _check_method(
    operator_name: str, method: FrameMethod, given: DataFrame, result: DataFrame
) -> None:
    """Checks what PySpark allows: columns that do not exist, or exist twice."""
    for name in method.required:
        if meant(name, given.columns) is None:
            raise missing_column(operator_name, name, given.columns)
    for name in method.added:
        if (found := meant(name, given.columns)) is not None:
            raise FiresteelError(
                f"{operator_name}: the stream already has a column {found!r};"
                " choose another name, or drop that column before"
            )
    if not result.columns:
        raise FiresteelError(f"{operator_name}: no column is left; keep at least one")
    before = _counts(given)
    for name, count in _counts(result).items():
        if count > max(before[name], 1):
            raise FiresteelError(
                f"{operator_name}: its result has {count} columns named {name!r};"
                ' give them different names, as F.upper("x").alias("name") does'
            )


def _counts(frame: DataFrame) -> Counter[str]:
    sensitive = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    return Counter(name if sensitive else name.lower() for name in frame.columns)


def create_transform(group: Sequence[OpenedOperator]) -> StreamOperator:
    return SparkTransformStage([opened.spec for opened in group], group[-1].output_schema)


def _create_apply(group: Sequence[OpenedOperator]) -> StreamOperator:
    first, *others = group
    following = None
    if others:
        specs = [opened.spec for opened in others]
        following = SparkTransformStage(specs, others[-1].output_schema, first.output_schema)
    assert isinstance(first.spec, ApplySpec)
    return ApplyToAll(first.spec, first.output_schema, following)


KINDS = (
    OperatorKind(TransformSpec, analyze_transform, create_transform),
    OperatorKind(ApplySpec, analyze_apply, _create_apply),
)
