"""The decisions of a reflector, event by event."""

from __future__ import annotations

import random
from typing import Any

from firesteel.common.service.core import Tick
from firesteel.kubernetes.reflector.core import (
    Bookmarked,
    Cancel,
    Event,
    Fail,
    List,
    Listed,
    ListFailed,
    Notify,
    ObjectChanged,
    ObjectDeleted,
    ReflectorCore,
    ReflectorSettings,
    ReflectorState,
    Watch,
    WatchEnded,
    WatchFailed,
    WatchGone,
    WatchOpened,
)
from tests.long import fewer

SETTINGS = ReflectorSettings(
    watch_timeout_s=60,
    silence_s=15.0,
    list_timeout_s=30.0,
    stale_after_s=300.0,
    first_pause_s=1.0,
    longest_pause_s=8.0,
)


def pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def names(*changed: str) -> Notify:
    return Notify(names=frozenset(changed))


def commands(core: ReflectorCore, event: Event | Tick, now: float) -> list[Any]:
    found = list(core.handle(event, now).commands)
    core.validate()
    return found


def watching(*pods: dict[str, Any], now: float = 0.0) -> ReflectorCore:
    """Returns a core whose second request is an open watch from version 10."""
    core = ReflectorCore(SETTINGS, now)
    assert commands(core, Tick(), now) == [List(number=1)]
    listed = Listed(number=1, objects=pods, resource_version="10")
    _, watch = commands(core, listed, now)
    assert watch == Watch(number=2, resource_version="10")
    assert commands(core, WatchOpened(number=2), now) == []
    return core


def test_a_list_is_followed_by_a_watch_from_its_version() -> None:
    core = ReflectorCore(SETTINGS, 0.0)
    assert core.next_deadline() == 0.0
    assert commands(core, Tick(), 0.0) == [List(number=1)]
    listed = Listed(number=1, objects=[pod("a", 3), pod("b", 9)], resource_version="10")
    assert commands(core, listed, 0.1) == [
        names("a", "b"),
        Watch(number=2, resource_version="10"),
    ]
    assert set(core.objects) == {"a", "b"}


def test_an_empty_first_list_is_notified() -> None:
    core = ReflectorCore(SETTINGS, 0.0)
    commands(core, Tick(), 0.0)
    assert not core.synced
    listed = Listed(number=1, objects=[], resource_version="10")
    assert commands(core, listed, 0.1)[0] == names()
    assert core.synced


def test_changes_update_the_snapshot() -> None:
    core = watching(pod("a", 3))
    assert commands(core, ObjectChanged(number=2, object=pod("b", 11)), 1.0) == [names("b")]
    assert commands(core, ObjectChanged(number=2, object=pod("a", 12)), 2.0) == [names("a")]
    assert commands(core, ObjectDeleted(number=2, object=pod("b", 13)), 3.0) == [names("b")]
    assert core.objects == {"a": pod("a", 12)}


def test_a_known_version_is_not_notified_again() -> None:
    core = watching(pod("a", 3))
    assert commands(core, ObjectChanged(number=2, object=pod("a", 3)), 1.0) == []
    assert commands(core, ObjectDeleted(number=2, object=pod("z", 4)), 1.0) == []


def test_a_watch_that_ends_resumes_at_the_last_version() -> None:
    core = watching(pod("a", 3))
    commands(core, ObjectChanged(number=2, object=pod("a", 11)), 1.0)
    commands(core, Bookmarked(number=2, resource_version="25"), 55.0)
    assert commands(core, WatchEnded(number=2), 60.0) == [Watch(number=3, resource_version="25")]


def test_deletions_move_the_version_that_a_watch_resumes_at() -> None:
    core = watching(pod("a", 3))
    commands(core, ObjectDeleted(number=2, object=pod("a", 14)), 1.0)
    assert commands(core, WatchEnded(number=2), 60.0) == [Watch(number=3, resource_version="14")]


def test_a_broken_watch_resumes_after_a_pause() -> None:
    core = watching()
    assert commands(core, WatchFailed(number=2, reason="broken"), 5.0) == []
    assert (core.state, core.problem) == (ReflectorState.PAUSED, "broken")
    assert core.next_deadline() == 6.0
    assert commands(core, Tick(), 6.0) == [Watch(number=4, resource_version="10")]


def test_pauses_grow_with_failures_and_start_over_after_a_list() -> None:
    core = ReflectorCore(SETTINGS, 0.0)
    pauses, now = [], 0.0
    for _ in range(5):
        (request,) = commands(core, Tick(), now)
        commands(core, ListFailed(number=request.number, reason="away"), now)
        pauses.append(core._due - now)
        now = core._due
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0]
    (request,) = commands(core, Tick(), now)
    commands(core, Listed(number=request.number, objects=[], resource_version="1"), now)
    commands(core, WatchFailed(number=request.number + 1, reason="away"), now)
    assert core._due - now == 1.0


def test_the_server_decides_how_long_a_pause_is_at_least() -> None:
    core = watching()
    commands(core, WatchFailed(number=2, reason="busy", retry_after_s=7.0), 5.0)
    assert core.next_deadline() == 12.0


def test_a_version_that_is_gone_is_listed_again() -> None:
    core = watching(pod("a", 3), pod("b", 4), pod("c", 5))
    assert commands(core, WatchGone(number=2), 5.0) == [List(number=3)]
    assert set(core.objects) == {"a", "b", "c"}  # the last known ones, until the list arrives
    listed = Listed(number=3, objects=[pod("a", 3), pod("b", 40)], resource_version="50")
    assert commands(core, listed, 6.0) == [
        names("b", "c"),
        Watch(number=4, resource_version="50"),
    ]


def test_a_silent_watch_is_cancelled_and_listed_again() -> None:
    core = watching()
    assert core.next_deadline() == 75.0
    assert commands(core, Tick(), 75.0) == [Cancel(), List(number=3)]
    assert core.problem == "the watch is silent"


def test_answers_to_cancelled_requests_are_ignored() -> None:
    core = watching(pod("a", 3))
    commands(core, Tick(), 75.0)
    assert commands(core, ObjectDeleted(number=2, object=pod("a", 11)), 76.0) == []
    assert commands(core, WatchFailed(number=2, reason="cancelled"), 76.0) == []
    assert core.state is ReflectorState.LISTING and set(core.objects) == {"a"}


def test_a_list_that_does_not_arrive_is_repeated() -> None:
    core = ReflectorCore(SETTINGS, 0.0)
    commands(core, Tick(), 0.0)
    assert core.next_deadline() == 30.0
    assert commands(core, Tick(), 30.0) == [Cancel()]
    assert commands(core, Tick(), 31.0) == [List(number=3)]


def test_the_age_counts_from_the_request_of_the_list() -> None:
    core = ReflectorCore(SETTINGS, 0.0)
    commands(core, Tick(), 2.0)
    commands(core, Listed(number=1, objects=[], resource_version="1"), 7.0)
    assert core.age_s(10.0) == 8.0


def test_signs_of_life_make_the_snapshot_current() -> None:
    core = watching()
    commands(core, ObjectChanged(number=2, object=pod("a", 11)), 20.0)
    assert core.age_s(25.0) == 5.0
    commands(core, Bookmarked(number=2, resource_version="12"), 30.0)
    assert core.age_s(31.0) == 1.0
    commands(core, WatchEnded(number=2), 60.0)
    assert core.age_s(60.0) == 0.0
    commands(core, WatchOpened(number=3), 61.0)  # changes since version 12 may follow
    assert core.age_s(62.0) == 2.0


def test_a_watch_that_ends_immediately_is_repeated_after_a_pause() -> None:
    core = watching()
    assert commands(core, WatchEnded(number=2), 0.5) == []
    assert core.state is ReflectorState.PAUSED
    assert core.age_s(0.5) == 0.5


def test_a_proxy_that_cuts_all_watches_early_makes_it_list() -> None:
    core = watching()
    now, lists = 0.0, []
    watch = 2
    while now < 1000:
        now += 30.0
        (request,) = commands(core, WatchEnded(number=watch), now)
        if isinstance(request, List):
            lists.append(now)
            listed = Listed(number=request.number, objects=[], resource_version="9")
            (request,) = commands(core, listed, now)
        watch = request.number
    assert lists[:2] == [150.0, 300.0]
    assert core.state is ReflectorState.WATCHING


def test_a_snapshot_that_is_stale_for_too_long_is_fatal() -> None:
    core = watching(pod("a", 3))
    commands(core, WatchFailed(number=2, reason="cannot watch pods: refused"), 10.0)
    now, failed = 10.0, []
    while not failed:
        now = core.next_deadline() or now
        for command in commands(core, Tick(), now):
            match command:
                case Watch(number=number):
                    commands(core, WatchFailed(number=number, reason="refused"), now)
                case List(number=number):
                    commands(core, ListFailed(number=number, reason="refused"), now)
                case Fail():
                    failed.append(command)
    assert now == 300.0
    assert failed[0].reason == "not known to be current for 300 s: refused"
    assert core.state is ReflectorState.STALE and core.next_deadline() is None


def test_a_reflector_that_never_gets_a_list_fails_with_the_reason() -> None:
    core = ReflectorCore(SETTINGS, 0.0)
    commands(core, Tick(), 0.0)
    commands(core, ListFailed(number=1, reason="cannot list pods", retry_after_s=1e6), 0.0)
    (cancel, fail) = commands(core, Tick(), 300.0)
    assert cancel == Cancel()
    assert fail == Fail(reason="not known to be current for 300 s: cannot list pods")


def test_random_histories_converge_to_the_servers_objects() -> None:
    for seed in range(fewer(300)):
        _converges(random.Random(seed))


def _converges(draw: random.Random) -> None:
    """Plays an API server that loses watches, forgets versions and fails; then it is healthy."""
    core = ReflectorCore(SETTINGS, 0.0)
    now, version, truth = 0.0, 10, {}
    history: list[tuple[int, bool, dict[str, Any]]] = []  # version, whether deleted, object
    compacted, sent, told = 0, 0, {}
    pending = commands(core, Tick(), now)
    request: Any = None
    for step in range(300):
        healthy = step > 200
        for command in pending:
            match command:
                case List() | Watch():
                    request = command
                    sent = int(getattr(command, "resource_version", 0))
                case Cancel():
                    request = None
                case Notify(names=changed):
                    for name in changed:
                        told[name] = core.objects.get(name)
                case Fail():
                    return
        pending = []
        if draw.random() < 0.5 and step < 250:
            version += 1
            name = draw.choice("abc")
            deleted = name in truth and draw.random() < 0.5
            changed = pod(name, version)
            history.append((version, deleted, changed))
            truth = {k: v for k, v in truth.items() if k != name}
            truth |= {} if deleted else {name: changed}
            compacted = version if draw.random() < 0.1 else compacted
        now += draw.choice([0.0, 0.3, 2.0])
        fault = not healthy and draw.random() < 0.2
        match request:
            case List(number=number) if fault:
                pending = commands(core, ListFailed(number=number, reason="away"), now)
                request = None
            case List(number=number):
                listed = Listed(
                    number=number, objects=list(truth.values()), resource_version=str(version)
                )
                pending = commands(core, listed, now)
            case Watch(number=number) if fault:
                end = draw.choice(
                    [WatchEnded(number=number), WatchFailed(number=number, reason="x"), None]
                )
                request = None
                pending = commands(core, end, now) if end else []
            case Watch(number=number) if sent < compacted and draw.random() < 0.5:
                pending = commands(core, WatchGone(number=number), now)
            case Watch(number=number):
                following = [entry for entry in history if entry[0] > sent]
                if following:
                    sent, deleted, changed = following[0]
                    kind = ObjectDeleted if deleted else ObjectChanged
                    pending = commands(core, kind(number=number, object=changed), now)
                else:
                    bookmark = Bookmarked(number=number, resource_version=str(version))
                    pending = commands(core, bookmark, now)
            case None:
                now = max(now, core.next_deadline() or now)
                pending = commands(core, Tick(), now)
    assert core.objects == truth
    assert {name: value for name, value in told.items() if value is not None} == truth
