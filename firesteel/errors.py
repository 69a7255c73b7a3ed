"""Errors for users: each has one clear message with the problem and the remedy.

Any other exception in a user's job becomes an `ErrorInfo` (`firesteel.common.error_report`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from firesteel.text import valid_text


class FiresteelError(Exception):
    """Base of all errors, with one clear message: the problem and the remedy."""

    exit_code = 1  # of a command that fails with it


class InvalidProgram(FiresteelError):
    """The program is invalid; no job can be built from it."""


class ClusterUnreachable(FiresteelError):
    """No Firesteel cluster answers at the address."""


class JobNotFound(FiresteelError):
    """The cluster has no such job."""


class PayloadTooLarge(FiresteelError):
    """The job, or one of its files, is larger than the cluster accepts."""


class SubmissionRejected(FiresteelError):
    """The cluster rejected the job; the message has the reason."""


DATA_EXCEPTION = "22"  # the class of SQLSTATEs of values that are not valid
RAISED = "P0001"  # the SQLSTATE of raise_error() and assert_true()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """Describes an exception, wherever it was raised. All of its text is valid (`firesteel.text`),
    so it can always be sent and stored.
    """

    summary: str  # one line
    user_traceback: str = ""  # the frames of user code, then the exception; empty if there are none
    traceback: str = ""  # all frames
    timestamp_ms: int = 0
    location: str = ""  # host, TaskExecutor and slot, if known
    task_name: str = ""  # "vertex (2/4)#0", if known
    consequence: bool = False  # only reports that another task, which this one needs, has ended
    lost_task_executor: str = ""  # only reports the loss of this TaskExecutor
    final: bool = False  # a new attempt would fail as well: the job is not restarted
    condition: str = ""  # Spark's, such as DIVIDE_BY_ZERO, if it is an error of Spark's
    sql_state: str = ""  # of this condition, such as "22012"
    exit_code: int = 0  # of a program that has ended itself with another one than 0

    def __post_init__(self) -> None:
        for item in fields(self):
            if isinstance(text := getattr(self, item.name), str):
                object.__setattr__(self, item.name, valid_text(text))

    @property
    def of_program(self) -> bool:
        """Whether a function or an expression of the program has raised an error, or a value is
        not valid: the same rows are likely to cause it again.
        """
        return bool(self.user_traceback) or self.sql_state.startswith((DATA_EXCEPTION, RAISED))

    @property
    def shown(self) -> str:
        """The user's traceback, or else the summary."""
        return self.user_traceback or self.summary


class JobFailed(FiresteelError):
    """The job FAILED. `error` is the failure that ended it, or None if the cluster has no
    record.
    """

    def __init__(self, job_id: str, job_name: str = "", error: ErrorInfo | None = None) -> None:
        self.job_id = job_id
        self.job_name = job_name
        self.error = error
        if error is not None and error.exit_code:
            self.exit_code = error.exit_code
        name = f" ({job_name})" if job_name else ""
        where = f" in {error.task_name}" if error and error.task_name else ""
        reason = f"{where}: {error.summary}" if error else ""
        user = f"\n{error.user_traceback}" if error and error.user_traceback else ""
        super().__init__(f"job {job_id}{name} failed{reason}{user}")


class JobCanceled(FiresteelError):
    """The job was CANCELED."""

    def __init__(self, job_id: str, job_name: str = "") -> None:
        self.job_id = job_id
        self.job_name = job_name
        super().__init__(f"job {job_id}{f' ({job_name})' if job_name else ''} was cancelled")
