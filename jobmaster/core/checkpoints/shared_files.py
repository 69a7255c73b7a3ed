"""Files that several checkpoints refer to (`execution.checkpointing.incremental`).

A file is kept exactly while a retained checkpoint refers to it, or a pending one may. A pending
checkpoint refers to its own new files and to those of its base, a complete checkpoint that its
trigger names. So the files of a base are kept until all checkpoints that build on it have ended,
even if the base is subsumed (invariant 10). Reachable files are recomputed each time: there are no
reference counts that could be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from firesteel.common.checkpoints.state import writer_of


class SharedFiles:
    """Methods return the paths to delete now, in order."""

    def __init__(self, retained: Mapping[int, Iterable[str]]) -> None:
        """`retained` has the files of complete checkpoints that earlier masters left."""
        self._files = {checkpoint_id: frozenset(paths) for checkpoint_id, paths in retained.items()}
        self._dropped: set[int] = set()  # those of them that are no longer retained
        self._bases: dict[int, int] = {}  # base of each pending checkpoint, 0: none

    @property
    def reachable(self) -> frozenset[str]:
        return frozenset().union(*self._files.values())

    def knows(self, checkpoint_id: int) -> bool:
        """Whether new checkpoints can build on it."""
        return checkpoint_id in self._files and checkpoint_id not in self._dropped

    def begun(self, checkpoint_id: int, base: int) -> None:
        self._bases[checkpoint_id] = base

    def missing(self, checkpoint_id: int, paths: Iterable[str]) -> list[str]:
        """Returns the files of a pending checkpoint that belong neither to it nor to its base."""
        base = self._files.get(self._bases.get(checkpoint_id, 0), frozenset())
        return sorted(path for path in set(paths) - base if writer_of(path) != checkpoint_id)

    def completed(self, checkpoint_id: int, paths: Iterable[str]) -> list[str]:
        self._files[checkpoint_id] = frozenset(paths)
        return self.given_up(checkpoint_id)

    def given_up(self, checkpoint_id: int) -> list[str]:
        """The pending checkpoint has ended."""
        self._bases.pop(checkpoint_id, None)
        return self._collect()

    def dropped(self, checkpoint_id: int) -> list[str]:
        """The checkpoint is no longer retained."""
        if checkpoint_id in self._files:
            self._dropped.add(checkpoint_id)
        return self._collect()

    def unreachable(self, paths: Iterable[str]) -> list[str]:
        """Returns which files of a failed checkpoint can be deleted."""
        reachable = self.reachable
        return [path for path in paths if path not in reachable]

    def _collect(self) -> list[str]:
        gone = self._dropped - set(self._bases.values())
        if not gone:
            return []
        left = frozenset[str]().union(*(self._files.pop(dropped) for dropped in gone))
        self._dropped -= gone
        return sorted(left - self.reachable)
