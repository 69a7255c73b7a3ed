"""collectd (Debian's `collectd-core`), which exports numbers that it reads from JSON over HTTP."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.clients import packages
from tests.clients.conftest import Jobs
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.clients

CONFIGURATION = """
BaseDir "{folder}"
PIDFile "{folder}/collectd.pid"
TypesDB "/usr/share/collectd/types.db"
Hostname "flink"
FQDNLookup false
Interval 1
LoadPlugin curl_json
LoadPlugin csv
<Plugin csv>
  DataDir "stdout"
</Plugin>
<Plugin curl_json>
{urls}
</Plugin>
"""
URL = """
<URL "{address}{path}">
  Instance "{name}"
  Header "Authorization: Bearer {token}"
  {keys}
</URL>
"""
KEY = '<Key "{key}">\n    Type "gauge"\n  </Key>\n'


def configuration(jobs: Jobs, folder: Path) -> str:
    """Reads the cluster, its jobs, and the checkpoints of a job."""
    read = {
        "cluster": (
            "/overview",
            ("taskmanagers", "slots-total", "slots-available", "jobs-running"),
        ),
        "jobs": ("/jobs/overview", ("jobs/*/duration", "jobs/*/tasks/running")),
        "checkpoints": (
            f"/jobs/{jobs.running}/checkpoints",
            ("counts/completed", "latest/completed/end_to_end_duration"),
        ),
        "job": (
            f"/jobs/{jobs.running}",
            ("vertices/*/metrics/read-records", "vertices/*/parallelism"),
        ),
    }
    urls = [
        URL.format(
            address=jobs.rest,
            path=path,
            name=name,
            token=jobs.token,
            keys="  ".join(KEY.format(key=key) for key in keys),
        )
        for name, (path, keys) in read.items()
    ]
    return CONFIGURATION.format(folder=folder, urls="".join(urls))


def test_an_exporter_reads_the_cluster_its_jobs_and_checkpoints(jobs: Jobs, tmp_path: Path) -> None:
    file, output = tmp_path / "collectd.conf", tmp_path / "values"
    file.write_text(configuration(jobs, tmp_path))
    with output.open("wb") as values:
        collectd = subprocess.Popen(
            [packages.collectd(), "-f", "-C", file], stdout=values, stderr=subprocess.STDOUT
        )
    with collectd:
        try:
            eventually(lambda: len(exported(output)) >= 12, "all URLs were read")
        finally:
            collectd.terminate()
            collectd.wait(PATIENCE_S)
    values_of = exported(output)
    assert values_of["cluster/gauge-slots-total"] == 4
    assert values_of["cluster/gauge-taskmanagers"] == 1
    assert values_of["cluster/gauge-jobs-running"] >= 1
    assert values_of["checkpoints/gauge-counts-completed"] > 0
    assert sum(v for name, v in values_of.items() if name.endswith("-tasks-running")) >= 4
    assert any(v > 0 for name, v in values_of.items() if name.endswith("-read-records"))


def exported(output: Path) -> dict[str, float]:
    """Returns the last value of each name, as in `cluster/gauge-slots-total`."""
    lines = [line.split() for line in output.read_text().splitlines()[:-1]]
    return {
        line[1].removeprefix("flink/curl_json-"): float(line[-1].rpartition(":")[2])
        for line in lines
        if line and line[0] == "PUTVAL"
    }
