"""Static tables: bounded data, such as prices or names, for joins inside transforms.

The program describes how to read a table. Each slot of the job reads it once, or once per refresh
interval, and the slot's transforms join its rows.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import cloudpickle

from firesteel.common.units import MIB, parse_size_bytes, shortest_size
from firesteel.durations import Duration, positive_us
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.plan.source_lines import place_of_call
from firesteel.text import text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LARGEST_BYTES = 1024 * MIB  # broadcasting a larger table takes longer than an exchange

Provider = Callable[["StaticTable"], "DataFrame"]
"""Returns the rows of a table where a function of the program runs."""

_of_process: Provider | None = None
_of_thread = threading.local()


class StaticTable:
    """A table whose rows each slot holds; created by `Environment.static`. Use its `dataframe()` in
    functions that run on the slot's Spark, such as those of `transform`.
    """

    def __init__(
        self,
        read: Callable[[SparkSession], DataFrame],
        *,
        name: str | None,
        refresh: Duration | None,
        max_size: str | int,
        allow_empty: bool,
    ) -> None:
        _check_function(read)
        self.read = read
        self.name = name or _name_of(read)
        self.place = str(place_of_call())
        self.refresh_s = None if refresh is None else positive_us(refresh, "refresh") / 1_000_000
        self.max_bytes = _size(max_size)
        self.allow_empty = allow_empty
        try:
            # Equal in all slots, and for all jobs with the same table.
            self.id = hashlib.sha256(cloudpickle.dumps(self)).hexdigest()
        except Exception as error:
            raise InvalidProgram(
                f"{self} cannot be shipped: {text_of(error)}; its function refers to an object"
                " that cannot be pickled (a SparkSession, a connection, a lock):"
                " create it inside the function"
            ) from error

    def __str__(self) -> str:
        place = f" ({self.place})" if self.place else ""
        return f"static table{self.name and f' {self.name!r}'}{place}"

    def dataframe(self) -> DataFrame:
        """Returns the rows, for a join: `df.join(table.dataframe(), "key", "left")`.

        All rows of a bundle see the rows of one read. Raises FiresteelError outside of functions
        that run on the slot's Spark.
        """
        provider: Provider | None = getattr(_of_thread, "provider", None) or _of_process
        if provider is None:
            raise FiresteelError(
                f"{self} has no rows here: the slots of the job hold them; call dataframe() inside"
                " a function that takes a DataFrame, such as that of transform(), not in the"
                " program itself and not in a user-defined function"
            )
        return provider(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = "" if name.startswith("__") else "; its rows are a DataFrame: table.dataframe()"
            raise AttributeError(f"StaticTable has no {name}{hint}", name=name)


def provide(provider: Provider | None) -> None:
    """Sets the provider of rows in this process; None: there is none."""
    global _of_process
    _of_process = provider


@contextmanager
def provided_in_thread(provider: Provider) -> Iterator[None]:
    """Sets the provider of rows for this thread inside the `with` block."""
    before = getattr(_of_thread, "provider", None)
    _of_thread.provider = provider
    try:
        yield
    finally:
        _of_thread.provider = before


def _check_function(read: Any) -> None:
    example = "a function that reads the table, such as lambda spark: spark.read.parquet(path)"
    if not callable(read):
        raise InvalidProgram(f"static() takes {example}, not {type(read).__name__}")
    try:
        inspect.signature(read).bind(None)
    except TypeError:
        raise InvalidProgram(
            f"static({_name_of(read) or 'lambda'}): the function is called with the slot's"
            f" SparkSession and nothing else; pass {example}"
        ) from None
    except ValueError:
        pass  # a built-in function has no signature


def _name_of(read: Any) -> str:
    name = str(getattr(read, "__name__", type(read).__name__))
    return "" if name == "<lambda>" else name


def _size(size: str | int) -> int:
    try:
        size_bytes = size if isinstance(size, int) else parse_size_bytes(size)
    except (ValueError, TypeError, AttributeError):
        size_bytes = 0
    if not 0 < size_bytes <= LARGEST_BYTES:
        raise InvalidProgram(
            f"max_size is {size!r}; specify a size such as '32 mb', at most"
            f" {shortest_size(LARGEST_BYTES)}: read a larger table as a stream, and join the two"
            ' with join(other, on="key")'
        )
    return size_bytes
