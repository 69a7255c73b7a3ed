"""Unaligned checkpoints under back-pressure: two subtasks after a full exchange take 1,000 rows
per second together, so that an aligned barrier would wait for minutes.
"""

from __future__ import annotations

from typing import Any

from benchmarks.checkpoints import jobs
from benchmarks.checkpoints.functions import slow
from firesteel import Environment
from firesteel.common.config import options
from firesteel.connectors import DiscardSink

PARALLELISM = 2
ROWS_PER_S = 1_000
CHECKPOINTS = 30
WARM = 2
GOAL_MS = 1_000
FULL_MS = 3_000  # total wait of the source before checkpoints count


def run(share: float = 1.0) -> list[dict[str, Any]]:
    count = jobs.scaled(CHECKPOINTS, share, least=3)
    with jobs.folder() as directory, jobs.cluster(slots=PARALLELISM) as cluster:
        unaligned = {options.CHECKPOINT_UNALIGNED.key: "true"}
        env = Environment(
            parallelism=PARALLELISM, configuration=jobs.settings(directory, "1 s", **unaligned)
        )
        keyed = env.from_sequence(0, 10**12).key_by("value")
        keyed.map_in_arrow(slow(ROWS_PER_S // PARALLELISM), name="Slow").sink_to(DiscardSink())
        client = cluster.client()
        job_id = client.submit(env.job_graph("unaligned"))
        full = jobs.wait_until(
            client, job_id, lambda d: d.vertices[0].metrics.back_pressured_ms >= FULL_MS
        )
        before = max((c.checkpoint_id for c in full.checkpoints), default=0)
        with jobs.Watched(client, job_id) as watched:
            jobs.wait(
                lambda: sum(c.checkpoint_id > before for c in watched.complete) >= WARM + count,
                f"{WARM + count} complete checkpoints after a full exchange",
                timeout_s=jobs.TIMEOUT_S + 5 * count,
            )
            found = [c for c in watched.complete if c.checkpoint_id > before][WARM:]
        jobs.end(client, job_id)
    took_ms = [float(checkpoint.duration_ms) for checkpoint in found]
    size_mb = max(checkpoint.size_bytes for checkpoint in found) / 1e6
    return [
        jobs.row(
            "unaligned checkpoint after a full exchange, a sink of 1,000 rows/s: worst",
            f"{max(took_ms):.0f}",
            f"ms (of {len(found)}: median {jobs.percentile(took_ms, 50):.0f};"
            f" at most {size_mb:.1f} MB each)",
            f"<= {GOAL_MS} ms",
            met=max(took_ms) <= GOAL_MS,
        )
    ]


if __name__ == "__main__":
    for measured in run():
        print(measured)
