"""Numbers the rows of each key."""

from dataclasses import dataclass

from firesteel.operators import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRowsSpec(Spec):
    """Input: the rows. Output: the rows, with `number` (int64, from 1)."""

    key_columns: tuple[str, ...]

    slot_half = "number_rows.slot_half"
    counts_rows = True  # an update of a row would get a separate number
    uses_pandas = False
