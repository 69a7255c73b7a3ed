"""Which cluster a command means when nobody says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from firesteel.client.cli.arguments import default_address
from firesteel.client.cluster import ClusterDirectory, ClusterState
from firesteel.common.config import Configuration


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterDirectory:
    monkeypatch.setenv("FIRESTEEL_DIR", str(tmp_path))
    return ClusterDirectory(tmp_path)


def test_without_a_cluster_it_is_the_usual_address(directory: ClusterDirectory) -> None:
    assert default_address(Configuration()) == "localhost:6123"


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
        assert default_address(Configuration()) == "127.0.0.1:7123"
        assert (
            default_address(Configuration({"jobmanager.rpc.address": "far.example"}))
            == "far.example:6123"
        )
    finally:
        directory.release()
    assert default_address(Configuration()) == "localhost:6123"
