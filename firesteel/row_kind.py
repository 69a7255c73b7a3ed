"""The column of results whose rows may be retracted.

An allowed late record can merge two sessions whose results were emitted, or change the rows that a
window's function returns. Such results have a column `row_kind`: "insert" for a row that is now
valid, and "delete" for an earlier row, with all of its values, that is no longer valid. Deletes
precede the rows that replace them.
"""

from __future__ import annotations

ROW_KIND = "row_kind"
INSERT, DELETE = "insert", "delete"
