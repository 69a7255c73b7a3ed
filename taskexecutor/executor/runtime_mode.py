"""Whether a task belongs to a stream or a batch."""

from __future__ import annotations

from firesteel.common.config import Configuration, options
from firesteel.operator import RuntimeContext


def is_batch(context: RuntimeContext) -> bool:
    return bool(Configuration(context.config).get(options.RUNTIME_MODE) == "BATCH")
