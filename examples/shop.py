"""The sales of a shop, which the pages of the documentation use as their input.

`read_sales(env)` writes `sales.csv` to the current directory and returns it as a stream. Copy this
file to the directory of a program that starts with `from shop import read_sales`.

    firesteel run examples/shop.py
"""

from __future__ import annotations

from pathlib import Path

from firesteel import DataStream, Environment, Watermarks
from firesteel.connectors import FileSource

SCHEMA = "time TIMESTAMP, shop STRING, article STRING, pieces INT, price DOUBLE"
ROWS = """\
time,shop,article,pieces,price
2024-03-01 09:00:00,north,steel,2,7.5
2024-03-01 09:10:00,south,flint,5,1.0
2024-03-01 10:05:00,north,flint,1,1.0
2024-03-01 11:30:00,south,steel,4,7.5
"""


def read_sales(env: Environment) -> DataStream:
    path = Path("sales.csv").resolve()
    path.write_text(ROWS)
    source = FileSource(str(path), format="csv", header=True, schema=SCHEMA)
    watermarks = Watermarks.bounded("time", max_out_of_orderness="5 min")
    return env.from_source(source, watermarks=watermarks, uid="sales")


if __name__ == "__main__":
    env = Environment()
    print(read_sales(env).execute_and_collect("sales").to_pandas().to_string(index=False))
