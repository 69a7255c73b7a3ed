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
    # Only for the cluster, never for a job. Processes get it in their environment, because
    # everybody on a machine can read command lines.
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
    "jobmanager.rpc.port", "int", 6123, "Port of the Dispatcher; 0: any free port.", minimum=0
)
RM_PORT = _addresses.option(
    "resourcemanager.rpc.port",
    "int",
    0,
    "Port of the ResourceManager; 0: any free port.",
    minimum=0,
)
TM_RPC_PORT = _addresses.option(
    "taskmanager.rpc.port",
    "int",
    0,
    "Port of each TaskExecutor; 0: any free port, so that several of them can share an address.",
    minimum=0,
    maximum=65535,
)
BIND_HOST = _addresses.option(
    "taskmanager.bind-host",
    "string",
    "127.0.0.1",
    "Interface that every server on this machine binds.",
)
HEALTH_PORT = _addresses.option(
    "health.port",
    "int",
    0,
    "Port at which a Dispatcher, ResourceManager or TaskExecutor answers health checks of gRPC, and"
    " nothing else, without TLS; 0: none. In pods, Firesteel sets it, because Kubernetes speaks no "
    "TLS in such checks.",
    minimum=0,
    maximum=65535,
)

REST_PORT = _addresses.option(
    "rest.port",
    "string",
    "8081-8181",
    "Port of the REST API, or a range of which the first free one is used; empty: no REST API.",
)
SPARK_CONNECT_PORT = _addresses.option(
    "spark-connect.port",
    "int",
    0,
    "Port at which a Dispatcher serves Spark Connect, for PySpark programs and notebooks; 0: none.",
    minimum=0,
    maximum=65535,
)
SPARK_CONNECT_SESSION_TIMEOUT = _addresses.option(
    "spark-connect.session-timeout",
    "duration",
    3600.0,
    "Time without calls after which a session of Spark Connect ends and its queries are stopped.",
    minimum=1,
)
WEB_SUBMIT = _addresses.option(
    "web.submit.enable",
    "bool",
    True,
    "Whether programs can be uploaded and run through the REST API.",
)
WEB_SUBMIT_TIMEOUT = _addresses.option(
    "web.submit.timeout",
    "duration",
    120.0,
    "Time in which a program that is run through the REST API must end. Its jobs run on.",
    minimum=1,
)
WEB_UPLOAD_DIR = _addresses.option(
    "web.upload.dir",
    "string",
    "",
    "Directory of programs that are uploaded through the REST API; empty: in that of the"
    " Dispatcher.",
)
WEB_UPLOAD_LIMIT = _addresses.option(
    "web.upload.max-size",
    "size",
    100 * MIB,
    "Maximum size of a program that is uploaded through the REST API.",
)

SAMPLE_ROWS = _addresses.option(
    "rest.sample-rows",
    "bool",
    True,
    "Operators may look at rows that running tasks send, through every interface of the cluster.",
)

_limits = _Section("Limits of callers")
RPC_CALL_RATE = _limits.option(
    "rpc.limit.calls-per-second",
    "float",
    1000.0,
    "gRPC calls per second to one service by one person; twice that in a burst. 0: no limit.",
    minimum=0,
)
RPC_FAILURE_RATE = _limits.option(
    "rpc.limit.failures-per-second",
    "float",
    1.0,
    "gRPC calls per second from one address without a valid credential; 20 times that in a burst."
    " Those with a valid one are answered nevertheless. 0: no limit.",
    minimum=0,
)
REST_REQUEST_RATE = _limits.option(
    "rest.limit.requests-per-second",
    "float",
    1000.0,
    "Requests per second from one address, and of one token; twice that in a burst. 0: no limit.",
    minimum=0,
)
REST_FAILURE_RATE = _limits.option(
    "rest.limit.failures-per-second",
    "float",
    1.0,
    "Requests per second from one address without a valid token; 20 times that in a burst. Those"
    " with a valid token are answered nevertheless. 0: no limit.",
    minimum=0,
)
REST_CONCURRENT_REQUESTS = _limits.option(
    "rest.limit.concurrent-requests",
    "int",
    1000,
    "Requests with one token that are answered at the same time, such as streams of logs.",
    minimum=1,
)
REST_CONNECTIONS = _limits.option(
    "rest.limit.connections",
    "int",
    1000,
    "Connections from one address. Over the limit, a new one replaces one that is idle.",
    minimum=1,
)
REST_READ_TIMEOUT = _limits.option(
    "rest.limit.read-timeout",
    "duration",
    30.0,
    "Connections that make no request for this time are closed, as are those of clients that send a"
    " body with less than 1 kB/s, or read nothing of an answer for this time.",
    minimum=0.1,
)

_proxy = _Section("People who log in elsewhere")
REST_HOSTS: Option[list[str]] = _proxy.option(
    "rest.hosts",
    "list",
    [],
    "Host names by which browsers reach the REST API, such as that of a proxy, besides the name of"
    " this machine, `localhost` and addresses.",
)
REST_PROXY = _proxy.option(
    "rest.proxy.name",
    "string",
    "",
    "The name in the client certificate of a trusted proxy, which `firesteel token create NAME"
    " --out DIR` makes. Empty: no proxy is trusted.",
)
REST_PROXY_ADDRESSES: Option[list[str]] = _proxy.option(
    "rest.proxy.addresses", "list", [], "The IP addresses from which the proxy connects."
)
REST_PROXY_USER_HEADER = _proxy.option(
    "rest.proxy.user-header",
    "string",
    "X-Forwarded-User",
    "The header in which the proxy names the person. It must remove those of its clients.",
)
REST_PROXY_GROUPS_HEADER = _proxy.option(
    "rest.proxy.groups-header",
    "string",
    "X-Forwarded-Groups",
    "The header in which the proxy names the groups of the person, separated by commas.",
)
REST_ROLES: Option[list[str]] = _proxy.option(
    "rest.roles",
    "list",
    [],
    "Roles of people (`ada=admin`), of groups (`@data=operator`), and of everybody (`*=viewer`)."
    " The highest applies.",
)

OIDC_ISSUER = _proxy.option(
    "rest.oidc.issuer",
    "string",
    "",
    "The issuer (`iss`) of OpenID Connect whose tokens scripts may present. Empty: none.",
)
OIDC_JWKS = _proxy.option(
    "rest.oidc.jwks-url", "string", "", "The address of the issuer's keys, https://..."
)
OIDC_AUDIENCE = _proxy.option(
    "rest.oidc.audience", "string", "", "The audience (`aud`) that tokens must name."
)
OIDC_NAME_CLAIM = _proxy.option(
    "rest.oidc.name-claim", "string", "sub", "The claim with the name of the person."
)
OIDC_GROUPS_CLAIM = _proxy.option(
    "rest.oidc.groups-claim", "string", "groups", "The claim with the groups of the person."
)

_security = _Section("Security")
SECURITY_ENABLED = _security.option(
    "security.enabled",
    "bool",
    True,
    "Callers must prove who they are. With false, every local user can run code as this user.",
)
SECURITY_DIRECTORY = _security.option(
    "security.directory",
    "string",
    "",
    "The folder of keys and of the administrator's token. Empty: ~/.firesteel/security. The same"
    " on every machine of the cluster.",
)
SECURITY_TLS = _security.option(
    "security.tls",
    "enum",
    "auto",
    "Whether connections use mutual TLS; auto: if taskmanager.bind-host is not a loopback address.",
    choices=("auto", "always", "never"),
)
SECURITY_HOSTS: Option[list[str]] = _security.option(
    "security.certificate.hosts",
    "list",
    [],
    "Further names or addresses under which others reach services, such as that of a load balancer;"
    " the certificates of services name them.",
)
SECURITY_INSECURE_LISTEN = _security.option(
    "security.insecure-listen",
    "bool",
    False,
    "Allows processes to listen beyond loopback without authentication or TLS.",
)
SECURITY_TOKEN_FILE = _security.option(
    "security.token-file",
    "string",
    "",
    "The file with the token of a client. Empty: $FIRESTEEL_TOKEN, or that of the administrator in"
    " security.directory.",
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
TM_DRAIN_TIMEOUT = _task_executors.option(
    "taskmanager.drain-timeout",
    "duration",
    0.0,
    "Time after SIGTERM for the driver of the ResourceManager to move the tasks of a TaskExecutor"
    " away; 0: it ends immediately. In pods, 5 s less than their grace period.",
    minimum=0,
)
TM_CPU_CORES = _task_executors.option(
    "taskmanager.cpu.cores",
    "float",
    0.0,
    "Cores of a whole TaskExecutor; 0: one per slot.",
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
    "Directory on a local disk for state on disk (state.backend.type: rocksdb, and batch "
    "mode); empty: the TaskExecutor's directory.",
)
MEMORY_WATCH_INTERVAL = _task_executors.option(
    "taskmanager.memory.watch.interval",
    "duration",
    0.5,
    "Interval at which the resident memory of a slot is compared with its profile; 0: never.",
)
CANCELLATION_TIMEOUT = _task_executors.option(
    "task.cancellation.timeout",
    "duration",
    180.0,
    "Time after which the process of a cancelled task that has not ended is killed; 0: never.",
)
METRICS_PORT = _task_executors.option(
    "metrics.reporter.prom.port",
    "string",
    "9249-9349",
    "Prometheus port, or a range from which each process takes the first free port; 0: any "
    "free port.",
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
    "Labels to drop from all metrics, e.g. task_attempt_id.",
)
METRICS_INTERVAL = _task_executors.option(
    "metrics.fetcher.update-interval",
    "duration",
    0.5,
    "Interval at which slots report the metrics of their tasks.",
)

_jobs = _Section("Jobs")
PARALLELISM = _jobs.option(
    "parallelism.default",
    "int",
    1,
    "Parallelism of operators without an explicit parallelism.",
    minimum=1,
)
MAX_PARALLELISM = _jobs.option(
    "pipeline.max-parallelism",
    "int",
    128,
    "Number of key groups; cannot change while state is kept.",
    minimum=1,
)
OPERATOR_CHAINING = _jobs.option(
    "pipeline.operator-chaining.enabled", "bool", True, "Whether operators are chained into tasks."
)
RUNTIME_MODE = _jobs.option(
    "execution.runtime-mode",
    "enum",
    "STREAMING",
    "BATCH: tasks exchange complete results, a task starts when its inputs are complete, and "
    "a failure repeats only failed tasks; all sources must end, and no checkpoints are taken. "
    "AUTOMATIC: BATCH if all sources end and the job does not start from a savepoint.",
    choices=("STREAMING", "BATCH", "AUTOMATIC"),
)
BATCH_SHUFFLE_MODE = _jobs.option(
    "execution.batch-shuffle-mode",
    "enum",
    "ALL_EXCHANGES_BLOCKING",
    "How the tasks of a batch exchange rows: as complete results, or as they are produced, "
    "which needs slots for all tasks simultaneously.",
    choices=("ALL_EXCHANGES_BLOCKING", "ALL_EXCHANGES_PIPELINED"),
)
SLOT_REQUEST_TIMEOUT = _jobs.option(
    "slot.request.timeout", "duration", 300.0, "Time after which a job that lacks slots fails."
)
SLOT_IDLE_TIMEOUT = _jobs.option(
    "slot.idle.timeout",
    "duration",
    50.0,
    "Time after which a JobMaster returns an idle slot.",
)
RESTART_STRATEGY = _jobs.option(
    "restart-strategy.type",
    "enum",
    "none",
    "Whether a failed job is restarted: never; a number of times (fixed-delay); after "
    "increasing delays (exponential-delay); unless it fails too often (failure-rate). "
    "For jobs that take checkpoints, the default is exponential-delay.",
    choices=("none", "fixed-delay", "exponential-delay", "failure-rate"),
)
RESTART_ATTEMPTS = _jobs.option(
    "restart-strategy.fixed-delay.attempts",
    "int",
    1,
    "Maximum number of restarts.",
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
    "Factor by which each delay is longer than the previous one.",
    minimum=1,
)
RESTART_RESET_BACKOFF = _jobs.option(
    "restart-strategy.exponential-delay.reset-backoff-threshold",
    "duration",
    3600.0,
    "Time without a failure after which the delay is reset to the first one.",
)
RESTART_JITTER = _jobs.option(
    "restart-strategy.exponential-delay.jitter-factor",
    "float",
    0.1,
    "Fraction by which each delay is randomly lengthened or shortened.",
    minimum=0,
    maximum=1,
)
RESTART_BACKOFF_ATTEMPTS = _jobs.option(
    "restart-strategy.exponential-delay.attempts-before-reset-backoff",
    "int",
    0,
    "Maximum number of restarts before the delay is reset; 0: no maximum.",
    minimum=0,
)
RESTART_MAX_FAILURES = _jobs.option(
    "restart-strategy.failure-rate.max-failures-per-interval",
    "int",
    1,
    "Maximum number of failures within an interval; a job that fails more often is not restarted.",
    minimum=1,
)
RESTART_FAILURE_INTERVAL = _jobs.option(
    "restart-strategy.failure-rate.failure-rate-interval",
    "duration",
    60.0,
    "Interval in which failures are counted.",
)
RESTART_FAILURE_DELAY = _jobs.option(
    "restart-strategy.failure-rate.delay",
    "duration",
    1.0,
    "Time between a failure and the restart.",
)
RESTART_AFTER_USER_ERRORS = _jobs.option(
    "restart-strategy.user-errors",
    "enum",
    "restart",
    "What the strategy does after an exception of the program's functions or an invalid value in "
    "its expressions, which are likely to recur: it decides as for other failures (restart), or "
    "the job ends (fail).",
    choices=("restart", "fail"),
)
FAILOVER_STRATEGY = _jobs.option(
    "jobmanager.execution.failover-strategy",
    "enum",
    "region",
    "Tasks that restart after a failure: those that exchange data with a failed task, "
    "directly or indirectly (region); all tasks (full); only failed tasks, in a job whose "
    "tasks exchange no data and that takes no checkpoints (individual).",
    choices=("region", "full", "individual"),
)
SCHEDULING_POLICY = _jobs.option(
    "jobmanager.scheduling-policy",
    "enum",
    "auto",
    "When tasks start: all together (eager); when the blocking results that a task reads are "
    "complete, together with the tasks of its pipeline (pipelined-region); when all upstream "
    "operators have finished (lazy-from-sources). auto is eager for streams and "
    "pipelined-region for batches.",
    choices=("auto", "eager", "lazy-from-sources", "pipelined-region"),
)
_scaling = _Section("Rescaling")
SCHEDULER_MODE = _scaling.option(
    "scheduler-mode",
    "enum",
    "default",
    "Whether streams follow the slots that there are: between 1 and the parallelism of the program "
    "(adaptive), or between 1 and the maximum parallelism (reactive). With default, they wait for "
    "their slots.",
    choices=("default", "adaptive", "reactive"),
)
SCALE_COOLDOWN = _scaling.option(
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling",
    "duration",
    30.0,
    "With scheduler-mode adaptive or reactive: the time between two changes of a running job.",
)
SCALE_STABILIZATION = _scaling.option(
    "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout",
    "duration",
    60.0,
    "As above: the time without a change of the slots before a running job uses more of them. It "
    "uses them immediately once it can run with its highest parallelism.",
)
SLOTS_STABILIZATION = _scaling.option(
    "jobmanager.adaptive-scheduler.submission.resource-stabilization-timeout",
    "duration",
    10.0,
    "As above: the time without a change of the slots before a job that starts or restarts accepts "
    "a lower parallelism.",
)
AUTOSCALER = _scaling.option(
    "job.autoscaler.enabled",
    "bool",
    False,
    "Whether a stream with checkpoints changes the parallelism of its vertices with its load.",
)
AUTOSCALER_DRY_RUN = _scaling.option(
    "job.autoscaler.dry-run",
    "bool",
    False,
    "Whether the autoscaler only shows its decisions, in `firesteel show` and in the job's log.",
)
AUTOSCALER_UTILIZATION = _scaling.option(
    "job.autoscaler.target.utilization",
    "float",
    0.7,
    "The share of time for which a vertex should be busy.",
    minimum=0.1,
    maximum=1.0,
)
AUTOSCALER_BOUNDARY = _scaling.option(
    "job.autoscaler.target.utilization.boundary",
    "float",
    0.2,
    "How far the share may be above or below that before the parallelism changes.",
    minimum=0.0,
    maximum=1.0,
)
AUTOSCALER_WINDOW = _scaling.option(
    "job.autoscaler.metrics.window",
    "duration",
    300.0,
    "The time over which the load is measured.",
    minimum=10.0,
)
AUTOSCALER_STABILIZATION = _scaling.option(
    "job.autoscaler.stabilization.interval",
    "duration",
    120.0,
    "The time after a change until the load is measured again.",
)
AUTOSCALER_SCALE_DOWN = _scaling.option(
    "job.autoscaler.scale-down.interval",
    "duration",
    3600.0,
    "The time for which fewer subtasks must have sufficed before a vertex gets fewer.",
)
AUTOSCALER_CATCH_UP = _scaling.option(
    "job.autoscaler.catch-up.duration",
    "duration",
    1800.0,
    "The time in which the backlog of a source should be worked off.",
    minimum=1.0,
)
AUTOSCALER_LEAST = _scaling.option(
    "job.autoscaler.vertex.min-parallelism",
    "int",
    1,
    "The lowest parallelism that the autoscaler chooses.",
    minimum=1,
)
AUTOSCALER_MOST = _scaling.option(
    "job.autoscaler.vertex.max-parallelism",
    "int",
    200,
    "The highest parallelism that the autoscaler chooses.",
    minimum=1,
)
AUTOSCALER_EFFECTIVENESS = _scaling.option(
    "job.autoscaler.scaling.effectiveness.threshold",
    "float",
    0.1,
    "The share of the expected gain below which more subtasks count as useless: the vertex gets no "
    "more of them.",
    minimum=0.0,
    maximum=1.0,
)
_checkpoints = _Section("Checkpoints")
STATE_BACKEND = _checkpoints.option(
    "state.backend.type",
    "enum",
    "hashmap",
    "Location of keyed state: memory, or RocksDB on the slot's disk with managed memory as "
    "its cache. If unset in batch mode: memory, with columnar state in files beyond the "
    "managed memory.",
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
    "Location of checkpoints: a directory that all processes share, or a URI such as "
    "s3://bucket/checkpoints.",
)
SAVEPOINT_DIR = _checkpoints.option(
    "execution.checkpointing.savepoint-dir",
    "string",
    "",
    "Location of savepoints if `firesteel savepoint` names no directory.",
)
RECOVERY_PATH = _checkpoints.option(
    "execution.state-recovery.path",
    "string",
    "",
    "Savepoint or checkpoint from which the job starts, as with `firesteel run -s`.",
)
RECOVERY_CLAIM_MODE = _checkpoints.option(
    "execution.state-recovery.claim-mode",
    "enum",
    "NO_CLAIM",
    "Whether the job owns the savepoint or checkpoint from which it starts (CLAIM) and "
    "deletes it when it has newer checkpoints.",
    choices=("NO_CLAIM", "CLAIM"),
)
RECOVERY_ALLOW_UNMATCHED = _checkpoints.option(
    "execution.state-recovery.ignore-unclaimed-state",
    "bool",
    False,
    "Whether to discard state of operators that the program no longer contains, as with "
    "`firesteel run -n`.",
)
CHECKPOINT_MODE = _checkpoints.option(
    "execution.checkpointing.mode",
    "enum",
    "exactly-once",
    "at-least-once: tasks do not wait for the barriers of all inputs; rows may count twice "
    "after a failure.",
    choices=("exactly-once", "at-least-once"),
)
CHECKPOINT_UNALIGNED = _checkpoints.option(
    "execution.checkpointing.unaligned.enabled",
    "bool",
    False,
    "Whether barriers overtake the batches between tasks, which become part of the checkpoint.",
)
CHECKPOINT_ALIGNED_TIMEOUT = _checkpoints.option(
    "execution.checkpointing.aligned-checkpoint-timeout",
    "duration",
    0.0,
    "With unaligned.enabled, barriers overtake only where they have waited this long; 0: "
    "immediately.",
)
CHECKPOINT_INCREMENTAL = _checkpoints.option(
    "execution.checkpointing.incremental",
    "bool",
    False,
    "Whether a checkpoint of the rocksdb backend refers to files of earlier ones instead of "
    "rewriting them.",
)
CHECKPOINT_INLINE_THRESHOLD = _checkpoints.option(
    "execution.checkpointing.data-inline-threshold",
    "size",
    20 * KIB,
    "Size up to which the keyed state of a subtask is stored in the checkpoint's _metadata "
    "instead of a file; at most 1 mb per operator in total.",
    minimum=0,
    maximum=MIB,
)
CHECKPOINT_TIMEOUT = _checkpoints.option(
    "execution.checkpointing.timeout",
    "duration",
    600.0,
    "Time after which an incomplete checkpoint is aborted.",
    minimum=0.01,
)
CHECKPOINT_MIN_PAUSE = _checkpoints.option(
    "execution.checkpointing.min-pause",
    "duration",
    0.0,
    "Minimum time between the end of a checkpoint and the start of the next periodic one.",
)
CHECKPOINT_MAX_CONCURRENT = _checkpoints.option(
    "execution.checkpointing.max-concurrent-checkpoints",
    "int",
    1,
    "Maximum number of checkpoints in progress.",
    minimum=1,
)
CHECKPOINT_TOLERABLE_FAILURES = _checkpoints.option(
    "execution.checkpointing.tolerable-failed-checkpoints",
    "int",
    0,
    "Number of consecutive failed checkpoints that the job tolerates.",
    minimum=0,
)
CHECKPOINT_NUM_RETAINED = _checkpoints.option(
    "execution.checkpointing.num-retained",
    "int",
    1,
    "Number of complete checkpoints that are retained.",
    minimum=1,
)
CHECKPOINT_RETENTION = _checkpoints.option(
    "execution.checkpointing.externalized-checkpoint-retention",
    "enum",
    "NO_EXTERNALIZED_CHECKPOINTS",
    "Whether complete checkpoints are retained when the job fails (DELETE_ON_CANCELLATION), "
    "or when it fails or is cancelled (RETAIN_ON_CANCELLATION). They are never retained when "
    "it finishes.",
    choices=("NO_EXTERNALIZED_CHECKPOINTS", "DELETE_ON_CANCELLATION", "RETAIN_ON_CANCELLATION"),
)
CHECKPOINT_AFTER_FINISH = _checkpoints.option(
    "execution.checkpointing.checkpoints-after-tasks-finish.enabled",
    "bool",
    True,
    "Whether checkpoints continue after some tasks have finished.",
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
    "Maximum size of all collected rows on the Dispatcher's disk. To make room, those of "
    "ended jobs are deleted, oldest first; a job whose rows do not fit fails. 0: no limit.",
    minimum=0,
)
RESULTS_MAX_AGE = _jobs.option(
    "results.max-age",
    "duration",
    7 * 86400.0,
    "Time that collected rows are kept after the end of their job; 0: as long as the job.",
    minimum=0,
)
PAYLOAD_LIMIT = _jobs.option(
    "client.payload.max-size",
    "size",
    48 * MIB,
    "Maximum size of a submitted job without its files; the limit of control messages.",
    maximum=48 * MIB,
)
BLOB_LIMIT = _jobs.option(
    "blob.max-size", "size", 512 * MIB, "Maximum size of a user file or archive."
)

_cluster = _Section("The cluster")
HEARTBEAT_INTERVAL = _cluster.option(
    "heartbeat.interval", "duration", 2.0, "Time between heartbeats.", minimum=0.001
)
HEARTBEAT_TIMEOUT = _cluster.option(
    "heartbeat.timeout",
    "duration",
    20.0,
    "Time of silence after which a peer is declared dead, and a slot's process or JVM is killed.",
)
ADOPTION_TIMEOUT = _cluster.option(
    "jobmaster.adoption.timeout",
    "duration",
    30.0,
    "Time that tasks keep running without a JobMaster, and that the next JobMaster waits for "
    "their reports. Tasks that have not reported by then count as failed and restart.",
)
SPREAD_SLOTS = _cluster.option(
    "cluster.evenly-spread-out-slots",
    "bool",
    True,
    "Whether jobs use slots of all TaskExecutors evenly instead of filling one after the other.",
)
MAX_SLOTS = _cluster.option(
    "slotmanager.number-of-slots.max",
    "int",
    0,
    "Maximum number of slots, including TaskExecutors that are started on demand; 0: none are "
    "started.",
)
TM_IDLE_TIMEOUT = _cluster.option(
    "resourcemanager.taskmanager-timeout",
    "duration",
    30.0,
    "Idle time after which a TaskExecutor that was started on demand is stopped.",
)
PREVIOUS_WORKER_TIMEOUT = _cluster.option(
    "resourcemanager.previous-worker.recovery.timeout",
    "duration",
    10.0,
    "Time that a restarted ResourceManager waits for the TaskExecutors of its predecessor "
    "before it matches slots or starts new ones. Those that do not register within another "
    "two minutes are stopped.",
)
REGISTRATION_TIMEOUT = _cluster.option(
    "resourcemanager.taskmanager-registration.timeout",
    "duration",
    120.0,
    "Time that a TaskExecutor which was started on demand has to register. Then it is stopped, and "
    "another one is started after a pause.",
)
REQUIREMENTS_DELAY = _cluster.option(
    "slotmanager.requirement-check.delay",
    "duration",
    0.0,
    "Time that requirements are collected before slots are matched.",
)
DATABASE_URL = _cluster.option(
    "database.url",
    "string",
    "",
    "SQLAlchemy URL of the job store; empty: SQLite in the cluster's directory. Parameters of"
    " PostgreSQL are part of it: `?sslmode=verify-full&sslrootcert=/etc/db-ca.pem` uses TLS.",
    secret=True,
)
S3_ACCESS_KEY = _cluster.option(
    "s3.access-key",
    "string",
    "",
    "Access key for checkpoints and savepoints on S3; empty: the usual environment, files or "
    "roles of AWS.",
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
    "URL of an S3-compatible object store, such as `http://minio:9000`; empty: AWS.",
    secret=True,
    variable="AWS_ENDPOINT_URL",
)
S3_AUTHORITY = _cluster.option(
    "s3.endpoint.ca-file",
    "string",
    "",
    "File with the certificates (PEM) of the authorities that may sign that of an `https` endpoint;"
    " empty: those of the system.",
    secret=True,
    variable="AWS_CA_BUNDLE",
)
S3_REGION = _cluster.option(
    "s3.endpoint.region",
    "string",
    "",
    "Region of S3; empty: the region of the bucket.",
    secret=True,
    variable="AWS_DEFAULT_REGION",
)

_kubernetes = _Section("Kubernetes")
KUBERNETES_CLUSTER_ID = _kubernetes.option(
    "kubernetes.cluster-id",
    "string",
    "",
    "Name of the cluster in its namespace; the names of its objects start with it. Up to 45 "
    "lower-case letters, digits and `-`, with a letter first.",
)
KUBERNETES_NAMESPACE = _kubernetes.option(
    "kubernetes.namespace",
    "string",
    "",
    "Namespace of the cluster; empty: that of the kubeconfig's context, or of the pod.",
)
KUBERNETES_CONFIG_FILE = _kubernetes.option(
    "kubernetes.config.file",
    "string",
    "",
    "kubeconfig file; empty: the files of KUBECONFIG, the pod's ServiceAccount, or "
    "`~/.kube/config`.",
)
KUBERNETES_CONTEXT = _kubernetes.option(
    "kubernetes.context",
    "string",
    "",
    "Context of the kubeconfig file; empty: its current one.",
)
KUBERNETES_OWNER = _kubernetes.option(
    "kubernetes.owner",
    "string",
    "",
    "Object that owns the pods of TaskExecutors, so that they are deleted with it, as KIND/NAME; "
    "empty: the Deployment named as the cluster; `none`: the ResourceManager deletes the pods when "
    "it stops.",
)
KUBERNETES_IMAGE = _kubernetes.option(
    "kubernetes.container.image.ref",
    "string",
    "",
    "Image of the containers; empty: that of the pod template.",
)
KUBERNETES_PULL_POLICY = _kubernetes.option(
    "kubernetes.container.image.pull-policy",
    "enum",
    "IfNotPresent",
    "When nodes pull the image.",
    choices=("IfNotPresent", "Always", "Never"),
)
KUBERNETES_PULL_SECRETS: Option[list[str]] = _kubernetes.option(
    "kubernetes.container.image.pull-secrets",
    "list",
    [],
    "Secrets with the credentials of the registry.",
)
KUBERNETES_TM_SERVICE_ACCOUNT = _kubernetes.option(
    "kubernetes.taskmanager.service-account",
    "string",
    "",
    "ServiceAccount of TaskExecutors; empty: that of the pod template, or `default`. Its token is "
    "not mounted, unless the template sets `automountServiceAccountToken`.",
)
KUBERNETES_TM_TEMPLATE = _kubernetes.option(
    "kubernetes.pod-template-file.taskexecutor",
    "string",
    "",
    "File with the manifest of a Pod, to which Firesteel adds its own values. The container named "
    "`firesteel-main-container` runs the TaskExecutor; it is added if there is none.",
)
KUBERNETES_TM_LABELS: Option[list[str]] = _kubernetes.option(
    "kubernetes.taskmanager.labels", "list", [], "Labels of the pods, as NAME:VALUE."
)
KUBERNETES_TM_ANNOTATIONS: Option[list[str]] = _kubernetes.option(
    "kubernetes.taskmanager.annotations", "list", [], "Annotations of the pods, as NAME:VALUE."
)
KUBERNETES_TM_NODE_SELECTOR: Option[list[str]] = _kubernetes.option(
    "kubernetes.taskmanager.node-selector",
    "list",
    [],
    "Labels of the nodes that may run the pods, as NAME:VALUE.",
)
KUBERNETES_TM_TOLERATIONS = _kubernetes.option(
    "kubernetes.taskmanager.tolerations",
    "string",
    "",
    "Tolerations of the pods, such as "
    "`key:spot,operator:Exists;key:gpu,operator:Equal,value:yes,effect:NoSchedule`.",
)
KUBERNETES_TM_ENVIRONMENT: Option[list[str]] = _kubernetes.option(
    "kubernetes.taskmanager.environment",
    "list",
    [],
    "Environment variables of TaskExecutors, as NAME=VALUE.",
)
KUBERNETES_TM_ENVIRONMENT_SECRETS: Option[list[str]] = _kubernetes.option(
    "kubernetes.taskmanager.environment.secrets",
    "list",
    [],
    "Secrets whose keys become environment variables of TaskExecutors.",
)
KUBERNETES_SECRETS: Option[list[str]] = _kubernetes.option(
    "kubernetes.secrets",
    "list",
    [],
    "Secrets that are mounted into the containers, as NAME:DIRECTORY.",
)
KUBERNETES_TM_CPU_LIMIT = _kubernetes.option(
    "kubernetes.taskmanager.cpu.limit-factor",
    "float",
    1.0,
    "The limit on the CPU of a pod, as a multiple of the cores of its slots.",
    minimum=1.0,
)
KUBERNETES_TM_MEMORY_OVERHEAD = _kubernetes.option(
    "kubernetes.taskmanager.memory.overhead",
    "size",
    384 * MIB,
    "Memory of a pod beyond that of its slots.",
)
KUBERNETES_TM_MEMORY_LIMIT = _kubernetes.option(
    "kubernetes.taskmanager.memory.limit-factor",
    "float",
    1.0,
    "The limit on the memory of a pod, as a multiple of the memory that it requests.",
    minimum=1.0,
)
KUBERNETES_TM_RESOURCES: Option[list[str]] = _kubernetes.option(
    "kubernetes.taskmanager.extended-resources",
    "list",
    [],
    "Further resources of a pod, as NAME=AMOUNT, such as `nvidia.com/gpu=1`.",
)
KUBERNETES_TM_GRACE = _kubernetes.option(
    "kubernetes.taskmanager.termination-grace-period",
    "duration",
    120.0,
    "Time that a TaskExecutor has to stop before its pod is killed. Until then, its tasks move to "
    "other TaskExecutors.",
    minimum=1,
)
KUBERNETES_TM_PORT = _kubernetes.option(
    "kubernetes.taskmanager.rpc.port",
    "int",
    6122,
    "Port of TaskExecutors in their pods; replaces `taskmanager.rpc.port`.",
    minimum=1,
    maximum=65535,
)
KUBERNETES_RM_ADDRESS = _kubernetes.option(
    "kubernetes.resourcemanager.address",
    "string",
    "",
    "HOST:PORT at which TaskExecutors in pods reach the leading ResourceManager, such as that of a "
    "Service; empty: its own address or, if it is elected, that of its Lease, which needs the "
    "token of a ServiceAccount.",
)
KUBERNETES_CREATION_RATE = _kubernetes.option(
    "kubernetes.pod-creation.rate",
    "float",
    100.0,
    "Maximum number of pods that are created per second.",
    minimum=0.1,
)
KUBERNETES_CREATION_CONCURRENCY = _kubernetes.option(
    "kubernetes.pod-creation.concurrency",
    "int",
    16,
    "Maximum number of requests to create pods that wait for an answer.",
    minimum=1,
    maximum=1000,
)
KUBERNETES_MASTERS = _kubernetes.option(
    "kubernetes.masters",
    "enum",
    "together",
    "`together`: each pod of the Deployment runs a Dispatcher and a ResourceManager. `separate`: "
    "each has its own Deployment.",
    choices=("together", "separate"),
)
KUBERNETES_JM_REPLICAS = _kubernetes.option(
    "kubernetes.jobmanager.replicas",
    "int",
    1,
    "Number of pods of masters; one of them leads. Several need a job store and a storage "
    "directory that all of them reach (`database.url`, `high-availability.storageDir`).",
    minimum=1,
    maximum=100,
)
KUBERNETES_SERVICE_ACCOUNT = _kubernetes.option(
    "kubernetes.service-account",
    "string",
    "",
    "ServiceAccount of the masters; empty: one is created with the Role that they need.",
)
KUBERNETES_JM_TEMPLATE = _kubernetes.option(
    "kubernetes.pod-template-file.jobmanager",
    "string",
    "",
    "The same as `kubernetes.pod-template-file.taskexecutor` for the pods of masters.",
)
KUBERNETES_JM_LABELS: Option[list[str]] = _kubernetes.option(
    "kubernetes.jobmanager.labels", "list", [], "Labels of masters' pods, as NAME:VALUE."
)
KUBERNETES_JM_ANNOTATIONS: Option[list[str]] = _kubernetes.option(
    "kubernetes.jobmanager.annotations", "list", [], "Annotations of masters' pods, as NAME:VALUE."
)
KUBERNETES_JM_NODE_SELECTOR: Option[list[str]] = _kubernetes.option(
    "kubernetes.jobmanager.node-selector",
    "list",
    [],
    "Labels of the nodes that may run masters, as NAME:VALUE.",
)
KUBERNETES_JM_TOLERATIONS = _kubernetes.option(
    "kubernetes.jobmanager.tolerations",
    "string",
    "",
    "Tolerations of masters' pods, as `kubernetes.taskmanager.tolerations`.",
)
KUBERNETES_JM_ENVIRONMENT: Option[list[str]] = _kubernetes.option(
    "kubernetes.jobmanager.environment",
    "list",
    [],
    "Environment variables of masters, as NAME=VALUE.",
)
KUBERNETES_JM_ENVIRONMENT_SECRETS: Option[list[str]] = _kubernetes.option(
    "kubernetes.jobmanager.environment.secrets",
    "list",
    [],
    "Secrets whose keys become environment variables of masters.",
)
KUBERNETES_JM_CPU = _kubernetes.option(
    "kubernetes.jobmanager.cpu.amount", "float", 1.0, "Cores of a pod of masters.", minimum=0.001
)
KUBERNETES_JM_CPU_LIMIT = _kubernetes.option(
    "kubernetes.jobmanager.cpu.limit-factor",
    "float",
    1.0,
    "The limit on the CPU of a pod of masters, as a multiple of its cores.",
    minimum=1.0,
)
JM_PROCESS_SIZE = _kubernetes.option(
    "jobmanager.memory.process.size",
    "size",
    2048 * MIB,
    "Memory of a pod of masters: its Dispatcher, its ResourceManager, its REST server, and a "
    "JobMaster for each job.",
    minimum=64 * MIB,
)
KUBERNETES_JM_MEMORY_LIMIT = _kubernetes.option(
    "kubernetes.jobmanager.memory.limit-factor",
    "float",
    1.0,
    "The limit on the memory of a pod of masters, as a multiple of the memory that it requests.",
    minimum=1.0,
)
KUBERNETES_JM_GRACE = _kubernetes.option(
    "kubernetes.jobmanager.termination-grace-period",
    "duration",
    30.0,
    "Time that masters have to stop before their pod is killed.",
    minimum=1,
)
KUBERNETES_REST_TYPE = _kubernetes.option(
    "kubernetes.rest-service.exposed.type",
    "enum",
    "ClusterIP",
    "Type of the Service of the REST API and the dashboard.",
    choices=("ClusterIP", "Headless_ClusterIP", "NodePort", "LoadBalancer"),
)
KUBERNETES_REST_ANNOTATIONS: Option[list[str]] = _kubernetes.option(
    "kubernetes.rest-service.annotations",
    "list",
    [],
    "Annotations of the Service of the REST API, as NAME:VALUE.",
)
KUBERNETES_NETWORK_POLICY = _kubernetes.option(
    "kubernetes.network-policy.enabled",
    "bool",
    True,
    "Whether the cluster gets NetworkPolicies, which restrict connections to its pods.",
)
KUBERNETES_RETENTION = _kubernetes.option(
    "kubernetes.application.retention",
    "duration",
    60.0,
    "Time for which an application cluster stays after its job has ended. `firesteel run` deletes "
    "it earlier, once it has shown the result.",
)
KUBERNETES_SUBMISSION_TIMEOUT = _kubernetes.option(
    "kubernetes.application.submission-timeout",
    "duration",
    300.0,
    "Time after which an application cluster deletes itself if the client submits no job.",
    minimum=1,
)
KUBERNETES_START_TIMEOUT = _kubernetes.option(
    "kubernetes.client.start-timeout",
    "duration",
    300.0,
    "Time for which `run` and `cluster start` wait until the masters serve.",
    minimum=1,
)

_availability = _Section("High availability")
HA_TYPE = _availability.option(
    "high-availability.type",
    "enum",
    "none",
    "Whether the Dispatcher and ResourceManager have fixed addresses (none) or are elected, in "
    "ZooKeeper or with Leases of Kubernetes.",
    choices=("none", "zookeeper", "kubernetes"),
)
HA_CLUSTER_ID = _availability.option(
    "high-availability.cluster-id",
    "string",
    "default",
    "Distinguishes clusters that share an ensemble and its root path.",
)
HA_STORAGE_DIR = _availability.option(
    "high-availability.storageDir",
    "string",
    "",
    "Location of the users' files and the collected rows of jobs: a directory that all "
    "Dispatchers mount, as a path or `file:///PATH`, or one in an object store, such as "
    "`s3://BUCKET/PATH`; empty: the Dispatcher's `--dir`.",
)
ZOOKEEPER_QUORUM: Option[list[str]] = _availability.option(
    "high-availability.zookeeper.quorum",
    "list",
    [],
    "`HOST:PORT` of each server of the ensemble.",
)
ZOOKEEPER_ROOT = _availability.option(
    "high-availability.zookeeper.path.root",
    "string",
    "/firesteel",
    "Parent node of the nodes of clusters.",
)
ZOOKEEPER_ACL = _availability.option(
    "high-availability.zookeeper.client.acl",
    "enum",
    "open",
    "Access to the nodes: any client, or only clients with the credentials of "
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
    "Time of silence after which another leader is elected. ZooKeeper allows 2 to 20 of its ticks.",
    minimum=1,
)

LEASE_DURATION = _availability.option(
    "high-availability.kubernetes.leader-election.lease-duration",
    "duration",
    15.0,
    "Time without renewals after which another contender takes the Lease.",
    minimum=1,
)
RENEW_DEADLINE = _availability.option(
    "high-availability.kubernetes.leader-election.renew-deadline",
    "duration",
    10.0,
    "Time without a renewal after which the leader stops to act until it has renewed its Lease. At "
    "most 5/6 of the lease duration.",
    minimum=0.5,
)
RETRY_PERIOD = _availability.option(
    "high-availability.kubernetes.leader-election.retry-period",
    "duration",
    2.0,
    "Time between renewals, and between attempts. At most half of the renew deadline.",
    minimum=0.1,
)

_logs = _Section("Logs")
LOG_MAX = _logs.option(
    "env.log.max",
    "int",
    100,
    "Number of logs that are kept of ended JobMasters, and of ended TaskExecutors with their "
    "slots.",
    minimum=1,
)
LOG_MAX_SIZE = _logs.option(
    "env.log.max-size",
    "size",
    16 * MIB,
    "Size beyond which a log is renamed to NAME.log.1, replacing the previous one, and "
    "restarted. 0: no limit.",
    minimum=0,
)

_exchange = _Section("Exchange between tasks")
CHANNEL_WINDOW = _exchange.option(
    "taskmanager.network.memory.channel-window",
    "size",
    4 * MIB,
    "Bytes that a producer may be ahead of its consumer in each channel.",
    minimum=1,
)
BATCH_ROWS = _exchange.option(
    "taskmanager.network.batch-rows",
    "int",
    65536,
    "Maximum number of rows of a batch between tasks.",
    minimum=1,
)
PARTITION_TIMEOUT = _exchange.option(
    "taskmanager.network.partition-request-timeout",
    "duration",
    30.0,
    "Time that a consumer waits for the partition of its producer to exist.",
)
BLOCKING_BUFFER = _exchange.option(
    "taskmanager.network.blocking-shuffle.buffer.size",
    "size",
    16 * MIB,
    "Size of the buffer in which a producer sorts the rows of a blocking result by consumer "
    "before it writes them.",
    minimum=1,
)
BLOCKING_MEMORY = _exchange.option(
    "taskmanager.network.blocking-shuffle.memory.size",
    "size",
    128 * MIB,
    "Total size of the small blocking results that a TaskExecutor keeps in shared memory. All "
    "others, and those larger than the buffer, are files in its working directory. 0: none in "
    "shared memory.",
    minimum=0,
)
COMPRESSION_CODEC = _exchange.option(
    "taskmanager.network.compression.codec",
    "enum",
    "NONE",
    "Compression of blocking results, which saves disk space for additional CPU time.",
    choices=("NONE", "LZ4"),
)

_python = _Section("Spark and Python")
SPARK_MASTER = _python.option(
    "spark.master", "string", "", "Master of the slot's SparkSession; empty: local[<slot cores>]."
)
PYTHON_FILES: Option[list[str]] = _python.option(
    "python.files", "list", [], "Files to add to the job's sys.path, as with --py-files."
)
PYTHON_ARCHIVES: Option[list[str]] = _python.option(
    "python.archives",
    "list",
    [],
    "Archives to unpack in the job's directory, as with --py-archives.",
)
PYTHON_REQUIREMENTS = _python.option(
    "python.requirements", "string", "", "A requirements.txt, as with --py-requirements."
)
MODULES_LIMIT = _python.option(
    "python.modules.max-size",
    "size",
    64 * MIB,
    "Maximum total size of the program's modules, which are shipped with its job; 0: none are.",
    minimum=0,
)
PYTHON_EXECUTABLE = _python.option(
    "python.executable",
    "string",
    "",
    "Python interpreter of the slots; empty: that of the TaskExecutor.",
)
BUNDLE_BYTES = _python.option(
    "python.fn-execution.bundle.bytes", "size", 64 * MIB, "Maximum size of a bundle for Spark."
)
