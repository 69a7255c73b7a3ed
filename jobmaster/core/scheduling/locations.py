"""Locates the results that consumers read."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Collection, Iterable, Mapping

from firesteel.common.ids import TaskExecutorId
from firesteel.common.job_graph import DistributionPattern, ResultType
from jobmaster.core.commands import ResultLocations
from jobmaster.core.execution_graph import Execution, IntermediateResult


def locate(
    result: IntermediateResult,
    consumers: Iterable[int],
    stores: Mapping[TaskExecutorId, str],
) -> ResultLocations:
    """Returns where these subtasks read the result: from the slots of its producers or, if it is
    BLOCKING, from their TaskExecutors, whose addresses are `stores`. The producers that they read
    must have slots, or have finished before the job was restored; entries of other producers are
    arbitrary.
    """
    vertices = result.producer.vertices
    needed: Collection[int] = range(len(vertices))
    if result.edge.pattern is DistributionPattern.POINTWISE:
        needed = set(itertools.chain.from_iterable(map(result.producers_of, consumers)))
    if all(vertices[producer].current.restored_finished for producer in needed):
        return ResultLocations(
            result_id=result.edge.result_id,
            addresses=(),
            address_index=array("I"),
            attempts=array("I"),
            ended=True,
        )
    stored = result.edge.result_type is ResultType.BLOCKING
    addresses: dict[str, int] = {}
    address_index = array("I")
    attempts = array("I")
    for producer, vertex in enumerate(vertices):
        execution = vertex.current
        index = 0
        if producer in needed:
            address = _address(execution, stores if stored else {})
            index = addresses.setdefault(address, len(addresses))
        address_index.append(index)
        attempts.append(execution.attempt)
    return ResultLocations(
        result_id=result.edge.result_id,
        addresses=tuple(addresses),
        address_index=address_index,
        attempts=attempts,
    )


def _address(execution: Execution, stores: Mapping[TaskExecutorId, str]) -> str:
    slot = execution.slot
    assert slot is not None, str(execution)
    return stores.get(slot.task_executor_id) or slot.data_address
