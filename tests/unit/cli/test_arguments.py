"""Which cluster a command means when nobody says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from firesteel.client.cli.arguments import FoundCluster, cluster_address, find_cluster
from firesteel.client.cluster import ClusterDirectory, ClusterState
from firesteel.common.config import Configuration


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterDirectory:
    monkeypatch.setenv("FIRESTEEL_DIR", str(tmp_path))
    return ClusterDirectory(tmp_path)


def test_without_a_cluster_it_is_the_usual_address(directory: ClusterDirectory) -> None:
    assert find_cluster(None, Configuration()) is None
    assert cluster_address(None, Configuration()) == "localhost:6123"


def test_a_cluster_in_the_default_folder_is_found_but_what_is_configured_wins(
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
