"""Prometheus metrics under Flink's names.

Counters, meters and gauges are all exposed as *gauge*, histograms as *summary*, as Flink's reporter
does; prometheus_client's Counter would append `_total`, hence this collector.

Two options bound the cardinality: an allow-list of metric names (globs) and a drop-list of labels.
Series that become equal when a label is dropped are merged: amounts are added; for all others the
largest value counts.
"""

from __future__ import annotations

import fnmatch
import functools
import math
import os
import re
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import MetricsHandler, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as PrometheusSample

from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.leader import Office
from firesteel.common.logs import get_logger
from firesteel.common.metrics_targets import CLUSTER_ID
from firesteel.errors import FiresteelError

log = get_logger(__name__)

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
SUMMARY_WINDOW = 1024  # number of last observations that quantiles cover
MAX_CONNECTIONS = 32  # at the same time; a scraper needs one
REQUEST_TIMEOUT_S = 5.0


class Sample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


Source: TypeAlias = Callable[[], Iterable[Sample]]
_Labels: TypeAlias = tuple[tuple[str, str], ...]


class HttpSecurity(Protocol):
    """See firesteel.common.security.security.Security."""

    def http_refusal(self, authorization: str | None) -> str | None: ...

    def http_context(self) -> ssl.SSLContext | None: ...


class Gauge:
    """One series. Thread-safe."""

    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._value = 0.0
        self._lock = threading.Lock()

    def set(self, value: float) -> None:
        self._value = float(value)

    def inc(self, amount: float = 1.0) -> None:
        with self._lock:
            self._value += amount

    @property
    def value(self) -> float:
        return self._value


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarySnapshot:
    quantiles: Mapping[float, float]
    count: int
    sum: float


class Summary:
    """Quantiles over the last observations; count and sum over all. Thread-safe."""

    __slots__ = ("_count", "_lock", "_sum", "_window")

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=SUMMARY_WINDOW)
        self._count = 0
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        with self._lock:
            self._window.append(value)
            self._count += 1
            self._sum += value

    def snapshot(self) -> SummarySnapshot:
        """Returns the current values; no quantiles before the first observation."""
        with self._lock:
            values, count, total = sorted(self._window), self._count, self._sum
        # Nearest rank: the smallest value that is at least as large as this share of the
        # observations.
        quantiles = {q: values[max(0, math.ceil(q * len(values)) - 1)] for q in QUANTILES if values}
        return SummarySnapshot(quantiles=quantiles, count=count, sum=total)


class Registry(Collector):
    """All metrics of one process."""

    def __init__(
        self, *, allow: Sequence[str] = (), drop_labels: Iterable[str] = (), cluster: str = ""
    ) -> None:
        """Creates an empty registry. `allow` are globs of metric names, all if empty; `drop_labels`
        are labels to omit; `cluster` is the label `cluster` of all series, if it is not empty.
        """
        self._cluster: _Labels = (("cluster", cluster),) if cluster else ()
        self._allow = tuple(allow)
        self._drop_labels = frozenset(drop_labels)
        self._gauges: dict[tuple[str, _Labels], Gauge] = {}
        self._summaries: dict[tuple[str, _Labels], Summary] = {}
        self._sources: list[Source] = []
        self._failed_sources: set[int] = set()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._exposed = CollectorRegistry(auto_describe=False)
        self._exposed.register(self)

    @classmethod
    def from_configuration(cls, conf: Configuration) -> Registry:
        allow, drop_labels = (
            conf.get(options.METRICS_INCLUDES),
            conf.get(options.METRICS_DROP_LABELS),
        )
        cluster = os.environ.get(CLUSTER_ID) or conf.get(options.HA_CLUSTER_ID)
        return cls(allow=allow, drop_labels=drop_labels, cluster=cluster)

    def gauge(self, name: str, labels: Mapping[str, str] | None = None) -> Gauge:
        """Returns the series of this name and these labels, always the same object."""
        with self._lock:
            return self._gauges.setdefault((name, _key(labels or {})), Gauge())

    def summary(self, name: str, labels: Mapping[str, str] | None = None) -> Summary:
        with self._lock:
            return self._summaries.setdefault((name, _key(labels or {})), Summary())

    def remove(self, labels: Mapping[str, str]) -> None:
        """Removes every series that has all of these labels, as when a job has ended."""
        gone = set(_key(labels))
        with self._lock:
            self._gauges = {
                key: gauge for key, gauge in self._gauges.items() if not gone <= set(key[1])
            }
            self._summaries = {
                key: summary for key, summary in self._summaries.items() if not gone <= set(key[1])
            }

    def add_source(self, source: Source) -> None:
        """Adds a source, which is called at every scrape, in the scraping thread. A source that
        raises is skipped, and logged once.
        """
        with self._lock:
            self._sources.append(source)

    def remove_source(self, source: Source) -> None:
        with self._lock:
            self._sources = [other for other in self._sources if other != source]

    def collect(self) -> Iterator[Metric]:
        families: dict[str, dict[_Labels, float]] = {}
        keys: dict[_Labels, _Labels] = {}  # without dropped labels
        for name, labels, value in self._samples():
            if not self._allowed(name):
                continue
            series = families.setdefault(name, {})
            if (key := keys.get(labels)) is None:
                key = keys[labels] = self._without_dropped(labels)
            series[key] = _merged(name, series[key], value) if key in series else value
        for name, series in sorted(families.items()):
            family = GaugeMetricFamily(name, name)
            family.samples = [
                PrometheusSample(name, dict(key), value) for key, value in series.items()
            ]
            yield family
        yield from self._summary_families(taken=set(families))

    def render(self) -> bytes:
        """Returns the text of a scrape."""
        return bytes(generate_latest(self._exposed))

    def serve(
        self,
        host: str,
        port_option: str,
        *,
        first: Sequence[int] = (),
        security: HttpSecurity | None = None,
    ) -> int:
        """Serves /metrics in daemon threads; returns the port. Without `security`, everybody may
        read them.

        `first` are the allowed ports to try before the others. `port_option` is a port, a range
        such as `9249-9349` of which the first free one is used, or 0 for any free one. Raises
        ConfigurationError for anything else, FiresteelError if every port is in use.
        """
        ports = parse_ports(port_option)
        for port in (*(port for port in first if ports == range(1) or port in ports), *ports):
            try:
                server = _Server((host, port), self._exposed, security)
            except OSError:
                continue
            self._server = server
            threading.Thread(
                target=server.serve_forever, args=(0.1,), name="metrics", daemon=True
            ).start()
            return int(server.server_address[1])
        raise FiresteelError(
            f"no free port for metrics in {port_option} on {host}; "
            f"set {options.METRICS_PORT.key} to another port, to a range, or to 0 for any free one"
        )

    def close(self) -> None:
        """Stops serving."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _samples(self) -> Iterator[tuple[str, _Labels, float]]:
        with self._lock:
            gauges, sources = list(self._gauges.items()), list(self._sources)
        for (name, labels), gauge in gauges:
            yield _name(name), labels, gauge.value
        for source in sources:
            try:
                samples = list(source())
                keys: dict[int, _Labels] = {}  # of mappings that are alive
                for _, of_sample, _ in samples:
                    if id(of_sample) not in keys:
                        keys[id(of_sample)] = _key(of_sample)
                yield from [
                    (_name(name), keys[id(labels)], float(value)) for name, labels, value in samples
                ]
            except Exception:  # one bad source must not hide all others
                if id(source) not in self._failed_sources:
                    self._failed_sources.add(id(source))
                    log.warning(
                        "a metrics source failed and is left out",
                        source=repr(source),
                        exc_info=True,
                    )

    def _summary_families(self, taken: set[str]) -> Iterator[Metric]:
        with self._lock:
            summaries = list(self._summaries.items())
        families: dict[str, dict[_Labels, Summary]] = {}
        for (name, labels), summary in summaries:
            if self._allowed(_name(name)) and _name(name) not in taken:
                families.setdefault(_name(name), {}).setdefault(
                    self._without_dropped(labels), summary
                )
        for name, series in sorted(families.items()):
            family = Metric(name, name, "summary")
            for key, summary in series.items():
                shown = summary.snapshot()
                for quantile, value in shown.quantiles.items():
                    family.add_sample(name, {**dict(key), "quantile": f"{quantile:g}"}, value)
                family.add_sample(f"{name}_count", dict(key), shown.count)
                family.add_sample(f"{name}_sum", dict(key), shown.sum)
            yield family

    def _allowed(self, name: str) -> bool:
        return not self._allow or any(fnmatch.fnmatchcase(name, pattern) for pattern in self._allow)

    def _without_dropped(self, labels: _Labels) -> _Labels:
        all_labels = (*self._cluster, *labels)
        return tuple((name, value) for name, value in all_labels if name not in self._drop_labels)


def parse_ports(text: str, key: str = options.METRICS_PORT.key) -> range:
    """Parses the ports of `9249`, `9249-9349` or `0`. Raises ConfigurationError, which names the
    `key`.
    """
    match = re.fullmatch(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?", text)
    first = int(match.group(1)) if match else -1
    last = int(match.group(2) or first) if match else -1
    if match is None or not first <= last <= 65535:
        raise ConfigurationError(
            f"{key}: {text!r} is not allowed; expected a port, a range such as 9249-9349, or 0"
        )
    return range(first, last + 1)


def leader_sample(office: Office, *, leads: bool, labels: Mapping[str, str]) -> Sample:
    """Returns whether this process holds the office."""
    return Sample("flink_jobmanager_isLeader", {**labels, "office": office.value}, float(leads))


# Names of amounts, for which the values of several series can be added.
_AMOUNT = re.compile(
    r"(?:_(?:num|total|pending|unassigned|commits|taskSlots|stateSize)[A-Za-z]*|QueueLength)$"
    r"|_Slot_Memory_|_Memory_Managed_"
)


def _merged(name: str, one: float, other: float) -> float:
    return one + other if _AMOUNT.search(name) else max(one, other)


def _key(labels: Mapping[str, str]) -> _Labels:
    return tuple(sorted((str(name), str(value)) for name, value in labels.items()))


@functools.lru_cache(maxsize=4_096)
def _name(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_:]", "_", name)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # the default of 5 makes a burst of connections wait a second each
    block_on_close = False

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        security: HttpSecurity | None,
    ) -> None:
        self.security = security
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, _Handler.factory(registry))

    def server_bind(self) -> None:
        # HTTPServer's method looks up the host's name, which may take seconds. The port of a
        # process that has just ended is in TIME_WAIT if Prometheus has scraped it within a minute.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):  # connections are being held open
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            context = self.security.http_context() if self.security is not None else None
            if context is not None:
                request.settimeout(REQUEST_TIMEOUT_S)
                request = context.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError as error:  # the client speaks no TLS, or has no certificate
            log.warning("refused a connection", client=str(client_address), reason=str(error))
            self.shutdown_request(request)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a metrics request failed", client=str(client_address), exc_info=True)


class _Handler(MetricsHandler):
    timeout = REQUEST_TIMEOUT_S  # of each read: a silent client is dropped

    def do_GET(self) -> None:
        if self.path.split("?", 1)[0] not in ("/", "/metrics"):
            self.send_error(404)
        elif (why := self._refusal()) is not None:
            log.warning("refused a request", client=self.client_address[0], reason=why)
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(f"{why}\n".encode())
        else:
            super().do_GET()

    def _refusal(self) -> str | None:
        assert isinstance(self.server, _Server)
        if self.server.security is None:
            return None
        return self.server.security.http_refusal(self.headers.get("Authorization"))
