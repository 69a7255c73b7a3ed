"""The manifests of deploy/kubernetes are up to date with the builder of a cluster's objects."""

from __future__ import annotations

import pytest
import yaml

import firesteel
from scripts.kubernetes_manifests import CHART, FOLDER, files

FILES = files()


@pytest.mark.parametrize("path", FILES)
def test_a_manifest_is_up_to_date(path: str) -> None:
    assert (FOLDER / path).read_text() == FILES[path], "run `make reference`"


def test_the_chart_installs_this_version() -> None:
    chart = yaml.safe_load((FOLDER / CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == firesteel.__version__


def test_there_are_no_other_manifests() -> None:
    found = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.yaml")}
    assert {path for path in found if not path.startswith("helm/")} == {
        path for path in FILES if path.endswith(".yaml")
    }
