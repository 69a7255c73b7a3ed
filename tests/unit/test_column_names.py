"""Names of columns, in upper and lower case."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, StructType

from firesteel import Environment
from firesteel.column_names import column_index, meant
from firesteel.errors import FiresteelError, InvalidProgram
from taskexecutor.executor.columnar.schemas import to_arrow


@pytest.mark.parametrize(
    ("name", "columns", "found"),
    [
        ("ORDER", ["a", "order"], "order"),
        ("order", ["ORDER", "order"], "order"),
        ("orders", ["order"], None),
        ("Straße", ["STRASSE"], None),
    ],
)
def test_upper_and_lower_case_are_alike(name: str, columns: list[str], found: str | None) -> None:
    assert meant(name, columns) == found
    schema = pa.schema([(column, pa.int64()) for column in columns])
    assert column_index(schema, name) == (-1 if found is None else columns.index(found))


def test_a_name_that_means_two_columns_is_refused() -> None:
    with pytest.raises(
        FiresteelError, match="'Order' may be 'ORDER' or 'order'; write it exactly as it"
    ):
        meant("Order", ["ORDER", "order"])


BAD = "caf\udce9"  # "café" in Latin-1, as os.fsdecode reads it
BAD_NAME = r"the column name 'caf\\udce9' is not valid UTF-8; rename the column"
BAD_FIELD = r"the column 'a' has a field whose name is not valid UTF-8: .*caf\\udce9"
NESTED = StructType().add("a", ArrayType(StructType().add(BAD, LongType())))


@pytest.mark.parametrize(
    "read",
    [
        lambda env: env.from_collection([(1,)], [BAD]),
        lambda env: env.from_collection([{BAD: 1}]),
        lambda env: env.from_collection([(1,)], f"`{BAD}` LONG"),
        lambda env: env.from_pandas(pd.DataFrame({BAD: [1]})),
        lambda env: env.from_sequence(0, 3, column=BAD),
    ],
)
def test_a_program_cannot_name_a_column_in_invalid_text(read: Any) -> None:
    with pytest.raises(InvalidProgram, match=BAD_NAME):
        read(Environment())


def test_a_schema_cannot_name_a_column_or_a_field_in_invalid_text() -> None:
    with pytest.raises(InvalidProgram, match=BAD_NAME):
        to_arrow(StructType().add(BAD, LongType()))
    with pytest.raises(InvalidProgram, match=BAD_FIELD):
        to_arrow(NESTED)
    with pytest.raises(InvalidProgram, match=BAD_FIELD):
        Environment().from_collection([([],)], NESTED)
