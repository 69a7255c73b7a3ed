"""The table of access: which roles may call each method of every gRPC service, and each route of
the REST API.

A method or route that is missing here is denied to everybody. Tests enumerate all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from firesteel.common.security.roles import PEOPLE, Identity, Role

_PACKAGE = "firesteel.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`least`: the least role of a person who may; None: no person may. `processes`: the roles of
    processes that may. `public`: everybody may, without a credential.
    """

    least: Role | None = None
    processes: frozenset[Role] = frozenset()
    public: bool = False

    @property
    def audited(self) -> bool:
        """Whether the audit log records each call: those by which people change something, or run
        code.
        """
        return self.least is not None and self.least is not Role.VIEWER

    @property
    def for_owners(self) -> bool:
        """Whether a bearer who is limited to own jobs calls it for these alone: it acts on a job,
        or reads its rows.
        """
        return self.least is Role.OPERATOR

    def allows(self, identity: Identity) -> bool:
        if identity.role in self.processes:
            return True
        return self.least is not None and identity.role.includes(self.least)

    def __str__(self) -> str:
        people = [role.value for role in PEOPLE if self.least and role.includes(self.least)]
        return ", ".join(people or sorted(role.value for role in self.processes)) or "nobody"


def _people(least: Role, *processes: Role) -> Access:
    return Access(least=least, processes=frozenset(processes))


def _processes(*roles: Role) -> Access:
    return Access(processes=frozenset(roles))


_PUBLIC = Access(public=True)
_DENIED = Access()

METHODS: Final[Mapping[str, Access]] = {
    f"/{service}/{method}": access
    for service, methods in {
        f"{_PACKAGE}.Dispatcher": {
            "ListJobs": _people(Role.VIEWER),
            "GetJobDetails": _people(Role.VIEWER, Role.REST),
            "GetJobSeries": _people(Role.VIEWER),
            "WatchJob": _people(Role.VIEWER, Role.REST),
            "FetchLogs": _people(Role.VIEWER),
            "GetClusterOverview": _people(Role.VIEWER),
            "DescribeProcess": _people(Role.VIEWER),
            "ReadLogFile": _people(Role.VIEWER),
            "CancelJob": _people(Role.OPERATOR, Role.REST),
            "TakeCheckpoint": _people(Role.OPERATOR, Role.REST),
            "AwaitCheckpoint": _people(Role.VIEWER, Role.REST),
            "RescaleJob": _people(Role.OPERATOR),
            "DisposeSavepoint": _people(Role.OPERATOR),
            "InspectTask": _people(Role.OPERATOR),
            "DumpThreads": _people(Role.OPERATOR),
            "RemoveJob": _people(Role.OPERATOR),
            "FetchResults": _people(Role.OPERATOR),
            "SubmitJob": _people(Role.SUBMITTER),
            "MissingBlobs": _people(Role.SUBMITTER),
            "UploadBlob": _people(Role.SUBMITTER),
            "StopTaskExecutor": _people(Role.ADMIN),
            "ShutDownCluster": _people(Role.ADMIN),
            "DownloadBlob": _people(Role.ADMIN, Role.JOB_MASTER, Role.TASK_EXECUTOR),
            "ConnectJobMaster": _processes(Role.JOB_MASTER),
            "AppendResults": _processes(Role.JOB_MASTER),
            "CommitCheckpoint": _processes(Role.JOB_MASTER),
            "CommitParallelism": _processes(Role.JOB_MASTER),
        },
        f"{_PACKAGE}.Access": {
            "WhoAmI": _people(Role.VIEWER),
            "RunProgram": _people(Role.SUBMITTER),
            "CreateToken": _people(Role.ADMIN),
            "ListTokens": _people(Role.ADMIN),
            "RevokeToken": _people(Role.ADMIN),
            "ReadAudit": _people(Role.ADMIN),
            "ListRevoked": _processes(Role.REST),
        },
        f"{_PACKAGE}.ResourceManager": {
            "ConnectTaskExecutor": _processes(Role.TASK_EXECUTOR),
            "ConnectJobMaster": _processes(Role.JOB_MASTER),
            "GetOverview": _processes(Role.DISPATCHER),
            "StopTaskExecutor": _processes(Role.DISPATCHER),
        },
        f"{_PACKAGE}.JobMaster": {
            "ConnectTaskExecutor": _processes(Role.TASK_EXECUTOR),
            "CancelJob": _processes(Role.DISPATCHER),
            "TakeCheckpoint": _processes(Role.DISPATCHER),
            "RescaleJob": _processes(Role.DISPATCHER),
            "InspectTask": _processes(Role.DISPATCHER),
            "AwaitCheckpoint": _processes(Role.DISPATCHER),
            "GetJobDetails": _processes(Role.DISPATCHER),
            "GetJobSeries": _processes(Role.DISPATCHER),
        },
        f"{_PACKAGE}.JobLogs": {"ReadJobLogs": _processes(Role.DISPATCHER)},
        f"{_PACKAGE}.ProcessInfo": {
            "DescribeProcess": _processes(Role.DISPATCHER),
            "ReadLogFile": _processes(Role.DISPATCHER),
        },
        f"{_PACKAGE}.Threads": {"DumpThreads": _processes(Role.DISPATCHER)},
        f"{_PACKAGE}.ExecutorLink": {"Connect": _processes(Role.SLOT)},
        "grpc.health.v1.Health": {"Check": _PUBLIC, "Watch": _PUBLIC},
        "grpc.reflection.v1alpha.ServerReflection": {
            "ServerReflectionInfo": _people(Role.VIEWER),
        },
    }.items()
    for method, access in methods.items()
}


_VERTEX = "/jobs/{job}/vertices/{vertex}"
_SUBTASK = f"{_VERTEX}/subtasks/{{subtask}}"

SPARK_CONNECT: Final = _people(Role.SUBMITTER)
"""The roles that may use the cluster's server for Spark Connect: its clients run functions."""

ROUTES: Final[Mapping[str, Access]] = {
    f"{verb} {path}": access
    for access, routes in (
        (
            _PUBLIC,
            (
                "GET /",
                "GET /app.css",
                "GET /favicon.svg",
                "GET /app/{file}",
                "GET /app/{folder}/{file}",
                "GET /vendor/{file}",
                "POST /firesteel/v1/session",
                "DELETE /firesteel/v1/session",
            ),
        ),
        (
            _people(Role.VIEWER),
            (
                "GET /config",
                "GET /overview",
                "GET /applications/overview",
                "GET /applications/{job}",
                "GET /applications/{job}/exceptions",
                "GET /jobs",
                "GET /jobs/overview",
                "GET /jobs/metrics",
                "GET /jobs/{job}",
                "GET /jobs/{job}/status",
                "GET /jobs/{job}/plan",
                "GET /jobs/{job}/config",
                "GET /jobs/{job}/accumulators",
                "GET /jobs/{job}/exceptions",
                "GET /jobs/{job}/checkpoints",
                "GET /jobs/{job}/execution-result",
                "GET /jobs/{job}/metrics",
                "GET /jobs/{job}/resource-requirements",
                "GET /jobs/{job}/rescales/config",
                "GET /jobs/{job}/rescales/history",
                "GET /jobs/{job}/rescales/overview",
                "GET /jobs/{job}/rescales/summary",
                "GET /jobs/{job}/rescales/details/{rescale}",
                f"GET {_VERTEX}",
                f"GET {_VERTEX}/taskmanagers",
                f"GET {_VERTEX}/subtasktimes",
                f"GET {_VERTEX}/accumulators",
                f"GET {_VERTEX}/watermarks",
                f"GET {_VERTEX}/backpressure",
                f"GET {_VERTEX}/metrics",
                f"GET {_VERTEX}/subtasks/accumulators",
                f"GET {_VERTEX}/subtasks/metrics",
                f"GET {_SUBTASK}",
                f"GET {_SUBTASK}/metrics",
                f"GET {_SUBTASK}/attempts/{{attempt}}",
                f"GET {_SUBTASK}/attempts/{{attempt}}/accumulators",
                "GET /jobs/{job}/checkpoints/config",
                "GET /jobs/{job}/checkpoints/details/{checkpoint}",
                "GET /jobs/{job}/checkpoints/details/{checkpoint}/subtasks/{vertex}",
                "GET /jobs/{job}/jobmanager/config",
                "GET /jobs/{job}/jobmanager/environment",
                "GET /jobs/{job}/savepoints/{trigger}",
                "GET /jobs/{job}/checkpoints/{trigger}",
                "GET /savepoint-disposal/{trigger}",
                "GET /taskmanagers",
                "GET /firesteel/v1/machines",
                "GET /taskmanagers/metrics",
                "GET /taskmanagers/{task_manager}",
                "GET /taskmanagers/{task_manager}/metrics",
                "GET /taskmanagers/{task_manager}/log",
                "GET /taskmanagers/{task_manager}/stdout",
                "GET /taskmanagers/{task_manager}/logs",
                "GET /taskmanagers/{task_manager}/logs/{file}",
                "GET /jobmanager/config",
                "GET /jobmanager/environment",
                "GET /jobmanager/metrics",
                "GET /jobmanager/log",
                "GET /jobmanager/stdout",
                "GET /jobmanager/logs",
                "GET /jobmanager/logs/{file}",
                "GET /jars",
                "POST /firesteel/v1/session/codes",
                "GET /firesteel/v1/openapi.json",
                "GET /firesteel/v1/docs",
                "GET /firesteel/v1/me",
                "GET /firesteel/v1/cluster",
                "GET /firesteel/v1/jobs",
                "GET /firesteel/v1/jobs/{job}",
                "GET /firesteel/v1/jobs/{job}/vertices/{vertex}",
                "GET /firesteel/v1/jobs/{job}/checkpoints",
                "GET /firesteel/v1/jobs/{job}/checkpoints/{checkpoint}",
                "GET /firesteel/v1/jobs/{job}/series",
                "GET /firesteel/v1/jobs/{job}/exceptions",
                "GET /firesteel/v1/jobs/{job}/logs",
                "GET /firesteel/v1/savepoints",
                "GET /firesteel/v1/operations/{operation}",
            ),
        ),
        (
            _people(Role.OPERATOR),
            (
                "PATCH /jobs/{job}",
                "POST /applications/{job}/cancel",
                "GET /jobs/{job}/yarn-cancel",
                "POST /jobs/{job}/stop",
                "POST /jobs/{job}/savepoints",
                "POST /jobs/{job}/checkpoints",
                "PUT /jobs/{job}/resource-requirements",
                "POST /savepoint-disposal",
                "GET /jobs/{job}/vertices/{vertex}/flamegraph",
                "GET /taskmanagers/{task_manager}/thread-dump",
                "GET /jobmanager/thread-dump",
                "POST /firesteel/v1/jobs/{job}/flamegraph",
                "POST /firesteel/v1/jobs/{job}/rows",
                "POST /firesteel/v1/jobs/{job}/cancel",
                "POST /firesteel/v1/jobs/{job}/stop",
                "POST /firesteel/v1/jobs/{job}/savepoints",
                "DELETE /firesteel/v1/jobs/{job}",
                "POST /firesteel/v1/savepoints/dispose",
            ),
        ),
        (
            _people(Role.SUBMITTER),
            (
                "POST /jars/upload",
                "POST /jars/{jar}/run",
                "GET /jars/{jar}/plan",
                "POST /jars/{jar}/plan",
                "DELETE /jars/{jar}",
                "POST /jobs",
                "POST /firesteel/v1/jobs",
            ),
        ),
        (_people(Role.ADMIN), ("DELETE /cluster", "GET /firesteel/v1/audit")),
    )
    for verb, path in (route.split(" ", 1) for route in routes)
}
"""The routes of the REST API, `METHOD /path`; those of Flink with and without /v1."""


def access_of(method: str) -> Access:
    """The access of a method, `/package.Service/Method`."""
    return METHODS.get(method, _DENIED)
