"""The files that Grafana reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.boards import checkpoints, cluster, job, slots, sources
from scripts.boards.panels import Board, Panel

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"
BOARDS = (cluster.BOARD, job.BOARD, checkpoints.BOARD, sources.BOARD, slots.BOARD)
SOURCE = {"type": "prometheus", "uid": "prometheus"}
HEIGHT = 8
STAT_HEIGHT = 4
COLUMNS = 24


def board_json(board: Board) -> dict[str, Any]:
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": ["firesteel"],
        "schemaVersion": 41,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "tags": ["firesteel"],
                "title": "Boards",
                "includeVars": True,
                "keepTime": True,
                "asDropdown": False,
            }
        ],
        "templating": {"list": list(_variables(board))},
        "panels": list(_panels(board)),
    }


def _variables(board: Board) -> Iterator[dict[str, Any]]:
    before: list[str] = []
    for variable in board.variables:
        query = f"label_values({variable.metric}{{{','.join(before)}}}, {variable.of})"
        before.append(f'{variable.of}=~"${variable.name}"')
        yield {
            "name": variable.name,
            "label": variable.label,
            "type": "query",
            "datasource": SOURCE,
            "definition": query,
            "query": {"query": query, "refId": variable.name},
            "refresh": 2,
            "sort": 1,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _panels(board: Board) -> Iterator[dict[str, Any]]:
    number = top = 0
    for title, panels in board.rows.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top},
        }
        top += 1
        height, per_line = (STAT_HEIGHT, 6) if panels[0].kind == "stat" else (HEIGHT, 2)
        width = COLUMNS // per_line
        for index, panel in enumerate(panels):
            number += 1
            line, column = divmod(index, per_line)
            place = {"h": height, "w": width, "x": column * width, "y": top + line * height}
            yield {"id": number, **_panel(board, panel), "gridPos": place}
        top += -(-len(panels) // per_line) * height


def _panel(board: Board, panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    options: dict[str, Any]
    if panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"}
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if panel.red_from is not None:
            steps.append({"color": "red", "value": panel.red_from})
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    else:
        options = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
        if not panel.signed:
            defaults["min"] = 0
        defaults["custom"] = {
            "fillOpacity": 20 if panel.stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none"},
        }
    if panel.link:
        defaults["links"] = [
            {
                "title": "Open the job",
                "url": f"/d/{panel.link}?var-job=${{__field.labels.job_name}}"
                "&${__url_time_range}",
            }
        ]
    return {
        "title": panel.title,
        "description": panel.description,
        "type": panel.kind,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "expr": board.expression(query),
                "legendFormat": legend or "__auto",
            }
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def boards() -> dict[str, str]:
    """Returns the files by name."""
    return {f"{board.uid}.json": json.dumps(board_json(board), indent=2) + "\n" for board in BOARDS}
