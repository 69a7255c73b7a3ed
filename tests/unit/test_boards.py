"""The boards of Grafana and the alerts of Prometheus: what they name exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from firesteel.common.metric_reference import documents
from scripts.boards.grafana import BOARDS, FOLDER, boards

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
UNITS = {"short", "ms", "ns", "bytes", "Bps", "cps", "ops", "percentunit"}  # Grafana's ids
BOARD_UIDS = [board.uid for board in BOARDS]


def read(uid: str) -> dict[str, Any]:
    board: dict[str, Any] = json.loads((FOLDER / f"{uid}.json").read_text())
    return board


def undocumented(expression: str) -> list[str]:
    names = re.findall(r"\bflink_\w+", re.sub(r'__name__=~"[^"]*"', "", expression))
    return [name for name in names if not documents(name)]


def test_the_boards_are_up_to_date() -> None:
    files = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert files == boards(), "run `make reference`"


@pytest.mark.parametrize("uid", BOARD_UIDS)
def test_a_board_selects_by_its_variables_and_names_documented_metrics(uid: str) -> None:
    board = read(uid)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
    assert len(places) == len(set(places))
    for variable in board["templating"]["list"]:
        assert undocumented(variable["definition"]) == []
    for panel in board["panels"]:
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        for target in panel["targets"]:
            expression = target["expr"]
            assert undocumented(expression) == []
            for selector in re.findall(r"\{[^}]*\}", expression):
                assert 'cluster=~"$cluster"' in selector or 'job="firesteel"' in selector
            bare = re.findall(r"\bflink_\w+\b(?!\{)", re.sub(r'"[^"]*"', "", expression))
            assert bare == [], expression


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_names_documented_metrics_and_its_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    annotations = rule["annotations"]
    assert annotations["summary"] and annotations["description"].endswith(".")
    path, _, anchor = annotations["runbook_url"].partition("#")
    headings = re.findall(r"^## (\w+)$", (ROOT / path).read_text(), re.M)
    assert anchor == rule["alert"].lower()
    assert rule["alert"] in headings
    assert undocumented(rule["expr"]) == []


def test_every_runbook_has_an_alert() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/how-to/runbooks.md").read_text(), re.M)
    assert sorted(headings) == sorted(rule["alert"] for rule in ALERTS)
