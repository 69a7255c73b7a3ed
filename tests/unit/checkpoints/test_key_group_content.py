"""Rows of keyed state as Arrow streams: the bytes are those of pyarrow's writer."""

from __future__ import annotations

import pyarrow as pa
import pytest

from firesteel.common.checkpoints.key_group_content import (
    RowsSlice,
    StreamEncoder,
    decode_key_group,
    encode_key_group,
)

STRUCT = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.string()))])
MAP = pa.map_(pa.string(), pa.int32())
COLUMNS = {
    "numbers": pa.array([1, None, 3]),
    "texts": pa.array(["a", "", None]),
    "structs": pa.array([{"x": 1.5, "y": ["p", None]}, None, {"x": None, "y": []}], STRUCT),
    "maps": pa.array([[("k", 1)], [], None], MAP),
    "nothing": pa.nulls(3),
    "dictionaries": pa.array(["a", "b", "a"]).dictionary_encode(),
    "nested dictionaries": pa.StructArray.from_arrays(
        [pa.array(["a", None, "a"]).dictionary_encode()], ["d"]
    ),
    "uuids": pa.array([b"0123456789abcdef"] * 3, pa.uuid()),
}
TABLE = pa.table(COLUMNS).replace_schema_metadata({b"firesteel.state": b"{}"})


def written(rows: pa.Table | pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize("names", [*([name] for name in COLUMNS), list(COLUMNS)], ids=str)
def test_a_stream_is_what_pyarrow_writes(names: list[str]) -> None:
    table = TABLE.select(names)
    (batch,) = table.to_batches()
    encoder = StreamEncoder(table.schema)
    for rows in (table, batch, pa.concat_tables([table, table])):
        assert encoder.encode(rows) == written(rows)
    for offset in range(4):
        assert encoder.encode(batch.slice(offset, 1)) == written(batch.slice(offset, 1))
        assert encoder.encode(table.slice(offset, 1)) == written(table.slice(offset, 1))


def test_rows_of_a_key_group_are_read_as_they_were() -> None:
    content = encode_key_group([], [("totals", StreamEncoder(TABLE.schema).encode(TABLE))])
    (found,) = decode_key_group(content)
    assert isinstance(found, RowsSlice)
    assert found.name == "totals"
    assert found.table.equals(TABLE, check_metadata=True)
