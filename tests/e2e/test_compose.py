"""The `session` profile of docker-compose.yml as processes, and the commands of its comments."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from firesteel.client.client import Client
from firesteel.client.cluster import wait_for_slots
from firesteel.client.cluster.directory import CLUSTER_ID, end_processes
from firesteel.common.config import Configuration
from firesteel.common.ids import random_id
from firesteel.common.metrics_targets import targets
from firesteel.common.process import BlockingChild, spawn_blocking
from firesteel.common.states import JobStatus
from tests.compose import ROOT, commands, services
from tests.credentials import scrape
from tests.postgres import Postgres

from .conftest import WARM_S, firesteel


@pytest.fixture
def database() -> Iterator[str]:
    postgres = Postgres()
    yield postgres.url.replace("postgresql://", "postgresql+psycopg2://")
    postgres.close()


def test_the_session_profile_runs_the_command_of_its_comment(tmp_path: Path, database: str) -> None:
    addresses = {"dispatcher": "", "resourcemanager": ""}
    cluster_id = random_id()
    lifeline, write = os.pipe()
    with contextlib.ExitStack() as stack:
        children: list[BlockingChild] = []
        stack.callback(lambda: [child.process.wait() for child in children])
        stack.callback(end_processes, cluster_id, timeout_s=WARM_S)
        stack.callback(os.close, write)  # all processes end
        stack.callback(os.close, lifeline)
        for number, service in enumerate(services("session", tmp_path)):
            child = spawn_blocking(
                [
                    sys.executable,
                    "-m",
                    service.module,
                    *(
                        _here(word, addresses["resourcemanager"], database)
                        for word in service.arguments
                    ),
                    *("-D", "metrics.reporter.prom.port=0"),
                    *("-D", "security.tls=always", "-D", f"security.directory={tmp_path / 'keys'}"),
                ],
                log_path=tmp_path / f"{service.module}-{number}.log",
                env={**os.environ, **service.environment, CLUSTER_ID: cluster_id},
                lifeline=lifeline,
            )
            children.append(child)
            if service.module in addresses:
                addresses[service.module] = child.ready["address"]
        address = addresses["dispatcher"]
        conf = Configuration(
            {"security.tls": "always", "security.directory": str(tmp_path / "keys")}
        )
        client = stack.enter_context(Client(address, conf=conf))
        wait_for_slots(client, 4, logs=tmp_path, timeout_s=WARM_S)

        (tmp_path / "examples").symlink_to(ROOT / "examples")
        (run,) = (each for each in commands() if " -m localhost:6123 " in each)
        arguments = shlex.split(run.replace("localhost:6123", address))[1:]
        ran = firesteel(*arguments, cwd=tmp_path)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert list((tmp_path / "out" / "daily_delays").glob("*.parquet"))
        (job,) = client.list_jobs()
        assert job.status is JobStatus.FINISHED

        served = {target.process: target for target in targets(_folder_of_prometheus(tmp_path))}
        assert served.keys() >= {"dispatcher", "resourcemanager", "taskexecutor", "jobmaster"}
        for target in served.values():
            assert "flink_" in scrape(target.address, tmp_path / "keys"), target


def _here(word: str, resource_manager: str, database: str) -> str:
    if word.startswith("database.url="):
        return f"database.url={database}"
    return resource_manager if word == "resourcemanager:6124" else word


def _folder_of_prometheus(directory: Path) -> Path:
    """Where Prometheus of docker-compose.yml looks for targets."""
    configuration = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (job,) = configuration["scrape_configs"]
    (discovery,) = job["file_sd_configs"]
    (pattern,) = discovery["files"]
    folder, _, files = pattern.rpartition("/")
    assert files == "*.json"
    return directory / folder.removeprefix("/var/lib/firesteel/")
