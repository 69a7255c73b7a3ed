"""`make mutants` takes minutes; here, only that it still can make them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.defects import MUTANTS, SIMULATION, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_made_and_tried(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.was) == 1
    assert mutant.was != mutant.becomes
    if mutant.convicted_by != SIMULATION:
        path, _, test = mutant.convicted_by.partition("::")
        assert (ROOT / path).exists()
        assert not test or f"def {test}(" in (ROOT / path).read_text()
