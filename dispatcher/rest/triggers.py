"""Checkpoints and savepoints that clients trigger and poll, also during a failover.

The JobMaster knows them by their trigger ids. A call that a failover has interrupted is repeated
with its id, and a server that does not know an id queries the JobMaster.
"""

from __future__ import annotations

import asyncio
import time

import grpc
from aiohttp import web

from dispatcher.rest.gateway import Gateway, Metadata
from dispatcher.rest.requests import Refusal
from firesteel._proto import job_master_pb2
from firesteel.common.config import options
from firesteel.common.ids import is_id
from firesteel.common.rpc.status import Reason, reason_of

FAILOVER_S = 120.0  # the longest time without a Dispatcher that answers
_PAUSE_S = 0.3
_LOST_AFTER_S = 5.0  # a call that is interrupted later was received
_ADOPT_S = 2.0  # a poll does not wait longer for the JobMaster's answer
_AWAY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})


async def check(
    gateway: Gateway, request: web.Request, taking: job_master_pb2.TakeCheckpointRequest
) -> None:
    """Raises Refusal if the job is unknown, or if it runs and its savepoint has no directory."""
    details = await gateway.details(request)
    if taking.savepoint and not taking.directory and not details.status.globally_terminal:
        configuration = await gateway.configuration(request, details)
        takes = configuration.get(options.CHECKPOINT_INTERVAL)  # otherwise, its JobMaster refuses
        if takes and not configuration.get(options.SAVEPOINT_DIR):
            raise Refusal(
                400,
                "there is no directory for the savepoint: name one, or set"
                f" {options.SAVEPOINT_DIR.key} for the job",
            )


async def taken(
    gateway: Gateway, taking: job_master_pb2.TakeCheckpointRequest, metadata: Metadata
) -> job_master_pb2.TakeCheckpointResponse:
    """Takes a checkpoint; returns once it is complete. Raises the errors of `outcome`."""
    trigger = job_master_pb2.AwaitCheckpointRequest(
        job_id=taking.job_id, trigger_id=taking.trigger_id
    )
    return await outcome(gateway, trigger, metadata, taking=taking)


async def outcome(
    gateway: Gateway,
    trigger: job_master_pb2.AwaitCheckpointRequest,
    metadata: Metadata,
    *,
    taking: job_master_pb2.TakeCheckpointRequest | None = None,
) -> job_master_pb2.TakeCheckpointResponse:
    """Returns once the checkpoint is complete. It is triggered by `taking`; None: it was already.
    Raises AioRpcError, or Refusal if no Dispatcher leads for too long.
    """
    takes, deadline_s = taking is not None, 0.0
    while True:
        began_s = time.monotonic()
        try:
            dispatcher = gateway.dispatcher
            call = dispatcher.TakeCheckpoint if takes else dispatcher.AwaitCheckpoint
            answer: job_master_pb2.TakeCheckpointResponse
            answer = await call(taking if takes else trigger, metadata=metadata)
            return answer
        except (grpc.aio.AioRpcError, Refusal) as error:
            unknown = _reason(error) is Reason.TRIGGER_NOT_FOUND
            if not _is_away(error) and not (unknown and taking is not None):
                raise
            now_s = time.monotonic()
            if not deadline_s or now_s - began_s > _LOST_AFTER_S:
                deadline_s = now_s + FAILOVER_S
            elif now_s > deadline_s:
                raise
            takes = unknown
        await asyncio.sleep(_PAUSE_S)


async def adopt(gateway: Gateway, request: web.Request) -> None:
    """Makes the polled operation one of this server if another one has started it. Raises the
    JobMaster's error if it does not know it.
    """
    trigger_id = request.match_info["trigger"]
    operations = gateway.operations
    if operations.find(trigger_id) is not None or not is_id(trigger_id):
        return
    trigger = job_master_pb2.AwaitCheckpointRequest(
        job_id=request.match_info["job"], trigger_id=trigger_id
    )
    operations.start(outcome(gateway, trigger, gateway.metadata(request)), trigger_id)
    operation = operations.find(trigger_id)
    assert operation is not None, "it has been started"
    await asyncio.wait([operation], timeout=_ADOPT_S)
    error = operation.exception() if operation.done() and not operation.cancelled() else None
    if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.NOT_FOUND:
        operations.forget(trigger_id)
        raise error


def _is_away(error: grpc.aio.AioRpcError | Refusal) -> bool:
    if isinstance(error, Refusal):
        return error.status == 503
    return error.code() in _AWAY


def _reason(error: grpc.aio.AioRpcError | Refusal) -> Reason | None:
    return reason_of(error) if isinstance(error, grpc.aio.AioRpcError) else None
