"""The column of results whose rows may go away again.

A late record that is allowed can join two sessions whose results are out, or change which rows a
window's function returns. Such results have a column `row_kind`: "insert" for a row that is now
valid, and "delete" for an earlier row, with all of its values, that no longer is. Deletes come
before the rows that replace them.
"""

from __future__ import annotations

ROW_KIND = "row_kind"
INSERT, DELETE = "insert", "delete"
