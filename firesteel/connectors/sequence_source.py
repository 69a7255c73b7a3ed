"""SequenceSource: numbers, generated in Python or inside Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from firesteel.connectors.source import CoordinatorOptions, Source, SparkRead
from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    import pyarrow as pa

SPLIT_ROWS = 1_000_000
# Of what Spark generates, half a second's work: the larger a split, the fewer partial results of
# each key there are.
SPARK_SPLIT_ROWS = 10_000_000
SPLITS_PER_SUBTASK = 4  # at least, or one subtask may be left to work alone at the end
# A split of a rate-limited sequence is what all subtasks together emit in this time.
RATED_SPLIT_S = 0.1


@dataclass(frozen=True, slots=True)
class SequenceSource(Source):
    """The numbers start <= n < end, as an int64 column; without `end`, they go on for ever.

    `rate_per_s`: as many of them per second, by all subtasks together, emitted every 10 ms or so. A
    source that was held up by back-pressure makes up for at most one second of it.

    Without a rate, Spark operators that follow at once, with nothing between, have the numbers
    generated inside Spark. `split_rows`: numbers per split, which one subtask reads at a time;
    None: 1 M, or up to 10 M where Spark generates them.
    """

    runtime: ClassVar[str] = "taskexecutor.executor.connectors.sequences.source:SequenceRuntime"

    start: int
    end: int | None = None
    column: str = "value"
    split_rows: int | None = None
    rate_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.end is not None and self.end < self.start:
            raise InvalidProgram(f"{self}: end must not be before start")
        if self.split_rows is not None and self.split_rows < 1:
            raise InvalidProgram(f"{self}: split_rows must be at least 1")
        if self.rate_per_s is not None and not 0 < self.rate_per_s < float("inf"):
            raise InvalidProgram(f"{self}: rate_per_s must be a positive number")

    @property
    def spark_read(self) -> SparkRead:
        """Whether Spark reads the rows, as part of the plan that follows."""
        return SparkRead.IF_FOLLOWED if self.rate_per_s is None else SparkRead.NEVER

    def output_schema(self) -> pa.Schema:
        import pyarrow as pa  # programs that only name the source do without it

        return pa.schema([(self.column, pa.int64())])

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> CoordinatorOptions:
        rows = self._split_rows(parallelism, read_by_spark)
        return CoordinatorOptions(
            "sequence-source", {"start": self.start, "end": self.end, "split_rows": rows}
        )

    def _split_rows(self, parallelism: int, read_by_spark: bool) -> int:
        if self.rate_per_s is not None:
            # Small enough for all subtasks to have their part of a short sequence.
            most = max(1, int(self.rate_per_s * RATED_SPLIT_S))
            return min(self.split_rows or SPLIT_ROWS, most)
        if self.split_rows is not None:
            return self.split_rows
        if not read_by_spark:
            return SPLIT_ROWS
        if self.end is None:
            return SPARK_SPLIT_ROWS
        even = (self.end - self.start) // (parallelism * SPLITS_PER_SUBTASK)
        return max(SPLIT_ROWS, min(SPARK_SPLIT_ROWS, even))
