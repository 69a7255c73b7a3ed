"""Every configuration key Firesteel reads, with its type, default and meaning (Flink 2.x names
where Flink has one).

`python -m firesteel.common.config.reference` prints them all as docs/configuration.md. Durations are float
seconds (`3 min`, `500 ms`, `1.5 s` in files), sizes int bytes (`1024m`, `64 kb`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from firesteel.common.units import MIB

T = TypeVar("T")
Kind = Literal["string", "int", "float", "bool", "duration", "size", "enum", "list"]


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    key: str
    kind: Kind
    default: T
    doc: str
    choices: tuple[str, ...] = ()  # enum only
    minimum: float | None = None
    maximum: float | None = None
    section: str = ""  # of docs/configuration.md


_section = ""
OPTIONS: dict[str, Option[Any]] = {}


def _option(
    key: str,
    kind: Kind,
    default: T,
    doc: str,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
) -> Option[T]:
    option = Option(key, kind, default, doc, choices, minimum, maximum, _section)
    OPTIONS[key] = option
    return option


# fmt: off
_section = "Addresses"
RPC_ADDRESS = _option("jobmanager.rpc.address", "string", "localhost", "Host of the Dispatcher.")
RPC_PORT = _option("jobmanager.rpc.port", "int", 6123, "Port of the Dispatcher; 0: any free one.", minimum=0)
RM_PORT = _option("resourcemanager.rpc.port", "int", 0, "Port of the ResourceManager; 0: any free one.", minimum=0)
BIND_HOST = _option("taskmanager.bind-host", "string", "127.0.0.1", "Interface that every server of this machine binds.")

_section = "TaskExecutors and slots"
TASK_SLOTS = _option("taskmanager.numberOfTaskSlots", "int", 2, "Slots per TaskExecutor.", minimum=1)
TM_PROCESS_SIZE = _option("taskmanager.memory.process.size", "size", 0, "Memory of a whole TaskExecutor with its slots; 0: slots times their default.")
TM_CPU_CORES = _option("taskmanager.cpu.cores", "float", 0.0, "Cores of a whole TaskExecutor; 0: as many as it has slots.")
SLOT_HEAP = _option("taskmanager.slot.heap.size", "size", 512 * MIB, "JVM heap (-Xmx) of a slot of the default profile.")
SLOT_OFF_HEAP = _option("taskmanager.slot.off-heap.size", "size", 768 * MIB, "Python process and JVM off-heap memory of a slot of the default profile.")
SLOT_NETWORK = _option("taskmanager.slot.network.size", "size", 128 * MIB, "Exchange buffers of a slot of the default profile.")
MANAGED_FRACTION = _option("taskmanager.memory.managed.fraction", "float", 0.2, "Managed memory of a slot of the default profile, as a fraction of its heap.")
MEMORY_WATCH_INTERVAL = _option("taskmanager.memory.watch.interval", "duration", 0.5, "How often a slot's resident memory is compared with its profile; 0: never.")
CANCELLATION_TIMEOUT = _option("task.cancellation.timeout", "duration", 180.0, "A cancelled task that has not ended by then takes its slot's process with it; 0: never.")
METRICS_PORT = _option("metrics.reporter.prom.port", "string", "9249-9349", "Prometheus port, or a range of which each process takes the first free one; 0: any free one.")
METRICS_INCLUDES: Option[list[str]] = _option("metrics.reporter.prom.filter.includes", "list", [], "Globs of the metrics to expose, e.g. flink_jobmanager_*; empty: all.")
METRICS_DROP_LABELS: Option[list[str]] = _option("metrics.reporter.prom.scope.variables.excludes", "list", [], "Labels to leave out of all metrics, e.g. task_attempt_id.")
METRICS_INTERVAL = _option("metrics.fetcher.update-interval", "duration", 0.5, "How often slots report their tasks' metrics.")

_section = "Jobs"
PARALLELISM = _option("parallelism.default", "int", 1, "Parallelism of operators that set none.", minimum=1)
MAX_PARALLELISM = _option("pipeline.max-parallelism", "int", 128, "Number of key groups; fixed for the life of a job's state.", minimum=1)
OPERATOR_CHAINING = _option("pipeline.operator-chaining.enabled", "bool", True, "Whether operators are chained into tasks.")
SLOT_REQUEST_TIMEOUT = _option("slot.request.timeout", "duration", 300.0, "A job that still lacks slots after this long fails.")
SLOT_IDLE_TIMEOUT = _option("slot.idle.timeout", "duration", 50.0, "A JobMaster returns a slot that has been idle this long (delayed release).")
RESTART_STRATEGY = _option("restart-strategy.type", "enum", "none", "What happens when a task fails; exponential-delay and failure-rate are refused until they exist.", ("none", "fixed-delay", "exponential-delay", "failure-rate"))
RESTART_ATTEMPTS = _option("restart-strategy.fixed-delay.attempts", "int", 1, "How often a failed job is started again.", minimum=0)
RESTART_DELAY = _option("restart-strategy.fixed-delay.delay", "duration", 1.0, "Time between a failure and the restart.")
FAILOVER_STRATEGY = _option("jobmanager.execution.failover-strategy", "enum", "region", "What is restarted when a task fails; has no effect yet: the whole job is.", ("region", "full", "individual"))
JOBMASTER_SPARES = _option("jobmanager.warm-spares", "int", 1, "JobMaster processes kept started for jobs to come.", minimum=0)
JOB_HISTORY = _option("jobstore.max-capacity", "int", 100, "Ended jobs that are kept for list and show.", minimum=1)
PAYLOAD_LIMIT = _option("client.payload.max-size", "size", 48 * MIB, "Largest job that may be submitted, without its files; no control message carries a larger one.", maximum=48 * MIB)
BLOB_LIMIT = _option("blob.max-size", "size", 512 * MIB, "Largest single user file or archive.")

_section = "The cluster"
HEARTBEAT_INTERVAL = _option("heartbeat.interval", "duration", 2.0, "Time between heartbeats.")
HEARTBEAT_TIMEOUT = _option("heartbeat.timeout", "duration", 20.0, "A silent peer is dead after this long.")
SPREAD_SLOTS = _option("cluster.evenly-spread-out-slots", "bool", True, "Spread slots over TaskExecutors instead of filling one after the other.")
MAX_SLOTS = _option("slotmanager.number-of-slots.max", "int", 0, "Limit on slots, counting TaskExecutors started on demand; 0: only the TaskExecutors the cluster was started with.")
TM_IDLE_TIMEOUT = _option("resourcemanager.taskmanager-timeout", "duration", 30.0, "A TaskExecutor started on demand is stopped after being idle this long.")
PREVIOUS_WORKER_TIMEOUT = _option("resourcemanager.previous-worker.recovery.timeout", "duration", 3.0, "A restarted ResourceManager waits this long for the TaskExecutors that its predecessor had started, before it matches slots or starts others.")
REQUIREMENTS_DELAY = _option("slotmanager.requirement-check.delay", "duration", 0.0, "How long requirements are gathered before slots are matched.")
DATABASE_URL = _option("database.url", "string", "", "SQLAlchemy URL of the job store; empty: SQLite in the cluster's directory.")
HA_TYPE = _option("high-availability.type", "enum", "none", "Leader election; has no effect yet.", ("none", "zookeeper"))

_section = "Exchange between tasks"
CHANNEL_WINDOW = _option("taskmanager.network.memory.channel-window", "size", 4 * MIB, "Bytes a producer may be ahead of its consumer, per channel.", minimum=1)
BATCH_ROWS = _option("taskmanager.network.batch-rows", "int", 65536, "Batches between tasks are cut to at most this many rows.", minimum=1)
PARTITION_TIMEOUT = _option("taskmanager.network.partition-request-timeout", "duration", 30.0, "How long a consumer waits for its producer's partition to appear.")

_section = "Spark and Python"
SPARK_MASTER = _option("spark.master", "string", "", "Master of the slot's SparkSession; empty: local[<slot cores>].")
PYTHON_FILES: Option[list[str]] = _option("python.files", "list", [], "Files to put on the job's sys.path, as --py-files.")
PYTHON_ARCHIVES: Option[list[str]] = _option("python.archives", "list", [], "Archives to unpack in the job's directory, as --py-archives.")
PYTHON_REQUIREMENTS = _option("python.requirements", "string", "", "A requirements.txt, as --py-requirements.")
PYTHON_EXECUTABLE = _option("python.executable", "string", "", "Python that runs the slots; empty: the TaskExecutor's own.")
BUNDLE_BYTES = _option("python.fn-execution.bundle.bytes", "size", 64 * MIB, "Largest bundle handed to Spark at once.")
# fmt: on
