"""Spark's own client drives the API server that stands in for Kubernetes in tests."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pyspark
import pytest

from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.containers import Image
from tests.kubernetes.kubelet import Kubelet
from tests.waiting import eventually

pytestmark = pytest.mark.clients

HOME = Path(pyspark.__file__).parent


def spark_submit(server: ApiServer, *arguments: str) -> str:
    done = subprocess.run(
        [HOME / "bin" / "spark-submit", "--master", f"k8s://{server.url}", *arguments],
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig), "SPARK_HOME": str(HOME)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_driver_is_submitted_described_and_killed(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as server, Kubelet(server, tmp_path / "pods") as kubelet:
        kubelet.add_image("spark:1", Image(entrypoint=("sleep", "3600", "#")))
        conf = {
            "spark.kubernetes.container.image": "spark:1",
            "spark.kubernetes.submission.waitAppCompletion": "false",
        }
        options = [part for key, text in conf.items() for part in ("--conf", f"{key}={text}")]
        program = ("--deploy-mode", "cluster", "--name", "pi", *options, "local:///opt/pi.py")
        submitted = spark_submit(server, *program)
        (driver,) = re.findall(r"submission ID default:(\S+)", submitted)
        (pod,) = server.objects("Pod")
        assert pod["metadata"]["name"] == driver
        for kind in ("ConfigMap", "Service"):
            (each,) = server.objects(kind)
            assert each["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
        assert driver in spark_submit(server, "--status", f"default:{driver}")
        spark_submit(server, "--kill", f"default:{driver}")
        eventually(lambda: not server.objects("Pod"), "the driver is deleted")
        eventually(lambda: not server.objects("ConfigMap"), "its objects are deleted with it")
