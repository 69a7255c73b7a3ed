"""The columns of Kafka records, which are those of Spark's source."""

from __future__ import annotations

import pyarrow as pa

KEY, VALUE, HEADERS = "key", "value", "headers"
HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
RECORDS = pa.schema(
    [
        pa.field(KEY, pa.binary()),
        pa.field(VALUE, pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),  # 0: set by the producer, 1: by the broker
    ]
)
RECORDS_WITH_HEADERS = RECORDS.append(pa.field(HEADERS, pa.list_(HEADER)))
