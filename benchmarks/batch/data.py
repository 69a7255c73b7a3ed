"""Tables like those of TPC-H: the columns and value ranges that the queries here use, drawn from a
seed. A scale of 1 has 1,500,000 orders with about four lines each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

CUSTOMERS, ORDERS = 150_000, 1_500_000  # at a scale of 1
LINES = 7  # maximum of an order
FILE_ORDERS = 500_000
_SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
_PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
_WORDS = (
    "accounts", "asymptotes", "braids", "deposits", "dependencies", "dolphins", "epitaphs",
    "excuses", "foxes", "frets", "ideas", "instructions", "packages", "patterns", "pinto",
    "platelets", "requests", "sauternes", "sentiments", "sheaves", "special", "theodolites",
    "warhorses", "about", "above", "according", "across", "after", "against", "along",
    "alongside", "among", "around", "at", "bold", "busy", "careful", "close", "daring",
    "even", "express", "final", "fluffy", "furious", "ironic", "pending", "quick", "quiet",
    "regular", "ruthless", "silent", "sly", "thin", "unusual",
)  # fmt: skip
_FIRST_DAY, _DAYS = np.datetime64("1992-01-01"), 2_406  # of orders
_NOW = np.datetime64("1995-06-17")  # lines shipped by then may be returned

Ints = npt.NDArray[np.int64]


def write(folder: Path, scale: float, seed: int = 1, file_orders: int = FILE_ORDERS) -> int:
    """Writes `folder`/customer, /orders and /lineitem. Returns the size in bytes. `file_orders` is
    the number of orders, with their lines, in a file.
    """
    chance = np.random.default_rng(seed)
    customers = int(CUSTOMERS * scale)
    _write(folder, "customer", 0, _customers(chance, customers))
    for number, start in enumerate(range(0, int(ORDERS * scale), file_orders)):
        count = min(file_orders, int(ORDERS * scale) - start)
        orders, lines = _orders(chance, start, count, customers)
        _write(folder, "orders", number, orders)
        _write(folder, "lineitem", number, lines)
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


def rows(folder: Path, table: str) -> int:
    return sum(pq.read_metadata(path).num_rows for path in _files(folder, table))


def _files(folder: Path, table: str) -> Iterator[Path]:
    return (folder / table).glob("*.parquet")


def _write(folder: Path, table: str, number: int, content: pa.Table) -> None:
    (folder / table).mkdir(parents=True, exist_ok=True)
    pq.write_table(
        content,
        folder / table / f"{number:03}.parquet",
        row_group_size=250_000,
        store_decimal_as_integer=True,
    )


def _customers(chance: np.random.Generator, count: int) -> pa.Table:
    keys = np.arange(1, count + 1)
    return pa.table(
        {
            "c_custkey": keys,
            "c_name": pc.binary_join_element_wise(
                "Customer#", pc.utf8_lpad(pa.array(keys).cast(pa.string()), 9, "0"), ""
            ),
            "c_mktsegment": _one_of(chance, _SEGMENTS, count),
        }
    )


def _orders(
    chance: np.random.Generator, start: int, count: int, customers: int
) -> tuple[pa.Table, pa.Table]:
    """Returns eight orders in every 32 keys, for two in three customers."""
    number = np.arange(start, start + count)
    keys = number // 8 * 32 + number % 8 + 1
    customer = chance.integers(1, customers + 1, count)
    customer -= (customer % 3 == 0) & (customer > 1)
    days = chance.integers(0, _DAYS, count)
    line_counts = chance.integers(1, LINES + 1, count)
    lines, prices = _lines(chance, keys, days, line_counts)
    starts = np.cumsum(line_counts) - line_counts
    orders = {
        "o_orderkey": keys,
        "o_custkey": customer,
        "o_totalprice": _money(np.add.reduceat(prices, starts)),
        "o_orderdate": _date(days),
        "o_orderpriority": _one_of(chance, _PRIORITIES, count),
        "o_shippriority": pa.array(np.zeros(count, np.int32)),
        "o_comment": _text(chance, count, 7),
    }
    return pa.table(orders), lines


def _lines(
    chance: np.random.Generator, keys: Ints, days: Ints, counts: Ints
) -> tuple[pa.Table, Ints]:
    """Returns line items and their prices, in cents."""
    total = int(counts.sum())
    quantity = chance.integers(1, 51, total)
    price = quantity * chance.integers(90_000, 200_000, total)
    ordered = np.repeat(days, counts)
    shipped = ordered + chance.integers(1, 122, total)
    received = shipped + chance.integers(1, 31, total)
    now = int((_NOW - _FIRST_DAY).astype(int))
    returned = np.where(received <= now, chance.integers(0, 2, total), 2)
    first = np.cumsum(counts) - counts
    lines = {
        "l_orderkey": np.repeat(keys, counts),
        "l_linenumber": pa.array((np.arange(total) - np.repeat(first, counts) + 1).astype("i4")),
        "l_quantity": _money(quantity * 100),
        "l_extendedprice": _money(price),
        "l_discount": _money(chance.integers(0, 11, total)),
        "l_tax": _money(chance.integers(0, 9, total)),
        "l_returnflag": pa.array(["R", "A", "N"]).take(pa.array(returned)),
        "l_linestatus": pa.array(["F", "O"]).take(pa.array((shipped > now).astype(int))),
        "l_shipdate": _date(shipped),
        "l_commitdate": _date(ordered + chance.integers(30, 91, total)),
        "l_receiptdate": _date(received),
        "l_comment": _text(chance, total, 4),
    }
    return pa.table(lines), price


def _one_of(chance: np.random.Generator, values: tuple[str, ...], count: int) -> pa.Array:
    return pa.array(values).take(pa.array(chance.integers(0, len(values), count)))


def _text(chance: np.random.Generator, count: int, words: int) -> pa.Array:
    parts = [_one_of(chance, _WORDS, count) for _ in range(words)]
    return pc.binary_join_element_wise(*parts, " ")


def _money(cents: Ints) -> pa.Array:
    """Returns DECIMAL(12, 2) values, which are stored as these 128-bit numbers."""
    both = np.zeros((len(cents), 2), np.int64)
    both[:, 0] = cents
    kind = pa.decimal128(12, 2)
    return pa.Array.from_buffers(kind, len(cents), [None, pa.py_buffer(both)])


def _date(days: Ints) -> pa.Array:
    return pa.array((_FIRST_DAY + days.astype("timedelta64[D]")).astype("datetime64[D]"))
