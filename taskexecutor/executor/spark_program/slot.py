"""Finds out what a slot provides for its driver or executor."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from taskexecutor.executor.columnar.jvm import archive
from taskexecutor.executor.columnar.jvm.archive import ArchivedStart
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.spark_program import standalone
from taskexecutor.executor.spark_program.standalone import SlotShare


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSlot:
    share: SlotShare
    host: str  # on which the processes listen, and others find them
    scratch: Path  # the folder for temporary files of the slot
    archived: ArchivedStart
    python_paths: tuple[str, ...]  # of the job's files

    def environment(self, configuration: Path, scratch: Path) -> dict[str, str]:
        """Returns the environment of a process of Spark."""
        return standalone.environment(
            os.environ,
            configuration=configuration,
            scratch=scratch,
            host=self.host,
            python=sys.executable,
            python_paths=self.python_paths,
        )


def slot_of(engine: SparkEngine) -> SparkSlot:
    """Raises FiresteelError if the slot is too small for Spark."""
    includes = engine.session.sparkContext._python_includes  # the job's: see JobSurroundings
    return SparkSlot(
        share=SlotShare.of(cores=engine.cores, heap_bytes=engine.heap_bytes),
        host=engine.host,
        scratch=engine.temp_dir,
        archived=archive.archived_start() or ArchivedStart(),
        python_paths=tuple(includes or ()),
    )
