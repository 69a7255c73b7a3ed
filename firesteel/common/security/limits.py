"""Limits on the rate at which callers call."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from firesteel.common.config import Configuration, options
from firesteel.common.security.roles import Identity

FAILURES_AT_ONCE = 20.0  # of authentication, times those per second
_MAX_KEYS = 10_000  # callers and addresses whose rates are known


class Rates:
    """Token buckets: a key may do `burst` things immediately, and `per_s` a second after that.
    A rate of 0 is not limited. Knows the keys that were used last.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, at

    def take(self, key: str, now_s: float) -> float:
        """Returns 0.0, or for how many seconds the key must wait."""
        if not self._per_s:
            return 0.0
        tokens, at_s = self._buckets.pop(key, (self._burst, now_s))
        tokens = min(self._burst, tokens + (now_s - at_s) * self._per_s)
        allowed = tokens >= 1.0
        self._buckets[key] = (tokens - allowed, now_s)
        if len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1.0 - tokens) / self._per_s


class CallLimits:
    """Limits the gRPC calls of each person, and the calls without a valid credential from each
    address. Services are not limited: their calls follow from the work of the cluster.
    """

    def __init__(
        self, conf: Configuration | None = None, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        conf = conf or Configuration()
        per_s, failures_per_s = conf.get(options.RPC_CALL_RATE), conf.get(options.RPC_FAILURE_RATE)
        self._now_s = now_s
        self._calls = Rates(per_s, 2 * per_s)
        self._failures = Rates(failures_per_s, FAILURES_AT_ONCE * failures_per_s)

    def called(self, identity: Identity) -> str:
        """Counts a call; returns why it is refused, or an empty text."""
        if not identity.role.is_person:
            return ""
        wait_s = self._calls.take(identity.subject, self._now_s())
        return _refusal(f"of {identity.subject}", options.RPC_CALL_RATE.key, wait_s)

    def failed(self, peer: str) -> str:
        """As `called`, for a call without a valid credential from `peer`, as gRPC names it."""
        host = peer.rpartition(":")[0] or peer
        wait_s = self._failures.take(host, self._now_s())
        whose = f"from {host} without a valid credential"
        return _refusal(whose, options.RPC_FAILURE_RATE.key, wait_s)


def _refusal(whose: str, option: str, wait_s: float) -> str:
    if not wait_s:
        return ""
    return f"too many calls {whose} ({option}); try again in {max(1, math.ceil(wait_s))} s"
