"""The stacks of this process's threads and coroutines, as text."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback

from firesteel.common.inspections import ThreadStack

MAX_TASKS = 200


def python_threads(process: str) -> list[ThreadStack]:
    """Returns the stack of each thread, the innermost call last."""
    frames = sys._current_frames()
    return [
        ThreadStack(process, thread.name, "".join(traceback.format_stack(frame)))
        for thread in threading.enumerate()
        if (frame := frames.get(thread.ident or 0)) is not None
    ]


def coroutines(process: str) -> list[ThreadStack]:
    """Returns where each task of the running event loop waits."""
    return [
        ThreadStack(
            process,
            f"task {task.get_name()}",
            "".join(traceback.format_list([_summary(frame) for frame in task.get_stack()])),
        )
        for task in list(asyncio.all_tasks())[:MAX_TASKS]
    ]


def _summary(frame: object) -> traceback.FrameSummary:
    return traceback.extract_stack(frame, limit=1)[0]  # type: ignore[arg-type]
