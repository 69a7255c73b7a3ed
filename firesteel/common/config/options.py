"""Every configuration key that Firesteel reads, with its type, default and meaning.

Keys are those of Flink 2.x where it has one. `make reference` writes
docs/reference/configuration.md from them. Durations are float seconds (`3 min`, `500 ms`, `1.5 s`
in files), sizes int bytes (`1024m`, `64 kb`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from firesteel.common.units import GIB, KIB, MIB

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
    section: str = ""  # of docs/reference/configuration.md
    # Of the cluster alone, never of a job; and processes get it in their environment, because
    # everybody on a machine sees command lines.
    secret: bool = False
    variable: str = ""  # of the environment, in which libraries look for it


OPTIONS: dict[str, Option[Any]] = {}


class _Section:
    """A heading of docs/reference/configuration.md, with the options below it."""

    def __init__(self, title: str) -> None:
        self._title = title

    def option(
        self,
        key: str,
        kind: Kind,
        default: T,
        doc: str,
        *,
        choices: tuple[str, ...] = (),
        minimum: float | None = None,
        maximum: float | None = None,
        secret: bool = False,
        variable: str = "",
    ) -> Option[T]:
        option = Option(
            key, kind, default, doc, choices, minimum, maximum, self._title, secret, variable
        )
        OPTIONS[key] = option
        return option


_addresses = _Section("Addresses")
RPC_ADDRESS = _addresses.option(
    "jobmanager.rpc.address", "string", "localhost", "Host of the Dispatcher."
)
RPC_PORT = _addresses.option(
    "jobmanager.rpc.port", "int", 6123, "Port of the Dispatcher; 0: any free one.", minimum=0
)
RM_PORT = _addresses.option(
    "resourcemanager.rpc.port", "int", 0, "Port of the ResourceManager; 0: any free one.", minimum=0
)
BIND_HOST = _addresses.option(
    "taskmanager.bind-host",
    "string",
    "127.0.0.1",
    "Interface that every server on this machine binds.",
)

_task_executors = _Section("TaskExecutors and slots")
TASK_SLOTS = _task_executors.option(
    "taskmanager.numberOfTaskSlots", "int", 2, "Slots per TaskExecutor.", minimum=1
)
TM_PROCESS_SIZE = _task_executors.option(
    "taskmanager.memory.process.size",
    "size",
    0,
    "Memory of a whole TaskExecutor with its slots; 0: the default profile times its slots.",
)
TM_CPU_CORES = _task_executors.option(
    "taskmanager.cpu.cores",
    "float",
    0.0,
    "Cores of a whole TaskExecutor; 0: as many as it has slots.",
)
SLOT_HEAP = _task_executors.option(
    "taskmanager.slot.heap.size",
    "size",
    512 * MIB,
    "JVM heap (-Xmx) of a slot of the default profile.",
)
SLOT_OFF_HEAP = _task_executors.option(
    "taskmanager.slot.off-heap.size",
    "size",
    768 * MIB,
    "Python process and JVM off-heap memory of a slot of the default profile.",
)
SLOT_NETWORK = _task_executors.option(
    "taskmanager.slot.network.size",
    "size",
    128 * MIB,
    "Exchange buffers of a slot of the default profile.",
)
MANAGED_FRACTION = _task_executors.option(
    "taskmanager.memory.managed.fraction",
    "float",
    0.2,
    "Managed memory of a slot of the default profile, as a fraction of its heap.",
)
ROCKSDB_LOCALDIR = _task_executors.option(
    "state.backend.rocksdb.localdir",
    "string",
    "",
    "Where slots keep state that is on disk, with state.backend.type: rocksdb or in batch mode: a"
    " directory on a local disk; empty: the TaskExecutor's folder.",
)
MEMORY_WATCH_INTERVAL = _task_executors.option(
    "taskmanager.memory.watch.interval",
    "duration",
    0.5,
    "How often a slot's resident memory is compared with its profile; 0: never.",
)
CANCELLATION_TIMEOUT = _task_executors.option(
    "task.cancellation.timeout",
    "duration",
    180.0,
    "If a cancelled task has not ended after this long, its slot's process is killed; 0: never.",
)
METRICS_PORT = _task_executors.option(
    "metrics.reporter.prom.port",
    "string",
    "9249-9349",
    "Prometheus port, or a range of which each process takes the first free one; 0: any free one.",
)
METRICS_INCLUDES: Option[list[str]] = _task_executors.option(
    "metrics.reporter.prom.filter.includes",
    "list",
    [],
    "Globs of the metrics to expose, e.g. flink_jobmanager_*; empty: all.",
)
METRICS_DROP_LABELS: Option[list[str]] = _task_executors.option(
    "metrics.reporter.prom.scope.variables.excludes",
    "list",
    [],
    "Labels to leave out of all metrics, e.g. task_attempt_id.",
)
METRICS_INTERVAL = _task_executors.option(
    "metrics.fetcher.update-interval",
    "duration",
    0.5,
    "How often slots report their tasks' metrics.",
)

_jobs = _Section("Jobs")
PARALLELISM = _jobs.option(
    "parallelism.default", "int", 1, "Parallelism of operators that set none.", minimum=1
)
MAX_PARALLELISM = _jobs.option(
    "pipeline.max-parallelism",
    "int",
    128,
    "Number of key groups; fixed for the life of a job's state.",
    minimum=1,
)
OPERATOR_CHAINING = _jobs.option(
    "pipeline.operator-chaining.enabled", "bool", True, "Whether operators are chained into tasks."
)
RUNTIME_MODE = _jobs.option(
    "execution.runtime-mode",
    "enum",
    "STREAMING",
    "BATCH: tasks exchange whole results, so that one begins when what it reads is complete, and a"
    " failure repeats only what has failed; all sources must end, and no checkpoints are taken."
    " AUTOMATIC: BATCH if all sources end, and the job begins from nothing.",
    choices=("STREAMING", "BATCH", "AUTOMATIC"),
)
BATCH_SHUFFLE_MODE = _jobs.option(
    "execution.batch-shuffle-mode",
    "enum",
    "ALL_EXCHANGES_BLOCKING",
    "How the tasks of a job in batch mode exchange rows: as whole results, or as they come, which"
    " takes slots for all tasks at once.",
    choices=("ALL_EXCHANGES_BLOCKING", "ALL_EXCHANGES_PIPELINED"),
)
SLOT_REQUEST_TIMEOUT = _jobs.option(
    "slot.request.timeout", "duration", 300.0, "A job that still lacks slots after this long fails."
)
SLOT_IDLE_TIMEOUT = _jobs.option(
    "slot.idle.timeout",
    "duration",
    50.0,
    "A JobMaster returns a slot that has been idle for this long.",
)
RESTART_STRATEGY = _jobs.option(
    "restart-strategy.type",
    "enum",
    "none",
    "Whether a failed job is restarted: never; a number of times (fixed-delay); after longer and "
    "longer delays (exponential-delay); unless it fails too often (failure-rate).",
    choices=("none", "fixed-delay", "exponential-delay", "failure-rate"),
)
RESTART_ATTEMPTS = _jobs.option(
    "restart-strategy.fixed-delay.attempts",
    "int",
    1,
    "How many times a failed job is restarted.",
    minimum=0,
)
RESTART_DELAY = _jobs.option(
    "restart-strategy.fixed-delay.delay", "duration", 1.0, "Time between a failure and the restart."
)
RESTART_BACKOFF = _jobs.option(
    "restart-strategy.exponential-delay.initial-backoff",
    "duration",
    1.0,
    "Time between the first failure and the restart.",
)
RESTART_MAX_BACKOFF = _jobs.option(
    "restart-strategy.exponential-delay.max-backoff",
    "duration",
    60.0,
    "Longest time between a failure and the restart.",
)
RESTART_BACKOFF_MULTIPLIER = _jobs.option(
    "restart-strategy.exponential-delay.backoff-multiplier",
    "float",
    1.5,
    "How many times longer each delay is than the last one.",
    minimum=1,
)
RESTART_RESET_BACKOFF = _jobs.option(
    "restart-strategy.exponential-delay.reset-backoff-threshold",
    "duration",
    3600.0,
    "A job that has run for so long without a failure begins with the first delay again.",
)
RESTART_JITTER = _jobs.option(
    "restart-strategy.exponential-delay.jitter-factor",
    "float",
    0.1,
    "Each delay is longer or shorter by up to this fraction of it, at random.",
    minimum=0,
    maximum=1,
)
RESTART_BACKOFF_ATTEMPTS = _jobs.option(
    "restart-strategy.exponential-delay.attempts-before-reset-backoff",
    "int",
    0,
    "How many times a failed job is restarted before its delay is reset; 0: without end.",
    minimum=0,
)
RESTART_MAX_FAILURES = _jobs.option(
    "restart-strategy.failure-rate.max-failures-per-interval",
    "int",
    1,
    "A job that fails more often within an interval is not restarted.",
    minimum=1,
)
RESTART_FAILURE_INTERVAL = _jobs.option(
    "restart-strategy.failure-rate.failure-rate-interval",
    "duration",
    60.0,
    "The interval in which failures are counted.",
)
RESTART_FAILURE_DELAY = _jobs.option(
    "restart-strategy.failure-rate.delay",
    "duration",
    1.0,
    "Time between a failure and the restart.",
)
FAILOVER_STRATEGY = _jobs.option(
    "jobmanager.execution.failover-strategy",
    "enum",
    "region",
    "Which tasks are restarted when some have failed: those that exchange data with them, directly"
    " or not (region); all of the job (full); those that have failed only, in a job whose tasks"
    " exchange no data and that takes no checkpoints (individual).",
    choices=("region", "full", "individual"),
)
SCHEDULING_POLICY = _jobs.option(
    "jobmanager.scheduling-policy",
    "enum",
    "auto",
    "When tasks start: all at once (eager); a task when what it reads of blocking results is"
    " complete, with those that it exchanges data with directly (pipelined-region), or when all"
    " operators that feed it have finished (lazy-from-sources). Auto is eager for streams and"
    " pipelined-region in batch mode.",
    choices=("auto", "eager", "lazy-from-sources", "pipelined-region"),
)
_checkpoints = _Section("Checkpoints")
STATE_BACKEND = _checkpoints.option(
    "state.backend.type",
    "enum",
    "hashmap",
    "Where keyed state is: in memory, or in a RocksDB on the slot's disk, with managed memory as"
    " its cache. In batch mode, if nothing is set: in memory, with aggregates, windows and others"
    " that have their state in columns in files beyond the managed memory.",
    choices=("hashmap", "rocksdb"),
)
CHECKPOINT_INTERVAL = _checkpoints.option(
    "execution.checkpointing.interval",
    "duration",
    0.0,
    "Time from the start of one periodic checkpoint to the next; 0: no checkpoints.",
)
CHECKPOINT_DIR = _checkpoints.option(
    "execution.checkpointing.dir",
    "string",
    "",
    "Where checkpoints are kept: a directory that all processes share, or a URI such as"
    " s3://bucket/checkpoints.",
)
SAVEPOINT_DIR = _checkpoints.option(
    "execution.checkpointing.savepoint-dir",
    "string",
    "",
    "Where savepoints are made if `firesteel savepoint` names no directory.",
)
RECOVERY_PATH = _checkpoints.option(
    "execution.state-recovery.path",
    "string",
    "",
    "The savepoint or checkpoint that a job begins from, as `firesteel run -s`.",
)
RECOVERY_CLAIM_MODE = _checkpoints.option(
    "execution.state-recovery.claim-mode",
    "enum",
    "NO_CLAIM",
    "Whether the job owns what it begins from (CLAIM): then it deletes it when it has newer"
    " checkpoints.",
    choices=("NO_CLAIM", "CLAIM"),
)
RECOVERY_ALLOW_UNMATCHED = _checkpoints.option(
    "execution.state-recovery.ignore-unclaimed-state",
    "bool",
    False,
    "Whether state of operators that the program does not have is given up, as `firesteel run -n`.",
)
CHECKPOINT_MODE = _checkpoints.option(
    "execution.checkpointing.mode",
    "enum",
    "exactly-once",
    "at-least-once: tasks do not hold back inputs whose barrier has come; rows count again after a"
    " failure.",
    choices=("exactly-once", "at-least-once"),
)
CHECKPOINT_UNALIGNED = _checkpoints.option(
    "execution.checkpointing.unaligned.enabled",
    "bool",
    False,
    "Whether barriers overtake the batches that wait between tasks, which are then part of the"
    " checkpoint.",
)
CHECKPOINT_ALIGNED_TIMEOUT = _checkpoints.option(
    "execution.checkpointing.aligned-checkpoint-timeout",
    "duration",
    0.0,
    "Barriers overtake only where they have waited this long; 0: at once. With unaligned.enabled.",
)
CHECKPOINT_INCREMENTAL = _checkpoints.option(
    "execution.checkpointing.incremental",
    "bool",
    False,
    "Whether a checkpoint of the rocksdb backend refers to files of earlier ones instead of writing"
    " them again.",
)
CHECKPOINT_INLINE_THRESHOLD = _checkpoints.option(
    "execution.checkpointing.data-inline-threshold",
    "size",
    20 * KIB,
    "Keyed state up to this size is stored in a checkpoint's _metadata instead of a file: of each"
    " operator's subtask; together, of an operator, at most 1 mb.",
    minimum=0,
    maximum=MIB,
)
CHECKPOINT_TIMEOUT = _checkpoints.option(
    "execution.checkpointing.timeout",
    "duration",
    600.0,
    "A checkpoint that is not complete after this long is given up.",
)
CHECKPOINT_MIN_PAUSE = _checkpoints.option(
    "execution.checkpointing.min-pause",
    "duration",
    0.0,
    "Least time between the end of a checkpoint and the start of the next periodic one.",
)
CHECKPOINT_MAX_CONCURRENT = _checkpoints.option(
    "execution.checkpointing.max-concurrent-checkpoints",
    "int",
    1,
    "How many checkpoints may be under way.",
    minimum=1,
)
CHECKPOINT_TOLERABLE_FAILURES = _checkpoints.option(
    "execution.checkpointing.tolerable-failed-checkpoints",
    "int",
    0,
    "How many checkpoints in a row may fail before the job does.",
    minimum=0,
)
CHECKPOINT_NUM_RETAINED = _checkpoints.option(
    "execution.checkpointing.num-retained",
    "int",
    1,
    "How many complete checkpoints are kept.",
    minimum=1,
)
CHECKPOINT_RETENTION = _checkpoints.option(
    "execution.checkpointing.externalized-checkpoint-retention",
    "enum",
    "NO_EXTERNALIZED_CHECKPOINTS",
    "Whether complete checkpoints stay when the job has failed (DELETE_ON_CANCELLATION), or has"
    " failed or was cancelled (RETAIN_ON_CANCELLATION). They never stay when it has finished.",
    choices=("NO_EXTERNALIZED_CHECKPOINTS", "DELETE_ON_CANCELLATION", "RETAIN_ON_CANCELLATION"),
)
CHECKPOINT_AFTER_FINISH = _checkpoints.option(
    "execution.checkpointing.checkpoints-after-tasks-finish.enabled",
    "bool",
    True,
    "Whether checkpoints go on after some tasks have finished.",
)
JOBMASTER_SPARES = _jobs.option(
    "jobmanager.warm-spares",
    "int",
    1,
    "JobMaster processes kept warm for the next jobs.",
    minimum=0,
)
JOB_HISTORY = _jobs.option(
    "jobstore.max-capacity",
    "int",
    100,
    "Terminated jobs that are kept for list and show.",
    minimum=1,
)
RESULTS_MAX_SIZE = _jobs.option(
    "results.max-size",
    "size",
    10 * GIB,
    "Size of all jobs' collected rows on the Dispatcher's disk. Those of jobs that have ended are "
    "deleted to make room, the oldest first; a job fails if its own do not fit. 0: no limit.",
    minimum=0,
)
RESULTS_MAX_AGE = _jobs.option(
    "results.max-age",
    "duration",
    7 * 86400.0,
    "How long collected rows are kept after the end of their job; 0: as long as the job is.",
    minimum=0,
)
PAYLOAD_LIMIT = _jobs.option(
    "client.payload.max-size",
    "size",
    48 * MIB,
    "Largest job that may be submitted, without its files: control messages are limited to this.",
    maximum=48 * MIB,
)
BLOB_LIMIT = _jobs.option(
    "blob.max-size", "size", 512 * MIB, "Largest single user file or archive."
)

_cluster = _Section("The cluster")
HEARTBEAT_INTERVAL = _cluster.option(
    "heartbeat.interval", "duration", 2.0, "Time between heartbeats."
)
HEARTBEAT_TIMEOUT = _cluster.option(
    "heartbeat.timeout",
    "duration",
    20.0,
    "A peer that is silent for this long is declared dead; a slot's process or JVM that is, is "
    "killed.",
)
ADOPTION_TIMEOUT = _cluster.option(
    "jobmaster.adoption.timeout",
    "duration",
    30.0,
    "When a job that gets another JobMaster has lost its own, its tasks run on for this long, and "
    "the next JobMaster waits for this long to hear of them. What it has not heard of then has "
    "failed, and is restarted.",
)
SPREAD_SLOTS = _cluster.option(
    "cluster.evenly-spread-out-slots",
    "bool",
    True,
    "Whether slots are spread over all TaskExecutors instead of filling one after the other.",
)
MAX_SLOTS = _cluster.option(
    "slotmanager.number-of-slots.max",
    "int",
    0,
    "Largest number of slots, with TaskExecutors that are started on demand; 0: none are.",
)
TM_IDLE_TIMEOUT = _cluster.option(
    "resourcemanager.taskmanager-timeout",
    "duration",
    30.0,
    "A TaskExecutor that was started on demand is stopped after being idle for this long.",
)
PREVIOUS_WORKER_TIMEOUT = _cluster.option(
    "resourcemanager.previous-worker.recovery.timeout",
    "duration",
    10.0,
    "How long a restarted ResourceManager waits for the TaskExecutors of its predecessor "
    "before it matches slots or starts others. Those that do not register within two minutes more "
    "are stopped.",
)
REQUIREMENTS_DELAY = _cluster.option(
    "slotmanager.requirement-check.delay",
    "duration",
    0.0,
    "How long requirements are collected before slots are matched.",
)
DATABASE_URL = _cluster.option(
    "database.url",
    "string",
    "",
    "SQLAlchemy URL of the job store; empty: SQLite in the cluster's directory.",
    secret=True,
)
S3_ACCESS_KEY = _cluster.option(
    "s3.access-key",
    "string",
    "",
    "For checkpoints and savepoints on S3; empty: AWS's usual environment, files or roles.",
    secret=True,
    variable="AWS_ACCESS_KEY_ID",
)
S3_SECRET_KEY = _cluster.option(
    "s3.secret-key",
    "string",
    "",
    "The secret of `s3.access-key`.",
    secret=True,
    variable="AWS_SECRET_ACCESS_KEY",
)
S3_ENDPOINT = _cluster.option(
    "s3.endpoint",
    "string",
    "",
    "URL of an object store other than AWS's that speaks S3, such as `http://minio:9000`.",
    secret=True,
    variable="AWS_ENDPOINT_URL",
)
S3_REGION = _cluster.option(
    "s3.endpoint.region",
    "string",
    "",
    "Region of S3; empty: that of the bucket.",
    secret=True,
    variable="AWS_DEFAULT_REGION",
)

_availability = _Section("High availability")
HA_TYPE = _availability.option(
    "high-availability.type",
    "enum",
    "none",
    "Where the leading Dispatcher and ResourceManager are: at fixed addresses, or elected in "
    "ZooKeeper.",
    choices=("none", "zookeeper"),
)
HA_CLUSTER_ID = _availability.option(
    "high-availability.cluster-id",
    "string",
    "default",
    "Tells clusters apart that share an ensemble and its root path.",
)
HA_STORAGE_DIR = _availability.option(
    "high-availability.storageDir",
    "string",
    "",
    "Where the users' files and the collected rows of jobs are kept: a directory that all"
    " Dispatchers have mounted, as a path or `file:///PATH`, or one in an object store, such as"
    " `s3://BUCKET/PATH`; empty: each Dispatcher's `--dir`.",
)
ZOOKEEPER_QUORUM: Option[list[str]] = _availability.option(
    "high-availability.zookeeper.quorum",
    "list",
    [],
    "The ensemble: `HOST:PORT` of each server.",
)
ZOOKEEPER_ROOT = _availability.option(
    "high-availability.zookeeper.path.root",
    "string",
    "/firesteel",
    "The node below which clusters have theirs.",
)
ZOOKEEPER_ACL = _availability.option(
    "high-availability.zookeeper.client.acl",
    "enum",
    "open",
    "Who may read and change the nodes: everybody, or only who has the credentials of "
    "high-availability.zookeeper.client.authorization.",
    choices=("open", "creator"),
)
ZOOKEEPER_AUTHORIZATION = _availability.option(
    "high-availability.zookeeper.client.authorization",
    "string",
    "",
    "Credentials for ZooKeeper, as `digest:USER:PASSWORD`.",
    secret=True,
)
ZOOKEEPER_SESSION_TIMEOUT = _availability.option(
    "high-availability.zookeeper.client.session-timeout",
    "duration",
    6.0,
    "How long a leader may be silent before another one is elected. ZooKeeper allows 2 to 20 of "
    "its ticks.",
    minimum=1,
)

_logs = _Section("Logs")
LOG_MAX = _logs.option(
    "env.log.max",
    "int",
    100,
    "Logs that are kept of ended JobMasters, and as many of ended TaskExecutors with their slots'.",
    minimum=1,
)
LOG_MAX_SIZE = _logs.option(
    "env.log.max-size",
    "size",
    16 * MIB,
    "A log that is longer starts over; what was in it is kept beside it, once, as NAME.log.1. "
    "0: no limit.",
    minimum=0,
)

_exchange = _Section("Exchange between tasks")
CHANNEL_WINDOW = _exchange.option(
    "taskmanager.network.memory.channel-window",
    "size",
    4 * MIB,
    "Bytes that a producer may be ahead of its consumer, per channel.",
    minimum=1,
)
BATCH_ROWS = _exchange.option(
    "taskmanager.network.batch-rows",
    "int",
    65536,
    "Largest number of rows of a batch between tasks.",
    minimum=1,
)
PARTITION_TIMEOUT = _exchange.option(
    "taskmanager.network.partition-request-timeout",
    "duration",
    30.0,
    "How long a consumer waits until its producer's partition exists.",
)
BLOCKING_BUFFER = _exchange.option(
    "taskmanager.network.blocking-shuffle.buffer.size",
    "size",
    16 * MIB,
    "Rows of a blocking result that a producer gathers before it writes them, sorted by consumer.",
    minimum=1,
)
BLOCKING_MEMORY = _exchange.option(
    "taskmanager.network.blocking-shuffle.memory.size",
    "size",
    128 * MIB,
    "Small blocking results that a TaskExecutor keeps in shared memory; all others, and those "
    "larger than the buffer, are files in its working directory. 0: all of them are.",
    minimum=0,
)
COMPRESSION_CODEC = _exchange.option(
    "taskmanager.network.compression.codec",
    "enum",
    "NONE",
    "How blocking results are compressed: less to write, for more processor time.",
    choices=("NONE", "LZ4"),
)

_python = _Section("Spark and Python")
SPARK_MASTER = _python.option(
    "spark.master", "string", "", "Master of the slot's SparkSession; empty: local[<slot cores>]."
)
PYTHON_FILES: Option[list[str]] = _python.option(
    "python.files", "list", [], "Files to put on the job's sys.path, as --py-files."
)
PYTHON_ARCHIVES: Option[list[str]] = _python.option(
    "python.archives", "list", [], "Archives to unpack in the job's directory, as --py-archives."
)
PYTHON_REQUIREMENTS = _python.option(
    "python.requirements", "string", "", "A requirements.txt, as --py-requirements."
)
MODULES_LIMIT = _python.option(
    "python.modules.max-size",
    "size",
    64 * MIB,
    "Largest total size of the program's own modules, which travel with its job; 0: none do.",
    minimum=0,
)
PYTHON_EXECUTABLE = _python.option(
    "python.executable", "string", "", "Python that runs the slots; empty: the TaskExecutor's own."
)
BUNDLE_BYTES = _python.option(
    "python.fn-execution.bundle.bytes", "size", 64 * MIB, "Largest bundle handed to Spark at once."
)
