"""Finds a leader for a caller without an event loop: a client."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from kazoo.exceptions import (
    ConnectionLoss,
    KazooException,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError

from firesteel.common.leader import Leader, Office
from firesteel.high_availability.incumbent import Incumbent
from firesteel.high_availability.zookeeper.ensemble import Client, Ensemble
from firesteel.high_availability.zookeeper.nodes import decode

_READ_TIMEOUT_S = 10.0


def incumbents(ensemble: Ensemble) -> dict[Office, Incumbent]:
    """Returns the holders of all offices that are occupied now. Raises FiresteelError."""
    by_office = {}
    client = Client(ensemble)
    try:
        client.connect()
        for office in Office:
            reading = client.get_async(ensemble.leader(office))
            with suppress(NoNodeError):
                data, stat = reading.get(timeout=_READ_TIMEOUT_S)
                by_office[office] = Incumbent(decode(data), stat.ctime)
    except KazooTimeoutError:
        raise ensemble.unreachable() from None
    except KazooException as error:
        raise ensemble.refused(error) from None
    finally:
        client.disconnect()
    return by_office


class LeaderFinder:
    """Connects when it is created. Raises EnsembleUnreachable."""

    def __init__(self, ensemble: Ensemble, office: Office) -> None:
        self._ensemble = ensemble
        self._office = office
        self._client = Client(ensemble)
        try:
            self._client.connect()
        except BaseException:
            self._client.disconnect()
            raise

    def find(self, *, timeout_s: float) -> Leader | None:
        """Returns the leader. Waits up to `timeout_s` while there is none, and then returns None.

        Raises EnsembleUnreachable or FiresteelError.
        """
        deadline = time.monotonic() + timeout_s
        path = self._ensemble.leader(self._office)
        while True:
            changed = threading.Event()
            try:
                reading = self._client.get_async(path, watch=lambda _, c=changed: c.set())
                return decode(reading.get(timeout=_READ_TIMEOUT_S)[0])
            except NoNodeError:
                exists = self._client.exists_async(path, watch=lambda _, c=changed: c.set())
                present = exists.get(timeout=_READ_TIMEOUT_S) is not None
            except (KazooTimeoutError, ConnectionLoss, SessionExpiredError, OperationTimeoutError):
                raise self._ensemble.unreachable() from None
            except KazooException as error:
                raise self._ensemble.refused(error) from None
            if not present and not changed.wait(max(0.0, deadline - time.monotonic())):
                return None

    def close(self) -> None:
        self._client.disconnect()
