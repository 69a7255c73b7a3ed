"""Which cluster and which job a command means."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from firesteel.client.cli import main
from firesteel.client.cli.arguments import (
    FoundCluster,
    address_option,
    cluster_address,
    find_cluster,
    jobs_meant,
)
from firesteel.client.cluster import ClusterDirectory, ClusterState
from firesteel.client.job_details import JobOverview
from firesteel.common.config import Configuration
from firesteel.common.states import JobStatus
from tests.kubernetes.access import kubeconfig


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterDirectory:
    monkeypatch.setenv("FIRESTEEL_DIR", str(tmp_path))
    return ClusterDirectory(tmp_path)


def test_without_a_cluster_it_is_the_usual_address(directory: ClusterDirectory) -> None:
    assert find_cluster(None, Configuration()) is None
    assert cluster_address(None, Configuration()) == "localhost:6123"


def test_a_cluster_in_the_default_folder_is_found_unless_one_is_configured(
    directory: ClusterDirectory,
) -> None:
    directory.acquire()
    try:
        directory.write(
            ClusterState(
                cluster_id="d" * 32,
                supervisor_pid=os.getpid(),
                dispatcher_address="127.0.0.1:7123",
                resource_manager_address="127.0.0.1:7124",
                task_executors=1,
                slots_per_task_executor=1,
                started_ms=0,
                version="0",
            )
        )
        assert find_cluster(None, Configuration()) == FoundCluster(
            "127.0.0.1:7123", f"running in {directory.path}"
        )
        configured = Configuration({"jobmanager.rpc.address": "far.example"})
        assert find_cluster(None, configured) == FoundCluster("far.example:6123", "configured")
        assert find_cluster("farther.example:1", configured) == FoundCluster(
            "farther.example:1", "of -m"
        )
    finally:
        directory.release()
    assert find_cluster(None, Configuration()) is None


def overview(job_id: str, name: str, status: JobStatus, start_ms: int) -> JobOverview:
    return JobOverview(
        job_id=job_id, name=name, status=status, start_ms=start_ms, end_ms=0, tasks_by_state={}
    )


def test_a_name_means_what_runs_then_the_newest() -> None:
    old = overview("aa1", "daily", JobStatus.FINISHED, 3)
    newer = overview("aa2", "daily", JobStatus.FAILED, 5)
    running = overview("aa3", "daily", JobStatus.RUNNING, 1)
    second = overview("bb4", "daily", JobStatus.RUNNING, 2)
    assert jobs_meant([old, newer], "daily") == [newer]
    assert jobs_meant([old, newer, running], "daily") == [running]
    assert jobs_meant([running, second, newer], "daily") == [running, second], "cancel asks which"
    assert jobs_meant([second, running, newer], "daily", newest=True) == [second]
    assert jobs_meant([old, newer], "aa") == [old, newer], "ids have no newest"
    assert jobs_meant([old, newer], "aa1") == [old]
    assert jobs_meant([old], "weekly") == []


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        (["-z", "one:2181,two:2181"], "zookeeper://one:2181,two:2181/firesteel/default"),
        (["-z", "one:2181/orders"], "zookeeper://one:2181/firesteel/orders"),
        (["-m", "here:6123"], "here:6123"),
        ([], ""),
    ],
)
def test_a_cluster_is_named_by_its_address_or_by_its_ensemble(
    arguments: list[str], address: str
) -> None:
    @click.command()
    @address_option(otherwise="none")
    def verb(address: str | None) -> None:
        click.echo(address)

    assert CliRunner().invoke(verb, arguments).output.strip() == address
    both = CliRunner().invoke(verb, ["-m", "here:6123", "-z", "one:2181"])
    assert both.exit_code == 2 and "-m and -z each name a cluster" in both.output


def test_a_configured_ensemble_names_the_cluster() -> None:
    conf = Configuration(
        {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": "one:2181",
            "high-availability.zookeeper.path.root": "/a/b",
        }
    )
    found = find_cluster(None, conf)
    assert found is not None and found.address == "zookeeper://one:2181/a/b/default"


def test_configured_leases_name_the_cluster(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    (tmp_path / "ca.crt").touch()
    file.write_text(kubeconfig("https://here:6443", tmp_path / "ca.crt", "token", "data"))
    keys = {"kubernetes.config.file": str(file), "kubernetes.cluster-id": "orders"}
    conf = Configuration(keys | {"high-availability.type": "kubernetes"})
    found = find_cluster(None, conf)
    assert found is not None and found.address == "kubernetes://data/orders"
    named = find_cluster("kubernetes://data/orders", Configuration({}))
    assert named is not None and named.found_by == "of -m"


@pytest.mark.parametrize(
    "verb",
    ["show", "logs", "cancel", "remove", "stop", "savepoint", "checkpoint", "stop-task-executor"],
)
@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_means_nothing(verb: str, name: str) -> None:
    """Not the only job: a script's variable may be unset."""
    result = CliRunner().invoke(main, [verb, "-m", "127.0.0.1:1", name])
    assert result.exit_code == 2
    assert "it is empty" in result.output
