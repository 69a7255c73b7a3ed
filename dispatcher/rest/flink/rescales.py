"""The changes of a job's parallelism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from aiohttp import web

from dispatcher.rest.flink.shown import Json, answer, summary
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler, Refusal
from firesteel.client.job_details import JobDetails, Vertex
from firesteel.common.config import Configuration, options
from firesteel.common.rescales import KEPT, Rescale

_STATES = ("COMPLETED", "FAILED", "IGNORED")
_UNKNOWN_RESOURCES: Json = {
    "cpuCores": 0,
    "taskHeapMemory": 0,
    "taskOffHeapMemory": 0,
    "managedMemory": 0,
    "networkMemory": 0,
    "extendedResources": {},
}


class RescaleRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /jobs/{job}/rescales/config": self._config,
            "GET /jobs/{job}/rescales/history": self._history,
            "GET /jobs/{job}/rescales/overview": self._overview,
            "GET /jobs/{job}/rescales/summary": self._summary,
            "GET /jobs/{job}/rescales/details/{rescale}": self._details,
        }

    async def _config(self, request: web.Request) -> web.Response:
        details = await self._gateway.details(request)
        return answer(rescales_config(await self._gateway.configuration(request, details)))

    async def _history(self, request: web.Request) -> web.Response:
        return answer(history(await self._gateway.details(request)))

    async def _overview(self, request: web.Request) -> web.Response:
        return answer(overview(await self._gateway.details(request)))

    async def _summary(self, request: web.Request) -> web.Response:
        return answer(rescales_summary(await self._gateway.details(request)))

    async def _details(self, request: web.Request) -> web.Response:
        details, wanted = await self._gateway.details(request), request.match_info["rescale"]
        for each in details.rescales:
            if each.rescale_id == wanted:
                return answer(rescale(each, details, stages=True))
        raise Refusal(
            404,
            f"job {details.job_id} has no rescale {wanted[:80]!r} among its last {KEPT}; "
            f"GET /jobs/{details.job_id}/rescales/history lists them",
        )


def rescales_config(configuration: Configuration) -> Json:
    def ms(option: options.Option[float]) -> int:
        return round(configuration.get(option) * 1000)

    return {
        "rescaleHistoryMax": KEPT,
        "schedulerExecutionMode": configuration.get(options.SCHEDULER_MODE).upper(),
        "submissionResourceWaitTimeoutInMillis": ms(options.SLOT_REQUEST_TIMEOUT),
        "submissionResourceStabilizationTimeoutInMillis": ms(options.SLOTS_STABILIZATION),
        "slotIdleTimeoutInMillis": ms(options.SLOT_IDLE_TIMEOUT),
        "executingCooldownTimeoutInMillis": ms(options.SCALE_COOLDOWN),
        "executingResourceStabilizationTimeoutInMillis": ms(options.SCALE_STABILIZATION),
        "maximumDelayForTriggeringRescaleInMillis": ms(options.SCALE_STABILIZATION),
        "rescaleOnFailedCheckpointCount": 1,  # a rescale ends if its checkpoint fails
    }


def history(details: JobDetails) -> list[Json]:
    return [rescale(each, details) for each in details.rescales]


def overview(details: JobDetails) -> Json:
    latest = {state.lower(): next(iter(_ended(details.rescales, state)), None) for state in _STATES}
    return {
        "rescalesCounts": _counts(details.rescales),
        "latest": {k: v and rescale(v, details) for k, v in latest.items()},
    }


def rescales_summary(details: JobDetails) -> Json:
    found = details.rescales
    ended = [each for each in found if each.end_ms]
    durations = {"rescales": ended, **{f"{s.lower()}Rescales": _ended(found, s) for s in _STATES}}
    return {
        "rescalesCounts": _counts(found),
        **{
            f"{kind}DurationStatsInMillis": summary(each.end_ms - each.start_ms for each in of_kind)
            for kind, of_kind in durations.items()
        },
    }


def rescale(each: Rescale, details: JobDetails, *, stages: bool = False) -> Json:
    """`reason` and `problem` are additions to Flink's fields."""
    ends = [stage.timestamp_ms for stage in each.stages[1:]] + [each.end_ms]
    shown = [
        {
            "state": stage.name,
            "enterTimestampInMillis": stage.timestamp_ms,
            "leaveTimestampInMillis": end_ms or None,
            "durationInMillis": end_ms - stage.timestamp_ms if end_ms else None,
            "stringifiedException": each.problem if stage is each.stages[-1] else None,
        }
        for stage, end_ms in zip(each.stages, ends, strict=True)
    ]
    terminal = each.outcome.terminal_state
    return {
        "rescaleUuid": each.rescale_id,
        "resourceRequirementsUuid": each.rescale_id,
        "rescaleAttemptId": each.number,
        "vertices": {v.vertex_id: _vertex(v, each) for v in details.vertices},
        "slots": _slots(each, details.vertices),
        "schedulerStates": shown if stages else [],
        "startTimestampInMillis": each.start_ms,
        "endTimestampInMillis": each.end_ms or None,
        "terminalState": terminal,
        "triggerCause": each.trigger.name,
        "terminatedReason": each.outcome.name if terminal else None,
        "reason": each.reason or None,
        "problem": each.problem or None,
    }


def _vertex(vertex: Vertex, each: Rescale) -> Json:
    v, own = vertex.vertex_id, vertex.parallelism
    before = each.before.get(v, own)
    return {
        "jobVertexId": v,
        "jobVertexName": vertex.name,
        "slotSharingGroupId": vertex.slot_sharing_group,
        "slotSharingGroupName": vertex.slot_sharing_group,
        "desiredParallelism": each.upper.get(v, own),
        "sufficientParallelism": each.lower.get(v, own),
        "preRescaleParallelism": before,
        "postRescaleParallelism": _reached(each, v, before),
    }


def _slots(each: Rescale, vertices: Iterable[Vertex]) -> Json:
    """Returns the slots by slot sharing group. Its widest vertex has a subtask in each."""
    groups: dict[str, list[Json]] = {}
    for vertex in vertices:
        groups.setdefault(vertex.slot_sharing_group, []).append(_vertex(vertex, each))

    def most(members: Iterable[Json], key: str) -> int | None:
        return max((member[key] for member in members if member[key] is not None), default=None)

    return {
        group: {
            "slotSharingGroupId": group,
            "slotSharingGroupName": group,
            "requestResourceProfile": _UNKNOWN_RESOURCES,
            "desiredSlots": most(members, "desiredParallelism"),
            "minimalRequiredSlots": most(members, "sufficientParallelism"),
            "preRescaleSlots": most(members, "preRescaleParallelism"),
            "postRescaleSlots": most(members, "postRescaleParallelism"),
            "acquiredResourceProfile": _UNKNOWN_RESOURCES,
        }
        for group, members in groups.items()
    }


def _reached(each: Rescale, vertex_id: str, before: int) -> int | None:
    """Returns the parallelism afterwards; None: the change is in progress."""
    if not each.end_ms:
        return None
    return each.after.get(vertex_id, before) if not each.problem else before


def _ended(found: Iterable[Rescale], state: str) -> list[Rescale]:
    return [each for each in found if each.outcome.terminal_state == state]


def _counts(found: Iterable[Rescale]) -> Json:
    states = Counter(each.outcome.terminal_state for each in found)
    ended = {state.lower(): states[state] for state in _STATES}
    return {"inProgress": states[None], **ended}
