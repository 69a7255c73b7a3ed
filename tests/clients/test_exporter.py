"""collectd (Debian's `collectd-core`), which exports numbers that it reads from JSON over HTTP."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.clients import packages
from tests.clients.conftest import Jobs
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.clients

_VALUE = re.compile(r"PUTVAL flink/curl_json-(?P<name>\S+) \S+ [\d.]+:(?P<value>\S+)")
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
    lines = output.read_text().splitlines()[:-1]
    # Messages of collectd may share a line with a value that it is still writing.
    values = [found for line in lines if (found := _VALUE.fullmatch(line))]
    return {found["name"]: float(found["value"]) for found in values}
