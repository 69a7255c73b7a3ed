"""The keys under which plans of earlier jobs are cached."""

from __future__ import annotations

import hashlib
import itertools
import pickletools
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import cloudpickle

from firesteel.common.units import MIB
from firesteel.operators import Spec, TransformSpec
from firesteel.plan.catalyst_plan import CatalystPlan

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_LONG_PICKLE = 1 * MIB  # longer pickles are not inspected


def cache_key(schema: StructType, specs: Sequence[Spec], *more: object) -> object | None:
    """Returns a key that is equal for the same group of operators over the same columns; None if
    that cannot be determined. Functions with equal keys may still return different plans, because a
    module is pickled by its name, and the plans of different queries may look alike.
    """
    try:
        functions = [_of_function(each) for each in specs if isinstance(each, TransformSpec)]
    except Exception:  # it was not sent here, and holds objects that cannot be pickled
        return None
    others = [each for each in specs if not isinstance(each, TransformSpec)]
    return schema.json(), functions, others, more


def _of_function(spec: TransformSpec) -> object:
    if isinstance(spec.function, CatalystPlan) and (likeness := spec.function.likeness):
        return likeness, spec.per_bundle
    return _content(cloudpickle.dumps(spec))


def _content(pickled: bytes) -> bytes:
    """Returns a digest that does not depend on whether equal strings are one object or several,
    which varies with the modules that were imported when the strings were loaded.
    """
    digest = hashlib.sha256()
    if len(pickled) > _LONG_PICKLE:
        digest.update(pickled)
        return digest.digest()
    memo: list[str | int] = []  # a string, or the number of another object
    numbers = itertools.count()
    text: str | None = None  # the last object
    for opcode, argument, _ in pickletools.genops(pickled):
        match opcode.name:
            case "FRAME":
                continue
            case "MEMOIZE":
                memo.append(next(numbers) if text is None else text)
                continue
            case "BINGET" | "LONG_BINGET":
                name, argument = "", memo[cast(int, argument)]
            case name:
                name = "" if isinstance(argument, str) else name
        text = argument if isinstance(argument, str) else None
        digest.update(repr((name, argument)).encode())
    return digest.digest()
