"""Decides for a reflector: when to list, when to watch and from where, and when it is stale.

Pure: see firesteel.common.service.core. The shell sends the requests.

            ┌─────────────── Listed ───────────────▶┐
        LISTING                                  WATCHING
          ▲ │                                     │  │ ▲
          │ └──ListFailed──▶ PAUSED ◀─WatchFailed─┘  │ │ WatchEnded: watches from the last
          │                  │  │                    └─┘ resourceVersion
          │   pause is over: │  └──pause is over, a resourceVersion is known──▶ WATCHING
          └──────────────────┘
        WATCHING ──WatchGone, or silent for too long──▶ LISTING
        all ──not current for `stale_after_s`──▶ STALE

The API server ends each watch after `watch_timeout_s`, and sends bookmarks in between. A watch
that outlives this time is dead, even if its connection looks intact: the reflector cancels it and
lists again. Every request has a number, and answers to cancelled requests are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from firesteel.common.backoff import Backoff
from firesteel.common.service.core import Effects, Tick
from firesteel.kubernetes.resources import Object, name_of, version_of

WHOLE_PART = 0.9  # of `watch_timeout_s`: a watch that lasts as long was ended by its timeout
IMMEDIATELY_S = 1.0  # a watch that ends earlier is a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorSettings:
    watch_timeout_s: int = 60
    silence_s: float = 15.0  # after `watch_timeout_s`, the time until a silent watch is dead
    list_timeout_s: float = 60.0
    stale_after_s: float = 300.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 10.0


# ---- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    number: int
    objects: Sequence[Object]
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFailed:
    number: int
    reason: str
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOpened:
    """The API server has accepted the watch."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChanged:
    """An object was added or modified."""

    number: int
    object: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDeleted:
    number: int
    object: Object  # as it was last, with the resourceVersion of the deletion


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmarked:
    number: int
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEnded:
    """The API server ended the watch, as it does after its timeout."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchGone:
    """The API server no longer knows the changes after the resourceVersion."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFailed:
    number: int
    reason: str
    retry_after_s: float = 0.0


Event = (
    Listed
    | ListFailed
    | WatchOpened
    | ObjectChanged
    | ObjectDeleted
    | Bookmarked
    | WatchEnded
    | WatchGone
    | WatchFailed
)

# ---- commands


@dataclass(frozen=True, slots=True, kw_only=True)
class List:
    """Answered by Listed or ListFailed."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Answered by WatchOpened, changes and bookmarks, and then WatchEnded, WatchGone or
    WatchFailed.
    """

    number: int
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Cancel the current request; its answers no longer matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """The snapshot has changed, at these names; or it is complete for the first time."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    reason: str


Command = List | Watch | Cancel | Notify | Fail


class ReflectorState(Enum):
    LISTING = "waits for a list"
    WATCHING = "a watch is requested or open"
    PAUSED = "waits before it repeats a failed request"
    STALE = "has given up"


_R = ReflectorState
TRANSITIONS: dict[ReflectorState, frozenset[ReflectorState]] = {
    # the list arrived; it failed or timed out; no longer current
    _R.LISTING: frozenset({_R.WATCHING, _R.PAUSED, _R.STALE}),
    # ended and opened again; silent or gone; failed; no longer current
    _R.WATCHING: frozenset({_R.WATCHING, _R.LISTING, _R.PAUSED, _R.STALE}),
    # the pause is over; no longer current
    _R.PAUSED: frozenset({_R.LISTING, _R.WATCHING, _R.STALE}),
    _R.STALE: frozenset(),
}


class ReflectorCore:
    """Starts with the first Tick."""

    def __init__(self, settings: ReflectorSettings, now: float) -> None:
        self.state = ReflectorState.PAUSED
        self.objects: dict[str, Object] = {}
        self.synced = False  # a list has arrived
        self.problem = ""  # the reason of the last failure, until a watch opens
        self.current_at = now  # when the snapshot was last known to be current
        self.lists = 0
        self._settings = settings
        self._backoff = Backoff(settings.first_pause_s, settings.longest_pause_s)
        self._resource_version = ""  # empty: unknown, list
        self._number = 0  # of the current request
        self._asked_at = now
        self._due: float = now  # the end of the pause, or of the patience with the request
        self._commands: list[Command] = []

    # ---- the driver's interface

    def handle(self, event: Event | Tick, now: float) -> Effects[None, Command]:
        if self.state is not ReflectorState.STALE:
            if isinstance(event, Tick):
                self._tick(now)
            elif event.number == self._number:
                self._answer(event, now)
        effects: Effects[None, Command] = Effects(commands=tuple(self._commands))
        self._commands.clear()
        return effects

    def next_deadline(self) -> float | None:
        if self.state is ReflectorState.STALE:
            return None
        return min(self._due, self.current_at + self._settings.stale_after_s)

    def age_s(self, now: float) -> float:
        """Returns the seconds since the snapshot was known to be current."""
        return max(now - self.current_at, 0.0)

    def validate(self) -> None:
        assert all(name == name_of(each) for name, each in self.objects.items())
        assert self.synced or not self.objects
        if self.state is ReflectorState.WATCHING:
            assert self.synced and self._resource_version

    # ---- inside

    def _tick(self, now: float) -> None:
        if now >= self.current_at + self._settings.stale_after_s:
            self._go(ReflectorState.STALE)
            why = f": {self.problem}" if self.problem else ""
            self._commands += [
                Cancel(),
                Fail(reason=f"not known to be current for {self.age_s(now):.0f} s{why}"),
            ]
        elif now >= self._due:
            self._overdue(now)

    def _overdue(self, now: float) -> None:
        match self.state:
            case ReflectorState.PAUSED:
                self._continue(now)
            case ReflectorState.LISTING:
                self._commands.append(Cancel())
                self._failed("the list has not arrived in time", 0.0, now)
            case ReflectorState.WATCHING:
                self.problem = "the watch is silent"
                self._commands.append(Cancel())
                self._list(now)
            case ReflectorState.STALE:
                pass
            case _:
                assert_never(self.state)

    def _answer(self, event: Event, now: float) -> None:
        match event:
            case Listed():
                self._listed(event, now)
            case WatchOpened():  # changes since its resourceVersion follow
                self.problem = ""
            case ObjectChanged(object=changed):
                self._alive(now)
                self._resource_version = version_of(changed)
                self._store(changed)
            case ObjectDeleted(object=deleted):
                self._alive(now)
                self._resource_version = version_of(deleted)
                if self.objects.pop(name_of(deleted), None) is not None:
                    self._commands.append(Notify(names=frozenset({name_of(deleted)})))
            case Bookmarked():
                self._alive(now)
                self._resource_version = event.resource_version
            case WatchEnded():
                self._ended(now)
            case WatchGone():
                self._list(now)
            case ListFailed() | WatchFailed():
                self._failed(event.reason, event.retry_after_s, now)
            case _:
                assert_never(event)

    def _listed(self, event: Listed, now: float) -> None:
        found = {name_of(each): each for each in event.objects}
        changed = {
            name for name in found.keys() | self.objects.keys() if self._differs(name, found)
        }
        first, self.synced, self.objects = not self.synced, True, found
        self.current_at = self._asked_at
        self._resource_version = event.resource_version
        self._backoff.reset()
        if changed or first:
            self._commands.append(Notify(names=frozenset(changed)))
        self._watch(now)

    def _differs(self, name: str, found: Mapping[str, Object]) -> bool:
        before, after = self.objects.get(name), found.get(name)
        if before is None or after is None:
            return True
        return version_of(before) != version_of(after)

    def _store(self, changed: Object) -> None:
        name = name_of(changed)
        before = self.objects.get(name)
        self.objects[name] = changed
        if before is None or version_of(before) != version_of(changed):
            self._commands.append(Notify(names=frozenset({name})))

    def _alive(self, now: float) -> None:
        """The watch has delivered everything until now."""
        self.current_at, self.problem = now, ""
        self._backoff.reset()

    def _ended(self, now: float) -> None:
        """Watches again. A server that ends watches as soon as they open gets pauses."""
        lasted_s = now - self._asked_at
        if lasted_s >= self._settings.watch_timeout_s * WHOLE_PART:
            self._alive(now)  # the API server itself ended it, not a proxy
        if lasted_s >= IMMEDIATELY_S:
            self._continue(now)
        else:
            self._failed("the watch ended immediately", 0.0, now)

    def _continue(self, now: float) -> None:
        """Watches from the last resourceVersion. If no watch lasts until its first bookmark, only
        lists show that the snapshot is current.
        """
        silent_s = self._settings.watch_timeout_s + self._settings.silence_s
        if self._resource_version and self.age_s(now) < 2 * silent_s:
            self._watch(now)
        else:
            self._list(now)

    def _failed(self, reason: str, retry_after_s: float, now: float) -> None:
        self.problem = reason
        self._number += 1
        self._due = now + max(self._backoff.next(), retry_after_s)
        self._go(ReflectorState.PAUSED)

    def _list(self, now: float) -> None:
        self.lists += 1
        self._resource_version = ""
        self._request(ReflectorState.LISTING, now, self._settings.list_timeout_s)
        self._commands.append(List(number=self._number))

    def _watch(self, now: float) -> None:
        patience_s = self._settings.watch_timeout_s + self._settings.silence_s
        self._request(ReflectorState.WATCHING, now, patience_s)
        self._commands.append(Watch(number=self._number, resource_version=self._resource_version))

    def _request(self, state: ReflectorState, now: float, patience_s: float) -> None:
        self._number += 1
        self._asked_at, self._due = now, now + patience_s
        self._go(state)

    def _go(self, to: ReflectorState) -> None:
        assert to in TRANSITIONS[self.state], f"{self.state.name} -> {to.name}"
        self.state = to
