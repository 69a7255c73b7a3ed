"""The routes of Flink 2.3 that its command line, its dashboard, exporters and scripts use."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.rest.flink.actions import ActionRoutes
from dispatcher.rest.flink.applications import ApplicationRoutes
from dispatcher.rest.flink.checkpoints import CheckpointRoutes
from dispatcher.rest.flink.cluster import ClusterRoutes
from dispatcher.rest.flink.inspections import FlinkInspectionRoutes
from dispatcher.rest.flink.job_manager import JobManagerRoutes
from dispatcher.rest.flink.jobs import JobRoutes
from dispatcher.rest.flink.rescales import RescaleRoutes
from dispatcher.rest.flink.task_managers import TaskManagerRoutes
from dispatcher.rest.flink.vertices import VertexRoutes
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler

# A path that several routes match belongs to the first of them.
_GROUPS = (
    ClusterRoutes,
    ApplicationRoutes,
    JobRoutes,
    RescaleRoutes,
    VertexRoutes,
    CheckpointRoutes,
    ActionRoutes,
    TaskManagerRoutes,
    JobManagerRoutes,
    FlinkInspectionRoutes,
)


class FlinkRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        """The handlers of the routes of the table of access."""
        groups = (group(self._gateway).handlers() for group in _GROUPS)
        return {route: handler for group in groups for route, handler in group.items()}
