"""Checks that one contender leads at a time, under epochs that only rise (invariant 20)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firesteel.common.ids import Epoch
from firesteel.common.leader import NO_EPOCH, Office

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedProcess, World


class Offices:
    """The offices of elected masters."""

    def __init__(self, world: World) -> None:
        self.changes = 0  # of leaders, after the first of each office
        self._world = world
        self._granted: dict[Office, Epoch] = {}  # the highest epoch
        self._acted: dict[Office, tuple[Epoch, SimulatedProcess]] = {}  # under the highest epoch

    def granted(self, office: Office, epoch: Epoch, process: SimulatedProcess) -> None:
        """It takes the office. If it was paused since its election, another one may have it: then
        it does not act.
        """
        before = self._granted.get(office, NO_EPOCH)
        if epoch == before:
            self._fail(process, f"{process.name} leads with epoch {epoch}, as another one does")
        if epoch < before:
            return
        self._granted[office] = epoch
        self.changes += before != NO_EPOCH

    def acts(self, office: Office, epoch: Epoch, process: SimulatedProcess) -> None:
        """Records that the process's core is about to handle an event."""
        latest, by = self._acted.get(office, (NO_EPOCH, process))
        if epoch < latest:
            self._fail(
                process, f"{process.name} (epoch {epoch}) acts after {by.name} (epoch {latest})"
            )
        if epoch == latest and by is not process:
            self._fail(process, f"{process.name} and {by.name} act under epoch {epoch}")
        self._acted[office] = epoch, process

    def answers(self, office: Office, epoch: Epoch, process: SimulatedProcess, method: str) -> None:
        """A client's call is let through."""
        latest, by = self._acted.get(office, (NO_EPOCH, process))
        if epoch < latest:
            self._fail(
                process,
                f"{process.name} (epoch {epoch}) answers {method} after {by.name} (epoch {latest})"
                " has acted",
            )

    def _fail(self, process: SimulatedProcess, why: str) -> None:
        failed = self._world.failed(f"{why} (invariant 20)")
        self._world.crashed(process, failed)  # whatever catches it
        raise failed
