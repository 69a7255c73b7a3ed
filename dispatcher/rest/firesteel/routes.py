"""The routes of /firesteel/v1."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.rest.firesteel.actions import ActionRoutes
from dispatcher.rest.firesteel.checkpoints import CheckpointRoutes
from dispatcher.rest.firesteel.cluster import ClusterRoutes
from dispatcher.rest.firesteel.inspections import InspectionRoutes
from dispatcher.rest.firesteel.jobs import JobRoutes
from dispatcher.rest.firesteel.logs import LogRoutes
from dispatcher.rest.firesteel.machines import MachineRoutes
from dispatcher.rest.firesteel.vertices import VertexRoutes
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler

_GROUPS = (
    ClusterRoutes,
    JobRoutes,
    VertexRoutes,
    CheckpointRoutes,
    LogRoutes,
    ActionRoutes,
    InspectionRoutes,
    MachineRoutes,
)


class FiresteelRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        """The handlers of the routes of the table of access."""
        groups = (group(self._gateway).handlers() for group in _GROUPS)
        return {route: handler for group in groups for route, handler in group.items()}
