"""Folders that cannot hold a cluster."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from firesteel.client.cli import main
from firesteel.client.cluster.directory import (
    SUPERVISOR,
    ClusterDirectory,
    NoCluster,
    UnusableDirectory,
)
from firesteel.client.cluster.supervisor import ports_after
from firesteel.common.config import Configuration
from firesteel.common.process.lock_file import LockFile
from tests.small_disk import fill, small_disk


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    "arguments",
    [("list",), ("run", "-d", __file__), ("cluster", "start"), ("cluster", "status")],
    ids=" ".join,
)
def test_a_file_in_the_place_of_the_folder_is_named(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FIRESTEEL_DIR", str(tmp_path / "file"))
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert f"the folder {tmp_path}/file cannot be used for a cluster: Not a dir" in result.output
    assert "name another one with --dir or FIRESTEEL_DIR" in result.output
    assert "Traceback" not in result.output


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        directory = ClusterDirectory(disk)
        directory.create()
        fill(disk)
        with pytest.raises(UnusableDirectory, match=f"{disk} cannot .* No space left on device"):
            directory.acquire()
        assert not directory.is_held()


def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        ClusterDirectory(disk).create()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        result = invoke("cluster", "start", "--dir", str(disk))
    assert result.exit_code == 1
    assert f"the folder {disk} cannot be used for a cluster: Read-only file" in result.output


def test_a_cluster_whose_folder_was_removed_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    waits = [sys.executable, "-c", "input()", "-m", SUPERVISOR, "--dir", str(folder)]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as supervisor:
        result = invoke("cluster", "stop", "--dir", str(folder))
        assert result.exit_code == 1
        assert f"end the cluster with `kill {supervisor.pid}`" in result.output
        folder.mkdir()
        assert (
            f"no cluster runs on {folder};"
            in invoke("cluster", "stop", "--dir", str(folder)).output
        )
        supervisor.communicate(b"\n")


def test_a_cluster_whose_folder_was_replaced_leaves_the_new_one_alone(tmp_path: Path) -> None:
    former, successor = ClusterDirectory(tmp_path / "it"), ClusterDirectory(tmp_path / "it")
    former.acquire()
    (tmp_path / "it").rename(tmp_path / "moved")
    successor.acquire()
    (successor.path / "cluster.json").write_text("{}")
    former.release()
    assert (successor.path / "cluster.json").exists()
    with pytest.raises(NoCluster, match=rf"supervisor pid {os.getpid()}\) is still starting"):
        successor.read()
    successor.release()
    assert not (successor.path / "cluster.json").exists()


def test_a_user_without_a_home_directory_learns_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(uid: int) -> pwd.struct_passwd:  # as for a user id of a container
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("FIRESTEEL_DIR", raising=False)
    result = invoke("list")
    assert result.exit_code == 1
    assert "this user has no home directory" in result.output
    assert "FIRESTEEL_DIR" in result.output


def test_whether_a_lock_is_held_can_be_seen_by_those_who_may_only_read(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    lock.acquire()
    os.chmod(lock.path, 0o444)
    assert LockFile(lock.path).is_held()
    lock.release()
    assert not LockFile(lock.path).is_held()


@pytest.mark.parametrize(
    ("configured", "ports"), [("8081-8181", "8090-8181"), ("8090", "8090-8090"), ("0", "8090-8090")]
)
def test_the_rest_api_prefers_its_earlier_port(configured: str, ports: str) -> None:
    assert ports_after("127.0.0.1:8090", Configuration({"rest.port": configured})) == ports
