"""Names of columns, in upper and lower case."""

from __future__ import annotations

import pyarrow as pa
import pytest

from firesteel.column_names import column_index, meant
from firesteel.errors import FiresteelError


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
