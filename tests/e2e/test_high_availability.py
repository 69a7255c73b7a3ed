"""Two Dispatchers and two ResourceManagers, and real ZooKeeper servers that elect the leaders."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import xxhash
from kazoo.client import KazooClient
from kazoo.security import CREATOR_ALL_ACL

from firesteel import Environment
from firesteel._proto import dispatcher_pb2
from firesteel.client.cli.arguments import find_cluster
from firesteel.client.client import Client
from firesteel.client.cluster import LocalCluster
from firesteel.client.files import python_file
from firesteel.common.config import Configuration, options
from firesteel.common.ids import Epoch
from firesteel.common.leader import Leader
from firesteel.common.process import BlockingChild, StartFailed, spawn_blocking
from firesteel.common.states import JobStatus
from firesteel.connectors import CollectSink
from firesteel.errors import ClusterUnreachable
from tests.compose import commands
from tests.credentials import scrape
from tests.e2e.conftest import WARM_S, attempt_ids, firesteel, job_masters, running
from tests.e2e.jobs import nothing_left, unhurried
from tests.long import long_after
from tests.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore
from tests.postgres import Postgres
from tests.waiting import PATIENCE_S, eventually
from tests.zookeeper import ZooKeeper

SESSION_S = 3.0


@dataclass
class Masters:
    """The processes of one kind, in one folder."""

    module: str
    directory: Path
    arguments: list[str]
    environment: dict[str, str]  # with secrets
    lifeline: int
    by_address: dict[str, BlockingChild] = field(default_factory=dict)

    def start(self, *options: str, machine: str = "") -> str:
        """Returns its address. `machine` names a separate folder to use instead of the shared one."""
        directory = self.directory / machine
        directory.mkdir(exist_ok=True)
        child = spawn_blocking(
            [
                *(sys.executable, "-m", self.module, *self.arguments),
                *("--dir", str(directory), *options),
            ],
            log_path=directory / f"{self.module}-{len(self.by_address)}.log",
            env=self.environment,
            cwd=directory if machine else None,
            lifeline=self.lifeline,
        )
        self.by_address[child.ready["address"]] = child
        return str(child.ready["address"])

    def kill(self, address: str) -> None:
        self.by_address[address].process.kill()
        self.by_address[address].process.wait()

    def wait(self) -> None:
        for child in self.by_address.values():
            child.process.wait(timeout=PATIENCE_S)


@dataclass
class HighlyAvailable:
    conf: Configuration
    dispatchers: Masters
    resource_managers: Masters

    def client(self) -> Client:
        """Returns a client that knows only the quorum."""
        found = find_cluster(None, self.conf)
        assert found is not None
        return Client(found.address, conf=self.conf)


@contextmanager
def masters(
    zookeeper: ZooKeeper, directory: Path, more: Mapping[str, str] | None = None
) -> Iterator[HighlyAvailable]:
    """All processes end with the `with` block, including the processes that they started."""
    conf = Configuration(
        {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": zookeeper.quorum,
            "high-availability.zookeeper.client.session-timeout": f"{SESSION_S} s",
            "high-availability.cluster-id": directory.name,
            "taskmanager.numberOfTaskSlots": "1",
            "metrics.reporter.prom.port": "0",
            "jobmanager.rpc.port": "0",
            **(more or {}),
        }
    )
    read, write = os.pipe()
    arguments, environment = conf.to_arguments(), dict(os.environ) | conf.to_environment()
    cluster = HighlyAvailable(
        conf,
        Masters("dispatcher", directory, arguments, environment, read),
        Masters(
            "resourcemanager", directory, [*arguments, "--task-executors=1"], environment, read
        ),
    )
    try:
        yield cluster
    finally:
        os.close(write)
        os.close(read)
        cluster.dispatchers.wait()
        cluster.resource_managers.wait()
        eventually(lambda: not _processes_in(directory), "every process has ended")


def _processes_in(directory: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            # JobMasters know no folder, only the cluster's id.
            if any(directory.name in argument for argument in process.cmdline()):
                found.append(process)
        except psutil.Error:
            pass
    return found


def checkpointed(directory: Path) -> Environment:
    """Two tasks, whose job takes checkpoints and ends when it is cancelled."""
    configuration = {
        "execution.checkpointing.interval": "200 ms",
        "execution.checkpointing.dir": str(directory),
    }
    env = Environment(parallelism=1, configuration=configuration)
    unhurried(env).rebalance().map_in_arrow(nothing_left, name="Discard").print()
    return env


def leads(client: Client) -> bool:
    """Whether the Dispatcher at the client's address does."""
    with contextlib.suppress(ClusterUnreachable):
        return client.list_jobs() == []
    return False


def test_a_job_does_not_notice_the_deaths_of_leaders(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with masters(zookeeper, tmp_path) as cluster:
        dispatchers, resource_managers = cluster.dispatchers, cluster.resource_managers
        for _ in range(2):
            resource_managers.start()
            dispatchers.start()
        with cluster.client() as client:
            eventually(
                lambda: client.cluster_overview().slots_warm == 1, "a slot", patience_s=WARM_S
            )
            job_id = client.submit(checkpointed(tmp_path / "checkpoints").job_graph("endless"))
            watched = client.watch_job(job_id)
            details = next(d for d in watched if running(d))
            before = attempt_ids(details)

            eventually(
                lambda: (
                    sorted((each.office, each.leads) for each in client.cluster_overview().masters)
                    == [
                        ("dispatcher", False),
                        ("dispatcher", True),
                        ("job_master", True),
                        ("resource_manager", False),
                        ("resource_manager", True),
                    ]
                ),
                "leaders and standbys are listed",
            )
            overview = client.cluster_overview()
            assert all((each.epoch > 0) == each.leads for each in overview.masters)
            resource_managers.kill(overview.resource_manager_address)
            (other,) = set(resource_managers.by_address) - {overview.resource_manager_address}
            eventually(
                lambda: client.cluster_overview().resource_manager_address == other,
                "the other ResourceManager leads",
            )
            eventually(
                lambda: client.cluster_overview().slots_total == 1, "it knows the TaskExecutor"
            )

            leader = client._connection._leader
            assert leader is not None
            os.kill(job_masters(tmp_path, job_id)[1], signal.SIGKILL)
            dispatchers.kill(leader.address)
            eventually(lambda: 2 in job_masters(tmp_path, job_id), "another JobMaster has the job")
            eventually(lambda: running(client.job_details(job_id)), "all tasks run")
            follower = client._connection._leader
            assert follower is not None and follower.epoch > leader.epoch
            assert follower.address in set(dispatchers.by_address) - {leader.address}
            details = next(d for d in watched if running(d))
            assert attempt_ids(details) == before
            client.cancel(job_id)
            assert [d.status for d in watched][-1] is JobStatus.CANCELED


@pytest.fixture
def job_store() -> Iterator[str]:
    """The URL of an empty one, in PostgreSQL."""
    server = Postgres()
    yield server.url.replace("postgresql://", "postgresql+psycopg2://")
    server.close()


@pytest.mark.parametrize("kind", long_after(1, ["object store", "mounted"]))
def test_a_leader_on_another_machine_has_the_files_and_rows_of_jobs(
    zookeeper: ZooKeeper, job_store: str, object_store: ObjectStore, tmp_path: Path, kind: str
) -> None:
    mounted = kind == "mounted"
    more = {
        "database.url": job_store,
        "s3.access-key": ACCESS_KEY,
        "s3.secret-key": SECRET_KEY,
        "high-availability.storageDir": (
            f"file://{tmp_path}/storage" if mounted else object_store.uri("ha")
        ),
    }
    shipped = tmp_path / "shipped.py"
    shipped.write_text("ONE = 1\n")
    with masters(zookeeper, tmp_path, more) as cluster:
        dispatchers = cluster.dispatchers
        machines = {dispatchers.start(machine=name): name for name in ("first", "second")}
        cluster.resource_managers.start()
        with cluster.client() as client:
            eventually(
                lambda: client.cluster_overview().slots_warm == 1, "a slot", patience_s=WARM_S
            )
            env = Environment(parallelism=1)
            env.from_sequence(0, 99).sink_to(CollectSink())
            graph = env.job_graph("collects")
            collects = client.submit(graph, [python_file(str(shipped))])
            client.wait(collects)
            endless = client.submit(checkpointed(tmp_path / "checkpoints").job_graph("endless"))
            watched = client.watch_job(endless)
            before = attempt_ids(next(d for d in watched if running(d)))

            leader = client._connection._leader
            assert leader is not None
            dispatcher = psutil.Process(dispatchers.by_address[leader.address].process.pid)
            on_machine = dispatcher.children(recursive=True)  # JobMasters, also those without a job
            dispatchers.kill(leader.address)
            for process in on_machine:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            eventually(lambda: 2 in job_masters(tmp_path, endless), "another JobMaster has the job")
            eventually(lambda: running(client.job_details(endless)), "all tasks run")
            follower = client._connection._leader
            assert follower is not None and machines[follower.address] != machines[leader.address]
            on_follower = tmp_path / machines[follower.address]
            assert 2 in job_masters(on_follower, endless), "it runs on the follower's machine"
            assert attempt_ids(client.job_details(endless)) == before

            (sink,) = [
                operator.operator_id
                for vertex in graph.vertices
                for operator in vertex.operators
                if operator.coordinator_kind == "collect"
            ]
            rows = client.fetch_table(collects, sink)["value"].to_pylist()
            assert sorted(rows) == list(range(99))
            blob = xxhash.xxh3_128_hexdigest(shipped.read_bytes())
            asked = dispatcher_pb2.DownloadBlobRequest(hash=blob)
            content = b"".join(chunk.data for chunk in client._dispatcher.DownloadBlob(asked))
            assert content == shipped.read_bytes()
            kept = {
                path.parent for name in ("blobs", "spool") for path in tmp_path.glob(f"*/{name}")
            }
            own = {tmp_path / name for name in machines.values()}
            assert kept & (own | {tmp_path / "storage"}) == (
                {tmp_path / "storage"} if mounted else own
            )
            client.cancel(endless)
            assert [d.status for d in watched][-1] is JobStatus.CANCELED


def test_a_dispatcher_with_separate_storage_does_not_start(
    zookeeper: ZooKeeper, job_store: str, tmp_path: Path
) -> None:
    with masters(zookeeper, tmp_path, {"database.url": job_store}) as cluster:
        cluster.dispatchers.start(machine="first")
        with cluster.client() as client:
            assert client.list_jobs() == []
            with pytest.raises(
                StartFailed, match=f"{tmp_path}/second does not contain the files and"
            ):
                cluster.dispatchers.start(machine="second")
            assert client.list_jobs() == []


def test_a_standby_names_the_leader(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with masters(zookeeper, tmp_path) as cluster:
        first = cluster.dispatchers.start()
        with cluster.client():
            second = cluster.dispatchers.start()
        with Client(second, conf=cluster.conf) as client:

            def refusal() -> str:
                with pytest.raises(ClusterUnreachable) as error:
                    client.list_jobs()
                return str(error.value)

            eventually(lambda: f"the leader is {first} (epoch 1)" in refusal(), "it names it")
            assert refusal().startswith("this Dispatcher is a standby, not the leader")
            assert (is_leader(cluster, first), is_leader(cluster, second)) == (True, False)
            cluster_id = cluster.conf.get(options.HA_CLUSTER_ID)
            (listing,) = (each for each in commands() if " -z " in each)  # of docker-compose.yml
            here = listing.replace("zookeeper-1:2181/compose", f"{zookeeper.quorum}/{cluster_id}")
            listed = firesteel(*shlex.split(here)[1:])
            assert (listed.returncode, listed.stderr) == (0, "")
            assert "No running jobs." in listed.stdout
            cluster.dispatchers.by_address[first].process.send_signal(signal.SIGTERM)
            eventually(lambda: leads(client), "it leads")
            assert is_leader(cluster, second)


def is_leader(cluster: HighlyAvailable, dispatcher: str) -> bool:
    """Returns the metric of the Dispatcher at this address."""
    metrics = scrape(cluster.dispatchers.by_address[dispatcher].ready["metrics_address"])
    (value,) = re.findall(
        r'^flink_jobmanager_isLeader\{.*office="dispatcher"\} (\S+)$', metrics, re.M
    )
    return float(value) == 1


def test_a_leader_that_was_stopped_and_resumed_no_longer_leads(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    with masters(zookeeper, tmp_path) as cluster:
        first = cluster.dispatchers.start()
        with cluster.client() as client:
            assert client.list_jobs() == []
            second = cluster.dispatchers.start()
            stopped = cluster.dispatchers.by_address[first].process
            with Client(first, conf=cluster.conf) as late, ThreadPoolExecutor(1) as threads:
                stopped.send_signal(signal.SIGSTOP)
                try:
                    asked = threads.submit(late.list_jobs)  # it waits where the leader will find it
                    with Client(second, conf=cluster.conf) as other:
                        eventually(lambda: leads(other), "the other one leads")
                finally:
                    stopped.send_signal(signal.SIGCONT)
                with pytest.raises(ClusterUnreachable, match="this Dispatcher"):
                    asked.result()
            assert stopped.wait(timeout=PATIENCE_S) == 1
            log = (tmp_path / "dispatcher-0.log").read_text()
            assert "the Dispatcher with epoch 1 no longer leads" in log
            assert 'event="refused a master that was replaced" what="answer to ListJobs"' in log
            assert "sender=Dispatcher epoch=1" in log
            assert client.list_jobs() == []
            assert client._connection._leader == Leader(second, Epoch(2))


def test_a_cluster_of_this_machine_elects_its_masters(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    keys = {"high-availability.type": "zookeeper", "metrics.reporter.prom.port": "0"}
    keys["high-availability.zookeeper.quorum"] = zookeeper.quorum
    keys["high-availability.zookeeper.client.session-timeout"] = f"{SESSION_S} s"
    keys["high-availability.cluster-id"] = tmp_path.name
    with LocalCluster(Configuration(keys), task_executors=0, directory=tmp_path) as cluster:
        assert cluster.address == f"zookeeper://{zookeeper.quorum}/firesteel/{tmp_path.name}"
        client = cluster.client()
        assert client.list_jobs() == []
        before = client._connection._leader
        (dispatcher,) = [p for p in _processes_in(tmp_path) if "dispatcher" in p.cmdline()]
        dispatcher.kill()
        dispatcher.wait()
        assert client.list_jobs() == []  # of the one that the supervisor has started
        client._connection.follow()  # it has the address of the one before
        after = client._connection._leader
        assert before is not None and after is not None and after.epoch == before.epoch + 1


def test_what_cannot_be_reached_is_named_within_seconds(tmp_path: Path) -> None:
    quorum = "127.0.0.1:1,127.0.0.1:2"
    named = "ZooKeeper cannot be reached: no quorum of 127.0.0.1:1, 127.0.0.1:2 has answered"

    def start(module: str) -> None:
        with pytest.raises(StartFailed, match=named):
            spawn_blocking(
                [
                    *(sys.executable, "-m", module, "--dir", str(tmp_path), "--port=0"),
                    *("-D", "high-availability.type=zookeeper"),
                    *("-D", f"high-availability.zookeeper.quorum={quorum}"),
                    *("-D", "metrics.reporter.prom.port=0"),
                ],
                log_path=tmp_path / f"{module}.log",
            )
        assert "Traceback" not in (tmp_path / f"{module}.log").read_text()

    with ThreadPoolExecutor(2) as threads:
        started = [threads.submit(start, module) for module in ("dispatcher", "resourcemanager")]
        with pytest.raises(ClusterUnreachable, match=named):
            Client(f"zookeeper://{quorum}/firesteel/default")
    for process in started:
        process.result()


def test_a_part_of_zookeeper_that_is_not_this_clusters_is_named(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    """Nobody may write there, or a cluster with another job store does."""
    guarded = KazooClient(zookeeper.quorum, auth_data=[("digest", "owner:secret")])
    guarded.start()
    guarded.create("/guarded", acl=CREATOR_ALL_ACL)
    guarded.stop()
    guarded.close()
    with masters(zookeeper, tmp_path) as cluster:
        cluster.dispatchers.start()
        problem = r"does not permit anybody to change /guarded/.*; check high-availability"
        with pytest.raises(StartFailed, match=problem):
            cluster.resource_managers.start(
                "-D", "high-availability.zookeeper.path.root=/guarded", machine="guarded"
            )
        with pytest.raises(StartFailed, match="another cluster uses /firesteel/.*job store"):
            cluster.dispatchers.start(machine="other")
