"""The same work on Firesteel, Spark Structured Streaming and Flink: see `rows`. PyFlink's environment has nothing of ours,
so nothing is imported here.
"""

from __future__ import annotations

from typing import Any


def run() -> list[dict[str, Any]]:
    from benchmarks.peers import rows

    return rows.run()
