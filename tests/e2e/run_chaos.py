"""Random deaths and cuts on a dedicated cluster, for as long as requested.

    python -m tests.e2e.run_chaos --seed 17 --kills 100      or for --minutes 60, or --masters 10

First a job runs that writes each row once, with every kind of state, then one with windows that fire
by triggers, calls in flight and functions with timers, then one from topic to topic of Kafka, then
batch jobs, one after the other: each has a part of the kills and of the time. With --only, one kind of job has all of them. Ends with an
error if a row was lost, doubled, taken back or shown too early, or if a batch has other rows than
without faults. Prints who died or was cut off when, and how long it took until rows were committed
again, or the batch had ended.

With --masters, only the job that writes each row once runs, on a cluster whose masters are elected by
three ZooKeeper servers and whose job store is PostgreSQL. That many of each kind of master die, twice
as many tasks fail, and besides leaders are stopped, standbys die, and ZooKeeper has no quorum. It is
also an error if a master's death restarts a task.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import click

from firesteel.client.cluster import LocalCluster
from firesteel.common.config import Configuration
from tests.e2e import every_state, every_trigger
from tests.e2e.batches import batch_jobs
from tests.e2e.chaos import (
    ELECTED,
    HEARTBEAT_TIMEOUT_S,
    KILLS,
    OF_KAFKA,
    Chaos,
    Fault,
    drawn,
    report,
)
from tests.e2e.conftest import SLOTS, WARM_S, Session
from tests.e2e.exactly_once import exactly_once_job
from tests.e2e.kafka_both_ends import both_ends_job
from tests.highly_available import HighlyAvailableCluster
from tests.kafka.broker import Kafka
from tests.postgres import Postgres
from tests.tunnels import PROXY, Tunnels
from tests.waiting import eventually
from tests.zookeeper import ZooKeeper

JOBS = ("state", "triggers", "kafka", "batches")
FAULTS = [fault for fault in Fault if fault not in (*ELECTED, *OF_KAFKA)]


@click.command()
@click.option("--seed", default=lambda: random.randrange(10**6), type=int, help="Who dies when.")
@click.option("--kills", default=20, show_default=True, help="At least so many.")
@click.option("--minutes", default=0.0, help="And for so long.")
@click.option("--only", type=click.Choice(JOBS), help="Only this kind of jobs.")
@click.option(
    "--masters",
    default=0,
    help="Instead: kill as many of each kind of master, where they are elected.",
)
def main(seed: int, kills: int, minutes: float, only: str | None, masters: int) -> None:
    """Kills, stops and cuts off processes of a cluster at random while jobs run."""
    click.echo(f"seed {seed}")
    if masters:
        elected(seed, masters)
        return
    conf = Configuration.load(
        overrides={
            "metrics.reporter.prom.port": "0",
            "heartbeat.interval": "1 s",
            "heartbeat.timeout": f"{HEARTBEAT_TIMEOUT_S:g} s",
        }
    )
    tunnels = Tunnels()
    with tempfile.TemporaryDirectory(prefix="fs-chaos-") as name:
        folder = Path(name)
        server = Postgres()
        try:
            os.environ[PROXY] = tunnels.environment[PROXY]  # until its processes have started
            with LocalCluster(
                conf, task_executors=2, slots=SLOTS // 2, directory=folder
            ) as cluster:
                del os.environ[PROXY]
                cluster.wait_for_slots(timeout_s=WARM_S)
                rage = Rage(Session(cluster), folder, seed, tunnels)
                kinds = [only] if only else JOBS
                for number, kind in enumerate(kinds):
                    share = (kills + number) // len(kinds), minutes * 60 / len(kinds)
                    if kind == "batches":
                        rage.batches(*share)
                    elif kind == "kafka":
                        rage.kafka(*share)
                    else:
                        operators = every_state if kind == "state" else every_trigger
                        rage.stream(server.url, operators, *share)
        finally:
            server.close()
            tunnels.close()


def elected(seed: int, each: int) -> None:
    some = (each + 2) // 3
    faults = {
        Fault.TASK: 2 * each,
        Fault.JOB_MASTER: each,
        Fault.DISPATCHER: each,
        Fault.RESOURCE_MANAGER: each,
        Fault.ZOOKEEPER: each,
        Fault.SLOT: some,
        Fault.TASK_EXECUTOR: some,
        Fault.ZOMBIE_JOB_MASTER: some,
        **{fault: some for fault in ELECTED if fault is not Fault.ZOOKEEPER},
    }
    with contextlib.ExitStack() as stack:
        zookeeper, store = ZooKeeper(), Postgres()
        stack.callback(zookeeper.close)
        stack.callback(store.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fs-chaos-")))
        (folder / "cluster").mkdir()
        overrides = {
            "high-availability.cluster-id": folder.name,
            "high-availability.zookeeper.client.session-timeout": "3 s",
            "heartbeat.interval": "1 s",
            "heartbeat.timeout": f"{HEARTBEAT_TIMEOUT_S:g} s",
            "database.url": store.url.replace("postgresql://", "postgresql+psycopg2://"),
        }
        cluster = stack.enter_context(
            HighlyAvailableCluster(zookeeper, folder / "cluster", overrides=overrides)
        )
        cluster.wait_for_slots(timeout_s=WARM_S)
        rage = Rage(Session(cluster), folder, seed, zookeeper=zookeeper)
        rage.masters(store.url, faults)


class Rage:
    def __init__(
        self,
        session: Session,
        folder: Path,
        seed: int,
        tunnels: Tunnels | None = None,
        zookeeper: ZooKeeper | None = None,
    ) -> None:
        self._session, self._folder, self._seed = session, folder, seed
        self._tunnels, self._zookeeper = tunnels, zookeeper
        self._random = random.Random(seed)

    def stream(self, postgres: str, operators: ModuleType, kills: int, for_s: float) -> None:
        name = operators.__name__.rpartition(".")[2]
        folder = self._folder / name
        folder.mkdir()
        enough_for_s = max(600.0, kills * 60.0, 2 * for_s)
        with exactly_once_job(
            self._session, folder, postgres, enough_for_s=enough_for_s, operators=operators
        ) as job:
            click.echo(
                f"a stream with {name.replace('_', ' ')}; from each fault until it commits rows again:"
            )
            job.progress("the start")
            chaos = Chaos(self._session, job, self._seed, self._tunnels)
            self._inject(chaos, FAULTS, kills, for_s)
        self._at_rest("every row counts once")

    def kafka(self, kills: int, for_s: float) -> None:
        folder = self._folder / "kafka"
        folder.mkdir()
        with Kafka() as kafka, both_ends_job(self._session, kafka, folder) as job:
            click.echo("from topic to topic; from each fault until records are visible again:")
            job.progress("the start")
            chaos = Chaos(self._session, job, self._seed, self._tunnels)
            self._inject(chaos, [*FAULTS, *OF_KAFKA], kills, for_s)
        self._at_rest("every record is visible once, and no transaction is open")

    def masters(self, postgres: str, faults: dict[Fault, int]) -> None:
        folder = self._folder / "stream"
        folder.mkdir()
        count = sum(faults.values())
        with exactly_once_job(
            self._session, folder, postgres, enough_for_s=count * 30.0, operators=every_state
        ) as job:
            click.echo(f"a stream and {count} faults; from each until it commits rows again:")
            job.progress("the start")
            chaos = Chaos(self._session, job, self._seed, zookeeper=self._zookeeper)
            try:
                for fault in drawn(self._seed, faults):
                    chaos.inject(fault)
                    click.echo(report(chaos.happened[-1:]).splitlines()[0])
            finally:
                click.echo(report(chaos.happened))
        self._at_rest("every row counts once, and no death of a master has restarted a task")

    def batches(self, kills: int, for_s: float) -> None:
        folder = self._folder / "batches"
        folder.mkdir()
        with batch_jobs(self._session, folder) as jobs:
            click.echo("batches; from each fault until the batch has ended:")
            chaos = Chaos(self._session, jobs, self._seed, self._tunnels)
            self._inject(chaos, FAULTS, kills, for_s)
        self._at_rest("every batch has its rows")

    def _inject(self, chaos: Chaos, faults: Sequence[Fault], kills: int, for_s: float) -> None:
        until = time.monotonic() + for_s
        try:
            while sum(h.fault in KILLS for h in chaos.happened) < kills or time.monotonic() < until:
                chaos.inject(self._random.choice(faults))
                click.echo(report(chaos.happened[-1:]).splitlines()[0])
        finally:
            click.echo(report(chaos.happened))

    def _at_rest(self, verdict: str) -> None:
        eventually(lambda: self._session.free_slots() == SLOTS, "every slot is free")
        click.echo(verdict)


if __name__ == "__main__":
    main()
