"""A Spark program that runs in the cluster: its driver, and its executors, each in a slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from firesteel.connectors.source import CoordinatorOptions
from firesteel.operators.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkDriverSpec(Spec):
    """Runs the program, and the Spark Standalone master for its executors."""

    file: str  # the path where the user has it, which tracebacks show
    source: bytes = field(repr=False)
    arguments: tuple[str, ...] = ()
    folder: str = ""  # the user's current folder, where relative paths start
    settings: Mapping[str, str] = field(default_factory=dict)  # spark.*

    uses_pandas = False
    begins_event_time = True

    @property
    def fixed_parallelism(self) -> int | None:
        return 1

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> CoordinatorOptions | None:
        return CoordinatorOptions("spark-driver", {})


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkExecutorsSpec(Spec):
    """Each subtask runs an executor of the program, which a Spark Standalone worker starts."""

    uses_pandas = False
    begins_event_time = True

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> CoordinatorOptions | None:
        return CoordinatorOptions("spark-executors", {})
