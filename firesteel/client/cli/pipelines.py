"""pipelines run and dry-run: executes a declarative pipeline of PySpark."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firesteel.client.cli.arguments import (
    APPLICATION,
    address_option,
    configuration,
    definitions_option,
    listed,
    python_files_options,
)
from firesteel.client.cli.program import ProgramFailed
from firesteel.client.cli.targets import TARGETS, check_version_of, cluster_of
from firesteel.client.signals import INTERRUPTED, exiting
from firesteel.common.config import Configuration, options, parse_definitions
from firesteel.common.error_report import error_info
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from firesteel.client.execution_context import ExecutionContext

_spec = click.option(
    "--spec",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The specification of the pipeline. [default: spark-pipeline.yml or .yaml in this folder"
    " or the nearest one above it]",
)


@click.group()
def pipelines() -> None:
    """Runs declarative pipelines of PySpark, as `spark-pipelines` does.

    A specification, spark-pipeline.yml, names the files in Python and SQL that define the tables
    and views of the pipeline (pyspark.pipelines). Streaming tables are computed by jobs, and
    materialized views by a Spark on this machine.
    """


@pipelines.command(
    epilog="\b\nExamples:\n"
    "  firesteel pipelines run                      the pipeline in this folder\n"
    "  firesteel pipelines run --spec shop/spark-pipeline.yml -m localhost:6123\n"
    "  firesteel pipelines run --full-refresh orders,totals\n"
    "  firesteel pipelines run -D spark.sql.catalogImplementation=hive",
)
@_spec
@click.option(
    "--full-refresh",
    "full_refresh",
    multiple=True,
    metavar="TABLES",
    help="Reset and recompute these tables (comma-separated).",
)
@click.option("--full-refresh-all", is_flag=True, help="Reset and recompute all tables.")
@click.option(
    "--refresh",
    multiple=True,
    metavar="TABLES",
    help="Update only these tables (comma-separated).",
)
@click.option(
    "-p",
    "--parallelism",
    type=click.IntRange(min=1),
    help="Parallelism of operators without an explicit parallelism.",
)
@click.option(
    "-t",
    "--target",
    type=click.Choice([each for each in TARGETS if each != APPLICATION]),
    help="Where to run; local starts a cluster for the run. [default: remote if -m or its default"
    " names a cluster, else local]",
)
@address_option(otherwise="a new cluster on this machine", targets=False)
@definitions_option(
    "Set a configuration key of the jobs, or of Spark (spark.*). Repeatable.",
)
@python_files_options
def run(
    spec: Path | None,
    full_refresh: tuple[str, ...],
    full_refresh_all: bool,
    refresh: tuple[str, ...],
    parallelism: int | None,
    target: str | None,
    address: str | None,
    definitions: tuple[str, ...],
    py_files: str | None,
    py_archives: str | None,
    py_requirements: str | None,
) -> None:
    """Runs a pipeline until all of its tables are up to date.

    A streaming table processes the rows that its sources have and that earlier runs have not
    processed. A materialized view is computed again. Without --refresh and --full-refresh, all
    tables are updated.

    The exit code is 0 if all flows have completed, and 1 if one has failed. Flows that read from
    its table are skipped.
    """
    from firesteel.client.execution_context import ExecutionContext

    if full_refresh_all and (full_refresh or refresh):
        other = "--full-refresh" if full_refresh else "--refresh"
        raise FiresteelError(f"--full-refresh-all includes all tables: omit {other}")
    found = _found(spec)
    conf = configuration(definitions)
    cluster = cluster_of(target, address, conf)
    overrides = parse_definitions(definitions)
    if parallelism is not None:
        overrides[options.PARALLELISM.key] = str(parallelism)
        conf = conf.with_overrides({options.PARALLELISM.key: str(parallelism)})
    if cluster is None:
        secret = conf.secrets()
        overrides = {key: text for key, text in overrides.items() if key not in secret}
    context = ExecutionContext(
        mode="embedded" if cluster is None else "remote",
        conf=conf,
        address="" if cluster is None else cluster.address,
        overrides=overrides,
    ).with_files(
        listed(py_files) if py_files is not None else conf.get(options.PYTHON_FILES),
        listed(py_archives) if py_archives is not None else conf.get(options.PYTHON_ARCHIVES),
        py_requirements or conf.get(options.PYTHON_REQUIREMENTS) or None,
    )
    where = "an embedded cluster, on this machine" if cluster is None else cluster
    click.echo(f"Streaming tables of {found.name} run on {where}", err=True)
    if cluster is None:
        _embed(context, conf)
    else:
        check_version_of(context.client())
    _execute(
        found,
        context,
        full_refresh=_tables(full_refresh),
        full_refresh_all=full_refresh_all,
        refresh=_tables(refresh),
        dry=False,
    )


@pipelines.command(
    "dry-run", epilog="\b\nExamples:\n  firesteel pipelines dry-run --spec shop/spark-pipeline.yml"
)
@_spec
@definitions_option("Set a configuration key of Spark (spark.*). Repeatable.")
def dry_run(spec: Path | None, definitions: tuple[str, ...]) -> None:
    """Checks a pipeline: resolves its tables and views, and runs nothing.

    The exit code is 1 if a flow cannot be resolved.
    """
    from firesteel.client.execution_context import ExecutionContext

    conf = configuration(definitions)
    context = ExecutionContext(mode="embedded", conf=conf)
    _embed(context, conf)  # which does not start
    _execute(_found(spec), context, full_refresh=[], full_refresh_all=False, refresh=[], dry=True)


def _embed(context: ExecutionContext, conf: Configuration) -> None:
    from firesteel.client.execution_context import EmbeddedCluster

    context.embedded_cluster = EmbeddedCluster(conf)


def _tables(given: Sequence[str]) -> list[str]:
    return [name for text in given for name in listed(text)]


def _found(spec: Path | None) -> Path:
    """Returns the specification. Raises FiresteelError if there is none."""
    from pyspark.errors import PySparkException
    from pyspark.pipelines.cli import find_pipeline_spec

    if spec is not None:
        return spec
    try:
        return find_pipeline_spec(Path.cwd())
    except PySparkException as error:
        raise FiresteelError(f"{error.getMessage()} Name it with --spec.") from None


def _execute(
    spec: Path,
    context: ExecutionContext,
    *,
    full_refresh: list[str],
    full_refresh_all: bool,
    refresh: list[str],
    dry: bool,
) -> None:
    """Runs PySpark's own client of pipelines with a session of the run."""
    from pyspark.errors import PySparkException
    from pyspark.pipelines import cli

    from firesteel.client.execution_context import active
    from firesteel.client.spark_programs.compatibility import connect_sessions
    from firesteel.client.spark_programs.front_process import FrontProcess

    sources = _checked(lambda: _sources(spec), spec)
    with active(context), exiting(), _imports_from(spec.resolve().parent):
        front = FrontProcess(spec, context, sources, runs_jobs=not dry)
        try:
            with connect_sessions(front):
                cli.run(spec, full_refresh, full_refresh_all, refresh, dry)
        except KeyboardInterrupt:
            front.stop()
            click.echo("The run was stopped. The next run continues from here.", err=True)
            sys.exit(INTERRUPTED)
        except (FiresteelError, SystemExit):
            raise
        except PySparkException as error:
            if error.__cause__ is None and not _user_frames(error, spec):
                raise FiresteelError(f"{spec.name}: {_message(error)}") from error
            raise _failed(error, spec) from error
        except Exception as error:
            raise _failed(error, spec) from error
        finally:
            front.stop()


def _checked(read: Callable[[], list[Path]], spec: Path) -> list[Path]:
    """Reads the specification. Raises FiresteelError for one that PySpark refuses."""
    import yaml
    from pyspark.errors import PySparkException

    try:
        return read()
    except PySparkException as error:
        raise FiresteelError(f"{spec}: {_message(error)}") from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise FiresteelError(
            f"{spec} is not the specification of a pipeline: {error}. It has name, storage and"
            " libraries, a list of glob: {include: FOLDER/**}"
        ) from error


def _sources(spec: Path) -> list[Path]:
    """Returns the Python files of a pipeline."""
    from pyspark.pipelines.cli import load_pipeline_spec

    folder = spec.resolve().parent
    return sorted(
        file
        for library in load_pipeline_spec(spec).libraries
        for file in folder.glob(library.include)
        if file.suffix == ".py" and file.is_file() and "__pycache__" not in file.parts
    )


@contextlib.contextmanager
def _imports_from(folder: Path) -> Iterator[None]:
    """Lets the files of a pipeline import the modules beside its specification."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


def _user_frames(error: BaseException, spec: Path) -> str:
    info = error_info(error, user_code_roots=(str(spec.resolve().parent),))
    return info.user_traceback or ""


def _failed(error: Exception, spec: Path) -> ProgramFailed:
    shown: Any = _user_frames(error, spec) or error_info(error).summary
    return ProgramFailed(f"{spec.name} failed:\n{shown}")


def _message(error: Exception) -> str:
    return str(error)
