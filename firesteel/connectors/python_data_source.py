"""Common parts of PythonSource and PythonSink: a class of PySpark's Python DataSource."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource


def check_data_source(connector: str, data_source: object) -> None:
    from pyspark.sql.datasource import DataSource  # takes long; programs with files do without it

    if not (isinstance(data_source, type) and issubclass(data_source, DataSource)):
        raise InvalidProgram(
            f"{connector} takes a subclass of pyspark.sql.datasource.DataSource, "
            f"not {data_source!r}; pass the class itself"
        )


def overrides(data_source: type[DataSource], method: str) -> bool:
    from pyspark.sql.datasource import DataSource

    return getattr(data_source, method) is not getattr(DataSource, method)
