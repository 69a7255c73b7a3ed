"""Imports that the first job in a slot needs, made before its records wait for them."""

from __future__ import annotations


def import_pandas() -> None:
    """pyarrow imports it at the first Python value that it converts. A slot that has not had a job
    does without.
    """
    import pandas  # noqa: F401
