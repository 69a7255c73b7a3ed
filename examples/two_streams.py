"""Daily stock movements, from streams of different shapes: `connect` brings two together, `union`
adds a third.

    firesteel run examples/two_streams.py [--data DIR]

Deliveries and returns have different columns, so they are connected: one operator with two inputs
has a Python function on Arrow batches for each. Corrections are brought to the same columns by
Spark, so they are simply united with the others. The sum per article and day comes back to this
program, and is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from firesteel import Environment, Tumbling, Watermarks
from firesteel.connectors import FileSource

MOVEMENTS = pa.schema(
    [("time", pa.timestamp("us", tz="UTC")), ("article", pa.string()), ("change", pa.int64())]
)

FILES = {
    "deliveries.csv": """\
time,article,quantity
2024-03-01 08:00:00,steel,40
2024-03-01 09:30:00,flint,100
2024-03-02 08:10:00,steel,60
2024-03-03 10:00:00,tinder,500
""",
    "returns.csv": """\
returned_at,article,items,reason
2024-03-01 17:00:00,flint,3,wet
2024-03-02 16:20:00,steel,5,too soft
2024-03-02 16:40:00,flint,2,wet
""",
    "corrections.csv": """\
time,article,expected,counted
2024-03-02 20:00:00,steel,95,93
2024-03-03 20:00:00,tinder,500,510
""",
}


def delivered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays(
            [batch["time"], batch["article"], batch["quantity"]], schema=MOVEMENTS
        )


def returned(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        change = pc.negate(batch["items"])
        yield pa.RecordBatch.from_arrays(
            [batch["returned_at"], batch["article"], change], schema=MOVEMENTS
        )


def stock_movements(env: Environment, folder: Path) -> pa.Table:
    def read(name: str, schema: str, time: str):
        source = FileSource(str(folder / name), format="csv", header=True, schema=schema)
        return env.from_source(source, watermarks=Watermarks.bounded(time), name=name)

    deliveries = read("deliveries.csv", "time TIMESTAMP, article STRING, quantity BIGINT", "time")
    returns = read(
        "returns.csv",
        "returned_at TIMESTAMP, article STRING, items BIGINT, reason STRING",
        "returned_at",
    )
    corrections = read(
        "corrections.csv", "time TIMESTAMP, article STRING, expected BIGINT, counted BIGINT", "time"
    )

    moved = deliveries.connect(returns).map_in_arrow(
        delivered, returned, MOVEMENTS, name="Movements"
    )
    corrected = corrections.transform(
        lambda df: df.selectExpr("time", "article", "counted - expected AS change")
    )
    return (
        moved.union(corrected)
        .key_by("article")
        .window(Tumbling("1 day", on="time"))
        .aggregate("sum(change) AS change", "count(*) AS movements")
        .execute_and_collect("daily stock movements")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Daily stock movements from three small streams.")
    parser.add_argument(
        "--data", type=Path, default=Path("out/stock"), help="where the three CSV files are written"
    )
    folder = parser.parse_args().data
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)

    rows = (
        stock_movements(Environment(), folder).to_pandas().sort_values(["window_start", "article"])
    )
    print(rows[["window_start", "article", "change", "movements"]].to_string(index=False))


if __name__ == "__main__":
    main()
