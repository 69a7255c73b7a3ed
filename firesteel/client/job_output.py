"""Copies the output of a job to the program that waits for it, and reports the input that a
FINISHED job has skipped or dropped.

A thread follows the job's output in the cluster's logs and writes it to `sys.stdout`, which
notebooks replace. The logs are the buffer: a slow terminal does not slow down the job, and lines
that a log drops before they are read are reported on `sys.stderr`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

from firesteel.client.client import Client
from firesteel.client.job_details import JobDetails
from firesteel.errors import FiresteelError


class JobOutput:
    def __init__(self, client: Client, job_id: str, write: Callable[[str], None]) -> None:
        """Starts to follow the job. `write` receives whole lines."""
        self.failure: OSError | None = None  # of standard output: no more output follows
        self.progress = 0  # changes while there is output
        self._client = client
        self._job_id = job_id
        self._write = write
        self._thread = threading.Thread(target=self._follow, name=f"output-{job_id}", daemon=True)
        self._thread.start()

    def is_complete(self, timeout_s: float) -> bool:
        """Whether all output of the ended job is written. Waits for at most `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _follow(self) -> None:
        try:
            for lines in self._client.log_batches(self._job_id, follow=True, output=True):
                self.progress += 1
                printed = "".join(f"{line.text}\n" for line in lines if not line.is_notice)
                if printed:
                    self._write(printed)
                for line in lines:
                    if line.is_notice:
                        print(f"Note: {line.text}.", file=sys.stderr)
        except FiresteelError:
            pass  # the cluster is gone, which the wait for the job reports
        except OSError as error:
            self.failure = error


def write_to_stdout(text: str) -> None:
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError as error:
        sys.stdout.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
    sys.stdout.flush()


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
