"""Reports the input that a FINISHED job has skipped or dropped, at the end of its program."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from firesteel.client.job_details import JobDetails


def say_what_was_dropped(details: JobDetails) -> None:
    """Prints the job's warnings and a line for each vertex that has dropped late records, on
    standard error.
    """
    for warning in details.warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    for line in late_records(details):
        print(line, file=sys.stderr)


def late_records(details: JobDetails) -> Iterator[str]:
    """Yields a line for each vertex that has dropped records. A restarted vertex counts from
    zero.
    """
    for number, vertex in enumerate(details.vertices, 1):
        if late := vertex.metrics.late_records_dropped:
            yield (
                f"Warning: [{number}] {vertex.name} has dropped {late:,} late records, whose times"
                " were behind the watermark. To keep them, give the watermarks a larger"
                " max_out_of_orderness, or the windows an allowed_lateness or side_output_late(tag)"
            )
