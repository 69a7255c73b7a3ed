"""What can be wrong with a sink and can be found before data flows."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from firesteel.connectors import FileSink, ForeachBatchSink, PostgresSink, PythonSink
from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.file_sink import FORMATS, csv_field


def check_sink(sink: Any, schema: pa.Schema | None) -> pa.Schema | None:
    """Given its input's schema, returns its output's, if it has an output. Raises FiresteelError,
    or what user code raises.
    """
    match sink:
        case FileSink():
            _check_files(sink, schema)
        case ForeachBatchSink():
            _check_spark_has(schema)
        case PythonSink():
            from taskexecutor.executor.connectors import python_data_source

            return python_data_source.check_sink(sink, schema)
        case PostgresSink():
            from taskexecutor.executor.connectors import postgres

            postgres.check_sink(sink, schema)
        case _:
            pass
    return None


def _check_spark_has(schema: pa.Schema | None) -> None:
    from taskexecutor.executor.spark.schemas import to_spark

    if schema is None:
        raise FiresteelError(
            "foreach_batch: the schema of its input is not known; declare one on the operator before it"
        )
    to_spark(schema)


def _check_files(sink: FileSink, schema: pa.Schema | None) -> None:
    if sink.format not in FORMATS:
        raise FiresteelError(
            f"FileSink cannot write format {sink.format!r}; allowed: {', '.join(FORMATS)}"
        )
    _check_options(sink)
    if sink.format == "csv":
        for field in schema or ():
            csv_field(field)
    path = Path(sink.path)
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir():
        raise FiresteelError(f"FileSink: cannot write below {path}: {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise FiresteelError(
            f"FileSink: cannot write below {path}: no permission to write in {existing}"
        )


_ONE_CHARACTER = "."
_CODECS = "none|snappy|gzip|brotli|zstd|lz4"
_OPTIONS: dict[str, dict[str, str]] = {  # of a FileSink's formats; patterns of what each may be
    "csv": {"header": "true|false", "sep": _ONE_CHARACTER, "delimiter": _ONE_CHARACTER},
    "json": {},
    "parquet": {"compression": _CODECS},
}


def _check_options(sink: FileSink) -> None:
    allowed = _OPTIONS[sink.format]
    for name, value in sink.options.items():
        if name not in allowed:
            known = f"it has: {', '.join(allowed)}" if allowed else "it has none"
            raise FiresteelError(f"FileSink: format {sink.format} has no option {name!r}; {known}")
        if not re.fullmatch(allowed[name], value, re.IGNORECASE):
            values = (
                "one character"
                if allowed[name] == _ONE_CHARACTER
                else allowed[name].replace("|", ", ")
            )
            raise FiresteelError(f"FileSink: option {name} is {value!r}; allowed: {values}")
