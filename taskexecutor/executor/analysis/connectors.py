"""Sources and sinks: their schemas, and whether they can be opened."""

from __future__ import annotations

import pyarrow as pa

from firesteel.connectors import MALFORMED_TAG, FileSource, PythonSource, SequenceSource
from firesteel.connectors.python_source import PartitionPlan
from firesteel.errors import FiresteelError
from firesteel.plan.specs import SinkSpec, SourceSpec
from taskexecutor.executor.analysis.checks import check_time_column
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput, Frame
from taskexecutor.executor.connectors.checks import check_sink
from taskexecutor.executor.connectors.python_data_source import PARTITION_SCHEMA, check_source
from taskexecutor.executor.spark.files import MALFORMED_SCHEMA, source_schema
from taskexecutor.executor.spark.plans import empty_frame
from taskexecutor.executor.spark.schemas import to_arrow


def analyze_source(step: AnalysisStep, spec: SourceSpec) -> AnalyzedOutput:
    match spec.source:
        case FileSource():
            return _analyze_files(step, spec, spec.source)
        case SequenceSource():
            return AnalyzedOutput(schema=pa.schema([(spec.source.column, pa.int64())]))
        case PartitionPlan():
            return AnalyzedOutput(schema=PARTITION_SCHEMA)
        case PythonSource():
            return AnalyzedOutput(schema=check_source(spec.source))
        case _:
            raise FiresteelError(
                f"{step.operator_name}: {type(spec.source).__name__} is not a source"
            )


def _analyze_files(step: AnalysisStep, spec: SourceSpec, source: FileSource) -> AnalyzedOutput:
    spark_schema = source_schema(step.session, source)
    schema = to_arrow(spark_schema)
    if spec.watermarks is not None:
        check_time_column(f"watermarks of {step.operator_name!r}", spec.watermarks.column, schema)
    return AnalyzedOutput(
        schema=schema,
        frame=Frame(
            empty_frame(step.session, spark_schema),
            leaf=f"Read {source.format} {', '.join(source.paths)}",
        ),
        sides={MALFORMED_TAG: MALFORMED_SCHEMA} if source.malformed == "side_output" else {},
    )


def analyze_sink(step: AnalysisStep, spec: SinkSpec) -> AnalyzedOutput:
    return AnalyzedOutput(schema=check_sink(spec.sink, step.input_schema))
