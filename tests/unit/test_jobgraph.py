from __future__ import annotations

import dataclasses
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.common import job_graph as jobgraph
from firesteel.common.job_graph import (
    DistributionPattern,
    JobGraph,
    Partitioner,
    pointwise_consumers,
    pointwise_producers,
)
from firesteel.common.resources import UNKNOWN, ResourceProfile
from firesteel.common.rpc import convert

SUBTASKS = st.integers(1, 60)


@given(SUBTASKS, SUBTASKS)
def test_both_sides_of_a_pointwise_edge_agree(producers: int, consumers: int) -> None:
    seen_by_producers = {
        (p, c) for p in range(producers) for c in pointwise_consumers(p, producers, consumers)
    }
    seen_by_consumers = {
        (p, c) for c in range(consumers) for p in pointwise_producers(c, producers, consumers)
    }
    assert seen_by_producers == seen_by_consumers


@given(SUBTASKS, SUBTASKS)
def test_a_pointwise_edge_omits_no_subtask_and_is_balanced(producers: int, consumers: int) -> None:
    fan_out = [len(pointwise_consumers(p, producers, consumers)) for p in range(producers)]
    fan_in = [len(pointwise_producers(c, producers, consumers)) for c in range(consumers)]
    assert min(fan_out) >= 1
    assert min(fan_in) >= 1
    assert max(fan_out) - min(fan_out) <= 1
    assert max(fan_in) - min(fan_in) <= 1


@given(SUBTASKS)
def test_equal_parallelism_connects_one_to_one(subtasks: int) -> None:
    assert [list(pointwise_consumers(i, subtasks, subtasks)) for i in range(subtasks)] == [
        [i] for i in range(subtasks)
    ]


@pytest.mark.parametrize(
    ("partitioner", "pattern"),
    [
        (Partitioner.FORWARD, DistributionPattern.POINTWISE),
        (Partitioner.RESCALE, DistributionPattern.POINTWISE),
        (Partitioner.REBALANCE, DistributionPattern.ALL_TO_ALL),
        (Partitioner.HASH, DistributionPattern.ALL_TO_ALL),
        (Partitioner.BROADCAST, DistributionPattern.ALL_TO_ALL),
        (Partitioner.WATERMARKS, DistributionPattern.ALL_TO_ALL),
    ],
)
def test_which_partitioners_need_every_consumer(
    partitioner: Partitioner, pattern: DistributionPattern
) -> None:
    assert partitioner.pattern is pattern


WORDS = st.text(max_size=8)
COUNTS = st.integers(0, 2**31 - 1)
STRATEGIES: dict[object, st.SearchStrategy] = {
    str: WORDS,
    int: COUNTS,
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
    tuple[str, ...]: st.lists(WORDS, max_size=3).map(tuple),
    tuple[tuple[int, ...], ...]: st.lists(st.lists(COUNTS, max_size=3).map(tuple), max_size=3).map(
        tuple
    ),
    dict[str, str]: st.dictionaries(WORDS, WORDS, max_size=3),
    ResourceProfile: st.builds(ResourceProfile, heap_bytes=COUNTS, cpu_cores=st.floats(0, 64))
    | st.just(UNKNOWN),
}


def instances(kind: type) -> st.SearchStrategy:
    """Any instance of a dataclass, with a value for every field: one that conversion forgets shows
    up.
    """
    hints = typing.get_type_hints(kind, vars(jobgraph))
    return st.builds(
        kind, **{field.name: _values(hints[field.name]) for field in dataclasses.fields(kind)}
    )


def _values(hint: object) -> st.SearchStrategy:
    hint = getattr(hint, "__supertype__", hint)
    if hint in STRATEGIES:
        return STRATEGIES[hint]
    if typing.get_origin(hint) is tuple:
        return st.lists(_values(typing.get_args(hint)[0]), max_size=2).map(tuple)
    if dataclasses.is_dataclass(hint):
        return instances(typing.cast(type, hint))
    return st.sampled_from(list(hint))  # an Enum


@given(instances(JobGraph))
def test_a_job_graph_survives_its_message(graph: JobGraph) -> None:
    message = convert.JOB_GRAPH.encode(graph)
    assert convert.JOB_GRAPH.decode(type(message).FromString(message.SerializeToString())) == graph
