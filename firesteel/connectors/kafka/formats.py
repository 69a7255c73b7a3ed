"""Formats of the records in Kafka's topics: how bytes become rows, and rows become bytes."""

from __future__ import annotations

from dataclasses import dataclass


class Format:
    """Base of all formats. A format is a description: it holds options and opens nothing."""

    @property
    def display_name(self) -> str:
        """The name in errors."""
        return type(self).__name__


@dataclass(frozen=True, slots=True)
class Raw(Format):
    """Leaves keys and values as they are.

    A source then has Spark's columns: key, value (binary), topic, partition, offset, timestamp,
    timestampType and, if requested, headers. A sink writes a binary or string column.
    """
