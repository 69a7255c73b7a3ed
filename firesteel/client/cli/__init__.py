"""The command line: `firesteel run job.py` and Flink's other verbs."""

from __future__ import annotations

import errno
from typing import Any

import click

import firesteel
from firesteel.client.cli.cluster import cluster, service
from firesteel.client.cli.dashboard import dashboard
from firesteel.client.cli.import_spark_checkpoint import import_spark_checkpoint
from firesteel.client.cli.inspect import inspect
from firesteel.client.cli.jobs import cancel, list_jobs, remove, show
from firesteel.client.cli.kafka import kafka
from firesteel.client.cli.logs import logs
from firesteel.client.cli.package import package
from firesteel.client.cli.pipelines import pipelines
from firesteel.client.cli.run import info, run
from firesteel.client.cli.savepoints import checkpoint, savepoint, stop
from firesteel.client.cli.scale import scale
from firesteel.client.cli.secrets import secrets
from firesteel.client.cli.task_executors import stop_task_executor
from firesteel.client.cli.token import audit, token
from firesteel.client.signals import INTERRUPTED, repeating_lost_interrupts
from firesteel.common.config.redaction import hidden
from firesteel.errors import FiresteelError

EPILOG = """\b
Examples:
  firesteel run job.py                         run a job on a new cluster on this machine
  firesteel cluster start                      start a session cluster on localhost:6123
  firesteel run -d job.py                      submit a job to it
  firesteel list                               list its running jobs
  firesteel show JOB                           show tasks, counters and errors
  firesteel logs --follow JOB                  follow the logs until the job ends
  firesteel inspect JOB --vertex MAP --rows 5  show rows that a task sends
  firesteel dashboard                          open the dashboard in a browser
  firesteel scale JOB --parallelism 4          give a running job more subtasks
  firesteel cancel JOB
  firesteel remove JOB                         delete an ended job with its results
  firesteel cluster stop

\b
All commands use the first of these clusters: the one of -m; the configured one
(jobmanager.rpc.address, .port); the one that `cluster start` has started in the default directory
($FIRESTEEL_DIR, or ~/.firesteel/cluster). If there is none, `run` starts a cluster for the job, as
with -t local, and the others try localhost:6123.
"""


class _Group(click.Group):
    """Prints errors as one message, without a traceback. Ctrl-C ends with exit code 130."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with repeating_lost_interrupts():
            return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FiresteelError as error:
            text = "\n".join([str(error), *getattr(error, "__notes__", ())])
            failed = click.ClickException(hidden(text))
            failed.exit_code = error.exit_code  # type: ignore[misc]
            raise failed from error
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:  # click ends quietly
                raise
            raise click.ClickException(_system_error(error)) from error


def _system_error(error: OSError) -> str:
    """Describes an error of the system, such as a full disk or a missing permission."""
    about = f"{error.filename}: " if error.filename is not None else ""
    return f"{about}{error.strerror or error}"


@click.group(
    cls=_Group,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(firesteel.__version__, prog_name="firesteel")
def main() -> None:
    """Runs PySpark pipelines as streaming jobs on session clusters, as Apache Flink does."""


for command in (
    run,
    info,
    package,
    pipelines,
    import_spark_checkpoint,
    list_jobs,
    show,
    logs,
    savepoint,
    checkpoint,
    stop,
    scale,
    cancel,
    remove,
    stop_task_executor,
    dashboard,
    inspect,
    cluster,
    kafka,
    token,
    audit,
    service,
):
    main.add_command(command)
cluster.add_command(secrets)
