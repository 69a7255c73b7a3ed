"""`run` and `info` of job files, without a cluster."""

from __future__ import annotations

import importlib
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from firesteel.client import execution_context
from firesteel.client.cli import main
from firesteel.client.cli import own_spark as own_spark_module
from firesteel.client.cli.own_spark import SparkRefused, only_reads, own_spark
from firesteel.client.cli.program import ProgramFailed, run_program
from firesteel.client.cli.run import _files, _job_overrides, _recovery
from firesteel.client.cli.targets import cluster_of
from firesteel.client.cluster import ClusterDirectory, ClusterState
from firesteel.client.execution_context import ExecutionContext
from firesteel.client.files import prepared, python_archive, python_file
from firesteel.client.package import UnpackedProgram
from firesteel.common.config import Configuration
from firesteel.common.job_graph import BlobKind, JobGraph
from firesteel.errors import FiresteelError

PIPELINE = """
import sys
from firesteel import Environment
from firesteel.connectors import CollectSink

env = Environment()
numbers = env.from_sequence(0, 10)
large = numbers.transform(lambda df: df.where("value > 3"), name="Large")
large.key_by("value").map_in_arrow(lambda it: it).sink_to(CollectSink())
env.execute("numbers " + " ".join(sys.argv[1:]))
"""

PROGRAM = UnpackedProgram(main=Path("job.py"))


@pytest.fixture(autouse=True)
def default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without a cluster, whatever runs on this machine."""
    monkeypatch.setenv("FIRESTEEL_DIR", str(tmp_path / "cluster"))
    return tmp_path / "cluster"


@pytest.fixture
def job(tmp_path: Path):
    def write(text: str, name: str = "job.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def planned(path: Path, *arguments: str, **overrides: str) -> JobGraph:
    graphs: list[JobGraph] = []
    context = ExecutionContext(
        mode="plan-only", conf=Configuration(), overrides=overrides, on_job_graph=graphs.append
    )
    run_program(path, arguments, context)
    (graph,) = graphs
    return graph


def test_a_plan_is_made_without_running_the_rest(job) -> None:
    graph = planned(job(PIPELINE + "raise SystemExit('too far')"), "a", "-b")
    assert graph.name == "numbers a -b"
    assert execution_context.current() is None


def test_overrides_win(job) -> None:
    graph = planned(job(PIPELINE), **{"parallelism.default": "3"})
    assert {vertex.parallelism for vertex in graph.vertices} == {3}


def test_info_shows_chains_spark_and_edges(job) -> None:
    result = invoke("info", "-p", "3", job(PIPELINE))
    assert result.exit_code == 0, result.output
    assert "chain of 2 operators" in result.output
    assert "Large  Transform  on Spark" in result.output
    assert "HASH by value (ALL_TO_ALL, pipelined)" in result.output
    assert "parallelism 3 (max 128)" in result.output
    assert "3 slots needed" in result.output


def test_modules_beside_the_job_file_are_importable_and_all_is_put_back(job) -> None:
    import sys

    before = (list(sys.argv), list(sys.path))
    job("WORD = 'found'", "beside_the_job.py")
    graph = planned(
        job(
            "import beside_the_job\n"
            + PIPELINE.replace('" ".join(sys.argv[1:])', "beside_the_job.WORD")
        )
    )
    assert graph.name == "numbers found"
    assert (sys.argv, sys.path) == before


def test_a_syntax_error_is_shown_with_its_place_without_our_frames(job) -> None:
    result = invoke("run", job("x = (\n"))
    assert result.exit_code == 1
    assert "job.py is not valid Python" in result.output
    assert "line 1" in result.output
    assert "firesteel/" not in result.output


def test_an_exception_is_shown_with_the_users_frames_only(job) -> None:
    result = invoke("info", job("def inner():\n    return 1 / 0\n\ninner()\n"))
    assert result.exit_code == 1
    assert "in inner" in result.output
    assert "ZeroDivisionError" in result.output
    assert "runpy" not in result.output
    assert "program.py" not in result.output


def test_a_program_error_names_the_line(job) -> None:
    result = invoke(
        "info", job("from firesteel import Environment\n\nEnvironment(parallelism=0)\n")
    )
    assert result.exit_code == 1
    assert "job.py, line 3" in result.output
    assert "Traceback" not in result.output


def test_a_program_without_execute_is_an_error(job) -> None:
    result = invoke(
        "info", job("from firesteel import Environment\nEnvironment().from_sequence(0, 1)\n")
    )
    assert result.exit_code == 1
    assert "job.py never called env.execute(): it built a pipeline" in result.output
    ran = invoke("run", "-t", "local", job("from firesteel import Environment\nEnvironment()\n"))
    assert ran.exit_code == 0, "nothing was described that could be forgotten"
    empty = invoke("info", job("print('here')\n"))
    assert empty.exit_code == 1
    assert "job.py never called env.execute(): there is no plan to show" in empty.output


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit()", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('an end')", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", 130),
    ],
)
def test_a_program_without_a_job_ends_with_its_own_exit_code(job, end: str, code: int) -> None:
    result = invoke("run", "-t", "local", job(f"import sys\nprint('here')\n{end}\n"))
    assert result.exit_code == code
    assert "here" in result.stdout
    said = "job.py ran as an ordinary Python program in this process. It submitted no job"
    assert (said in result.stderr) == ("/" not in end and "raise" not in end)
    assert "nothing was run" not in result.output


@pytest.mark.parametrize(
    ("statement", "reads"),
    [
        ("SELECT 'INSERT INTO t' -- DROP TABLE t", True),
        ("/* all */ (select 1)", True),
        ("WITH a AS (SELECT 1) SELECT * FROM a", True),
        ("WITH a AS (SELECT 1)\n INSERT\n INTO t SELECT * FROM a", False),
        ("FROM a INSERT OVERWRITE t SELECT *", False),
        ("create  or replace temporary\nview v AS SELECT 1", True),
        ("CREATE VIEW v AS SELECT 1", False),
        ("CREATE TABLE t (a INT)", False),
        ("DROP TABLE t", False),
        ("INSERT INTO t VALUES (1)", False),
        ("SHOW TABLES", True),
        ("SET x = 1", True),
        ("CACHE TABLE t", False),
    ],
)
def test_statements_with_an_effect_are_known(statement: str, reads: bool) -> None:
    assert only_reads(statement) is reads


def test_actions_of_spark_and_spark_connect_exist_and_are_put_back() -> None:
    names = own_spark_module.ACTIONS | own_spark_module.CONNECT_ACTIONS
    before = {name: _methods(name) for name in names}
    with own_spark(Path("job.py"), refuse=True) as spark:
        connected = SparkSession.builder.remote("sc://127.0.0.1:1").getOrCreate()
        assert spark.masters == ["Spark Connect"]
        for name in names:
            for action in names[name].split():
                with pytest.raises(SparkRefused):
                    _methods(name)[action]()
        with pytest.raises(SparkRefused):
            connected.sql("DROP TABLE t")
    connected.release_session_on_close = False  # there is no server
    connected.stop()
    del os.environ["SPARK_CONNECT_MODE_ENABLED"]  # set by the builder
    assert {name: _methods(name) for name in names} == before


def _methods(owner: str) -> dict[str, Any]:
    module, _, name = owner.rpartition(".")
    return dict(vars(getattr(importlib.import_module(module), name)))


def test_a_program_that_exits_keeps_its_exit_code(job) -> None:
    assert invoke("info", job("raise SystemExit(3)")).exit_code == 3


def test_a_file_that_is_not_there() -> None:
    result = invoke("run", "nowhere.py")
    assert result.exit_code == 2
    assert "nowhere.py" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d"], "-d needs a cluster"),
        (["-t", "local", "-m", "localhost:1"], "only one of them"),
        (["-m", "localhost:1", "--slots", "2"], "--task-executors and --slots"),
        (["-D", "nonsense"], "expected key=value"),
        (["-D", "taskmanager.numberOfTaskSlots=none"], "taskmanager.numberOfTaskSlots"),
        (["-m", "localhost"], "expected HOST:PORT"),
    ],
)
def test_conflicting_options_are_reported(job, arguments: list[str], message: str) -> None:
    result = invoke("run", *arguments, job(PIPELINE))
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.fixture
def running(default_folder: Path) -> Iterator[Path]:
    """The default folder, with a cluster that no longer answers."""
    directory = ClusterDirectory(default_folder)
    directory.acquire()
    directory.write(
        ClusterState(
            cluster_id="d" * 32,
            supervisor_pid=os.getpid(),
            dispatcher_address="127.0.0.1:1",
            resource_manager_address="127.0.0.1:2",
            task_executors=1,
            slots_per_task_executor=1,
            started_ms=0,
            version="0",
        )
    )
    yield directory.path
    directory.release()


def test_a_job_runs_on_the_cluster_that_the_other_verbs_find(job, running: Path) -> None:
    path = job(PIPELINE)
    for arguments in ([], ["-d"], ["-t", "remote"]):
        result = invoke("run", *arguments, path)
        assert result.exit_code == 1
        assert (
            f"Jobs of job.py run on the cluster at 127.0.0.1:1 (running in {running})"
            in result.output
        )
        assert "nothing answers at 127.0.0.1:1" in result.output
        assert "With -t local, the job runs on an embedded cluster" in result.output
    assert "nothing answers at 127.0.0.1:1" in invoke("list").output
    named = invoke("run", "-m", "localhost:2", path).output
    assert "Jobs of job.py run on the cluster at localhost:2 (of -m)" in named
    assert "-t local" not in named
    configured = invoke("run", "-D", "jobmanager.rpc.port=3", path).output
    assert "Jobs of job.py run on the cluster at localhost:3 (configured)" in configured
    sized = invoke("run", "--slots", "2", path).output
    assert "the cluster at 127.0.0.1:1" in sized
    assert "add -t local" in sized


def test_t_local_is_a_cluster_of_the_runs_own(running: Path) -> None:
    assert cluster_of("local", None, Configuration()) is None


def test_without_a_cluster_only_t_remote_takes_the_default_address() -> None:
    assert cluster_of(None, None, Configuration()) is None
    found = cluster_of("remote", None, Configuration())
    assert found is not None
    assert str(found) == "the cluster at localhost:6123 (the default address)"


def test_a_missing_file_to_ship_is_reported(job) -> None:
    result = invoke("run", "--py-files", "nowhere.zip", job(PIPELINE))
    assert result.exit_code == 1
    assert "--py-files nowhere.zip: there is no such file" in result.output


def test_files_on_the_command_line_replace_those_of_the_configuration() -> None:
    conf = Configuration({"python.files": "a.py;b.py", "python.requirements": "r.txt"})
    assert _files(conf, PROGRAM, None, None, None) == (["a.py", "b.py"], [], "r.txt")
    assert _files(conf, PROGRAM, "c.py, d.zip", "m.zip#model", None) == (
        ["c.py", "d.zip"],
        ["m.zip#model"],
        "r.txt",
    )


def test_p_is_a_value_of_the_job() -> None:
    assert _job_overrides(("a.b=c",), 4) == {"a.b": "c", "parallelism.default": "4"}


def test_s_is_what_the_job_starts_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert _recovery(None, False, None) == {}
    assert _recovery("s3://b/savepoint-1", False, None) == {
        "execution.state-recovery.path": "s3://b/savepoint-1"
    }
    assert _recovery("savepoint-1", True, "no-claim") == {
        "execution.state-recovery.path": str(tmp_path / "savepoint-1"),
        "execution.state-recovery.ignore-unclaimed-state": "true",
        "execution.state-recovery.claim-mode": "NO_CLAIM",
    }
    with pytest.raises(FiresteelError, match="specify one with -s"):
        _recovery(None, False, "claim")


def test_a_pyspark_program_continues_without_s(job) -> None:
    program = job("from pyspark.sql import SparkSession\nraise AssertionError('it does not run')")
    context = ExecutionContext(
        mode="detached", conf=Configuration(), overrides=_recovery("/savepoint", False, None)
    )
    with pytest.raises(ProgramFailed, match="continue from their checkpointLocation: run it"):
        run_program(program, [], context)


def test_archives_unpack_below_the_jobs_folder_only(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    archive.write_bytes(b"")
    assert python_archive(f"{archive}#model").target_dir == "model"
    assert python_archive(str(archive)).target_dir == "a.zip"
    for target in ("/etc", "../up"):
        with pytest.raises(FiresteelError, match="below the job's own"):
            python_archive(f"{archive}#{target}")


def test_a_package_folder_is_zipped_the_same_way_each_time(tmp_path: Path) -> None:
    import zipfile

    package = tmp_path / "tools"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("x = 1")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    path, blob = prepared(python_file(str(package)), tmp_path / "one")
    assert blob.kind is BlobKind.FILE
    assert sorted(zipfile.ZipFile(path).namelist()) == ["tools/__init__.py", "tools/part.py"]
    assert prepared(python_file(str(package)), tmp_path / "two")[1] == blob


def test_the_program_that_fails_leaves_no_context(job) -> None:
    with pytest.raises(ProgramFailed):
        planned(job("1 / 0"))
    assert execution_context.current() is None


def test_the_files_of_a_package_come_first() -> None:
    program = UnpackedProgram(
        main=Path("job.py"), files=("p.py",), archives=("p.zip#p",), requirements="p.txt"
    )
    assert _files(Configuration(), program, "b.py", None, None) == (
        ["p.py", "b.py"],
        ["p.zip#p"],
        "p.txt",
    )
