"""One case: a program on random tables, with its mode, parallelism and time zone."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from firesteel import DataStream, Environment
from firesteel.errors import FiresteelError, InvalidProgram

from . import queries, tables
from .compare import differences, settled

ZONES = ["UTC", "Asia/Tokyo", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]
# Slots cannot import this package: jobs bring its functions along.
cloudpickle.register_pickle_by_value(queries)


@dataclass(frozen=True, kw_only=True)
class Case:
    seed: int
    mode: str
    parallelism: int
    zone: str
    left: tables.Table
    right: tables.Table | None
    steps: list[queries.Step]
    join: queries.JoinStep | None

    def __str__(self) -> str:
        head = f"seed {self.seed}: {self.mode}, parallelism {self.parallelism}, {self.zone}; {self.left}"
        other = f"; other: {self.right}" if self.right else ""
        body = "".join(
            f"\n  {step.text}" for step in [*self.steps, *([self.join] if self.join else [])]
        )
        return head + other + body

    def check(
        self, spark: SparkSession, folder: Path, collect: Callable[[DataStream], pa.Table]
    ) -> str:
        """Runs the case on both engines. Returns "" if the results are equal, else what
        happened: "refused: ...", "both fail: ..." or the differences."""
        self.left.write(folder / "left")
        if self.right:
            self.right.write(folder / "right")
        ours, our_error = self.firesteel(folder, collect)
        theirs, their_error = self.spark(spark, folder)
        if isinstance(our_error, InvalidProgram) and not their_error:
            return f"refused: {our_error}"
        if our_error and their_error:
            return f"both fail: {our_error}\n  Spark: {their_error}"
        if our_error or their_error:
            return (
                f"only Firesteel fails: {our_error}"
                if our_error
                else f"only Spark fails: {their_error}"
            )
        assert ours is not None and theirs is not None
        return differences(ours, theirs)

    def firesteel(
        self, folder: Path, collect: Callable[[DataStream], pa.Table]
    ) -> tuple[pa.Table | None, FiresteelError | None]:
        env = Environment(
            mode=self.mode,  # type: ignore[arg-type]
            parallelism=self.parallelism,
            configuration={"spark.sql.session.timeZone": self.zone},
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                stream = self.left.stream(env, folder / "left")
                for step in self.steps:
                    stream = step.stream(stream)
                if self.join and self.right:
                    stream = self.join.stream(stream, self.right.stream(env, folder / "right"))
                return settled(collect(stream)), None
            except FiresteelError as error:
                return None, error

    def spark(
        self, spark: SparkSession, folder: Path
    ) -> tuple[pa.Table | None, PySparkException | None]:
        spark.conf.set("spark.sql.session.timeZone", self.zone)
        try:
            frame: DataFrame = self.left.frame(spark, folder / "left")
            for step in self.steps:
                frame = step.frame(frame)
            if self.join and self.right:
                frame = self.join.frame(frame, self.right.frame(spark, folder / "right"))
            return frame.toArrow(), None
        except PySparkException as error:
            return None, error


def draw(seed: int) -> Case:
    rng = random.Random(seed)
    mode = rng.choice(["streaming", "batch"])
    left = tables.draw(rng)
    right = join = None
    steps = [queries.row_step(rng, left) for _ in range(rng.choice([0, 0, 1, 2]))]
    if rng.random() < 0.35:
        right = tables.draw(rng, rows=rng.choice([0, 5, 100]))
        join = queries.join_step(rng, left, right)
        steps = [step for step in steps if step.text.startswith((".filter", ".with_column"))]
    else:
        last = queries.last_step(rng, left, mode)
        # Functions pass on the columns that they need to.
        steps = [
            step
            for step in steps
            if step.text.startswith((".filter", ".with_column")) or not last.text
        ]
        steps.append(last)
    return Case(
        seed=seed,
        mode=mode,
        parallelism=rng.choice([1, 2, 3]),
        zone=rng.choice(ZONES),
        left=left,
        right=right,
        steps=steps,
        join=join,
    )
