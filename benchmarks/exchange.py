"""Compares the exchange between two processes with bare Arrow Flight, and that over TLS with plain
connections, with the same batches.

Parent: consumer. Child: producer, serving Firesteel's exchange and a bare Flight server (DoExchange
and DoGet). The runs alternate, so that other load on the machine affects all of them; medians are
compared. The rows of every run are counted; a first, untimed pass compares the sums of all columns.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from firesteel.common.config import options
from firesteel.common.job_graph import DistributionPattern, Partitioner
from firesteel.common.security import job_keys
from firesteel.common.security.authority import CertificateAuthority
from firesteel.common.security.credentials import Certificate
from firesteel.common.security.roles import Role
from firesteel.elements import EndOfPartition
from taskexecutor.executor.exchange import Exchange, Locations
from taskexecutor.executor.exchange.security import ExchangeSecurity

ROUNDS = 3
CHECKED_ROWS = 1_000_000
SIZES = (
    ("64 k-row batches", 65536, 32 * 2**20),
    ("1 k-row batches", 1000, 24_000_000),
)  # name, rows per batch, total rows
GOAL = 0.7
TLS_GOAL = 0.6  # of plain connections, with one core for each process
_CREDENTIALS = "FIRESTEEL_BENCHMARK_CERTIFICATE"

Consume = Callable[[pa.RecordBatch], None]


def run() -> list[dict[str, Any]]:
    """Returns one row per batch size, and the same over TLS."""
    with _consumer() as consumer:
        measured = [_measure(consumer, name, batch_rows, rows) for name, batch_rows, rows in SIZES]
    pinned = subprocess.run(
        [sys.executable, "-m", "benchmarks.exchange", "--over-tls"],
        stdout=subprocess.PIPE,
        check=True,
    )
    return [*measured, *json.loads(pinned.stdout)]


@contextlib.contextmanager
def _consumer(
    certificate: Certificate | None = None, core: int | None = None
) -> Iterator[_Consumer]:
    """A consumer whose producer runs on a core, and serves over TLS with a certificate."""
    credentials = {} if certificate is None else {_CREDENTIALS: json.dumps(_texts(certificate))}
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.exchange",
            "--produce",
            *([str(core)] if core is not None else []),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **credentials},
    )
    try:
        assert child.stdout is not None
        ready = json.loads(child.stdout.readline())
        consumer = _Consumer(ready["exchange"], ready["flight"], child, certificate)
        try:
            yield consumer
        finally:
            consumer.close()
    finally:
        child.kill()
        child.wait()


def _over_tls() -> list[dict[str, Any]]:
    """Returns one row per batch size. Producer and consumer have a core each."""
    here, there = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, {here})
    authority, _ = CertificateAuthority.create(now_s=time.time)
    own = authority.certify("slot", Role.SLOT, hosts=("127.0.0.1",), valid_s=3600)
    measured = []
    with _consumer(core=there) as plain, _consumer(own, core=there) as over_tls:
        for name, batch_rows, rows in SIZES:
            rates: dict[str, list[float]] = {"plain": [], "tls": []}
            for _ in range(ROUNDS):
                rates["plain"].append(_rate(plain.ours, batch_rows, rows))
                rates["tls"].append(_rate(over_tls.ours, batch_rows, rows))
            tls, peer = (round(statistics.median(rates[way]), 2) for way in ("tls", "plain"))
            measured.append(
                {
                    "name": f"exchange over TLS, {name}",
                    "ours": tls,
                    "unit": "M rows/s",
                    "peers": {"plain": peer},
                    "ratio": round(tls / peer, 3),
                    "goal": f">= {TLS_GOAL}",
                    "met": tls >= TLS_GOAL * peer,
                }
            )
    return measured


def _measure(consumer: _Consumer, name: str, batch_rows: int, rows: int) -> dict[str, Any]:
    ways = {"ours": consumer.ours, "DoExchange": consumer.do_exchange, "DoGet": consumer.do_get}
    sums = {way: _sums(read, batch_rows) for way, read in ways.items()}
    if len(set(sums.values())) != 1:
        raise AssertionError(f"the results differ: {sums}")
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, read in ways.items():
            rates[way].append(_rate(read, batch_rows, rows))
    ours, do_exchange, do_get = (round(statistics.median(rates[way]), 2) for way in ways)
    peer = max(do_exchange, do_get)
    return {
        "name": f"exchange, {name}",
        "ours": ours,
        "unit": "M rows/s",
        "peers": {"arrow flight": peer},
        "ratio": round(ours / peer, 3),
        "goal": f">= {GOAL}",
        "met": ours >= GOAL * peer,
    }


def _sums(read: Callable[[int, int, Consume], None], batch_rows: int) -> tuple[float, ...]:
    totals = [0.0] * 4

    def add(batch: pa.RecordBatch) -> None:
        for i, column in enumerate(batch.columns):
            totals[i] += float(pc.sum(column).as_py())

    read(batch_rows, CHECKED_ROWS, add)
    return tuple(round(total) for total in totals)  # floats: summed in a different order


def _rate(read: Callable[[int, int, Consume], None], batch_rows: int, rows: int) -> float:
    """Returns million rows per second, from the request to the last row."""
    seen = 0

    def count(batch: pa.RecordBatch) -> None:
        nonlocal seen
        seen += batch.num_rows

    started = time.perf_counter()
    read(batch_rows, rows, count)
    elapsed_s = time.perf_counter() - started
    expected = sum(batch.num_rows for batch in _batches(batch_rows, rows))
    if seen != expected:
        raise AssertionError(f"received {seen} rows of {expected}")
    return seen / elapsed_s / 1e6


class _Consumer:
    def __init__(
        self,
        exchange_address: str,
        flight_address: str,
        child: subprocess.Popen[str],
        certificate: Certificate | None,
    ) -> None:
        self._address = exchange_address
        self._client = flight.FlightClient(f"grpc://{flight_address}")
        self._child = child
        self._exchange = _new_exchange(certificate)
        self._results = itertools.count()

    def close(self) -> None:
        self._client.close()
        self._exchange.close()

    def ours(self, batch_rows: int, rows: int, consume: Consume) -> None:
        assert self._child.stdin is not None
        result_id = f"result-{next(self._results)}"
        self._child.stdin.write(
            json.dumps({"result_id": result_id, "batch_rows": batch_rows, "rows": rows}) + "\n"
        )
        self._child.stdin.flush()
        arrived = threading.Event()
        gate = self._exchange.create_gate(
            job_id="job",
            result_id=result_id,
            consumer=0,
            producers=1,
            consumers=1,
            pattern=DistributionPattern.POINTWISE,
            locations=Locations((self._address,), [0], [0]),
            on_available=arrived.set,
        )
        while True:
            polled = gate.poll()
            if polled is None:
                arrived.wait()
                arrived.clear()
            elif isinstance(polled[1], pa.RecordBatch):
                consume(polled[1])
            elif isinstance(polled[1], EndOfPartition):
                break
        gate.close()

    def do_exchange(self, batch_rows: int, rows: int, consume: Consume) -> None:
        writer, reader = self._client.do_exchange(
            flight.FlightDescriptor.for_command(_encoded(batch_rows, rows))
        )
        writer.done_writing()
        _read(reader, consume)
        writer.close()

    def do_get(self, batch_rows: int, rows: int, consume: Consume) -> None:
        _read(self._client.do_get(flight.Ticket(_encoded(batch_rows, rows))), consume)


def _read(reader: Any, consume: Consume) -> None:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        consume(chunk.data)


class _BareServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        batches = _batches(*json.loads(descriptor.command))
        first = next(batches)
        writer.begin(first.schema)
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)

    def do_get(self, context: Any, ticket: Any) -> Any:
        request = json.loads(ticket.ticket)
        return flight.GeneratorStream(next(_batches(*request)).schema, _batches(*request))


def _encoded(batch_rows: int, rows: int) -> bytes:
    return json.dumps([batch_rows, rows]).encode()


_made: dict[int, list[pa.RecordBatch]] = {}


def _batches(batch_rows: int, rows: int) -> Iterator[pa.RecordBatch]:
    """Returns three int64 columns and one float64 column; a few distinct batches, repeated."""
    if batch_rows not in _made:
        random = np.random.default_rng(1)
        _made[batch_rows] = [
            pa.record_batch(
                {
                    "key": random.integers(0, 1000, batch_rows),
                    "sequence": np.arange(batch_rows) + i * batch_rows,
                    "time": random.integers(0, 10**6, batch_rows),
                    "value": random.integers(0, 100, batch_rows).astype(np.float64),
                }
            )
            for i in range(8)
        ]
    return itertools.islice(itertools.cycle(_made[batch_rows]), -(-rows // batch_rows))


def _texts(certificate: Certificate) -> dict[str, str]:
    return {
        "certificate": certificate.certificate.decode(),
        "key": certificate.key.decode(),
        "authority": certificate.authority.decode(),
    }


def _new_exchange(certificate: Certificate | None) -> Exchange:
    """As slots have it: with `certificate`, callers prove that they work for the job."""
    secret = b"secret"
    keys = job_keys.issue(secret, "job", 1, now_s=time.time())
    security = ExchangeSecurity(
        keys_of=lambda job_id: keys,
        find=lambda *key: job_keys.derive(secret, *key),
        certificate=certificate,
    )
    return Exchange(
        security=security if certificate else None,
        host="127.0.0.1",
        window_bytes=options.CHANNEL_WINDOW.default,
        batch_rows=options.BATCH_ROWS.default,
        partition_timeout_s=options.PARTITION_TIMEOUT.default,
    )


def _produce(core: int | None) -> None:
    """Serves until its standard input ends. Runs in the child."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    given = os.environ.get(_CREDENTIALS)
    pem = {name: text.encode() for name, text in json.loads(given).items()} if given else None
    exchange = _new_exchange(Certificate(**pem) if pem else None)
    bare = _BareServer("grpc://127.0.0.1:0")
    print(
        json.dumps({"exchange": exchange.address, "flight": f"127.0.0.1:{bare.port}"}), flush=True
    )
    for line in sys.stdin:
        request = json.loads(line)
        partition = exchange.create_partition(
            job_id="job",
            result_id=request["result_id"],
            producer=0,
            attempt=0,
            partitioner=Partitioner.FORWARD,
            producers=1,
            consumers=1,
            max_parallelism=128,
            key_columns=(),
        )
        for batch in _batches(request["batch_rows"], request["rows"]):
            partition.emit(batch)
        partition.emit_event(EndOfPartition())
        partition.finish()
        partition.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--produce"]:
        _produce(int(sys.argv[2]) if sys.argv[2:] else None)
    elif sys.argv[1:] == ["--over-tls"]:
        print(json.dumps(_over_tls()))
    else:
        for row in run():
            print(row)
