"""JSON records that start with the id of their schema in a registry."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.connectors.kafka.formats import Confluent, Json
from firesteel.operator import RuntimeContext
from taskexecutor.executor.connectors.kafka import unreadable
from taskexecutor.executor.connectors.kafka.clients import resolved
from taskexecutor.executor.connectors.kafka.decoders.avro import HEAD, ids_of
from taskexecutor.executor.connectors.kafka.decoders.text import TextValues
from taskexecutor.executor.connectors.kafka.decoders.values import Rows, Values
from taskexecutor.executor.connectors.kafka.registry import RegistryClient


class FramedJson(Values):
    """The columns are those of the format: the schema of a record only has to be known."""

    def __init__(self, format: Confluent) -> None:
        assert isinstance(format.format, Json)
        self._format = format
        self._text = TextValues(format.format)

    @property
    def schema(self) -> pa.Schema:
        return self._text.schema

    def open(self, context: RuntimeContext) -> None:
        registry = self._format.registry
        self._registry = RegistryClient(
            registry, resolved(registry.properties), lambda: context.cancelled
        )
        self._text.open(context)

    def rows(self, values: pa.BinaryArray) -> Rows:
        problems = {id: self._registry.problem(id, "JSON") for id in ids_of(values)}
        unknown = [id for id, problem in problems.items() if problem]
        heads = pc.binary_slice(values, 0, HEAD)
        framed = pc.and_(
            pc.equal(pc.binary_slice(values, 0, 1), b"\0"), pc.equal(pc.binary_length(heads), HEAD)
        )
        known = framed
        if unknown:
            missing = pa.array([bytes(1) + id.to_bytes(4) for id in unknown], pa.binary())
            known = pc.and_not(framed, pc.is_in(heads, missing))
        kept = np.flatnonzero(known.to_numpy(zero_copy_only=False))
        # Slicing binaries to their ends needs an end.
        texts = pc.binary_slice(values.take(pa.array(kept)), HEAD, 1 << 31 - 1)
        found = self._text.rows(texts)
        errors = {int(kept[place]): text for place, text in found.errors.items()}
        for place in np.flatnonzero(~known.to_numpy(zero_copy_only=False)).tolist():
            value = values[place].as_py()
            reason = "the record does not start with a zero byte and a schema's id"
            if framed[place].as_py():
                reason = problems[int.from_bytes(value[1:HEAD])]
            errors[place] = f"{reason}: {unreadable.shown(value)}"
        places = kept if found.places is None else kept[found.places]
        return Rows(found.rows, places if len(places) < len(values) else None, errors)

    def close(self) -> None:
        self._text.close()
