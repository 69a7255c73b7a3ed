"""The signals that end a program: Ctrl-C (SIGINT), SIGTERM, and SIGHUP when its terminal closes.

The job that the program waits for ends with the program, whichever signal arrives.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType

INTERRUPTED = 128 + signal.SIGINT  # exit code after Ctrl-C, as in the shell
ENDING = (signal.SIGTERM, signal.SIGHUP)
REPEAT_S = 0.1  # an interrupt that did not end a wait


class InterruptedJob(KeyboardInterrupt):
    """Ctrl-C has ended the wait for a job, and the job has ended."""

    def __init__(self, job_id: str, *, canceled: bool) -> None:
        super().__init__()
        self.job_id = job_id
        self.canceled = canceled  # not: it had finished before


@dataclass(slots=True)
class Interrupts:
    """The signals that arrive while a program waits for a job."""

    count: int = 0
    ending: int = 0  # the first one of ENDING; 0: none

    def add(self, number: int) -> None:
        self.count += 1
        if number in ENDING:
            self.ending = self.ending or number
            if number == signal.SIGHUP:
                _leave_terminal()


@contextlib.contextmanager
def counted_interrupts(*, exits: bool) -> Iterator[Interrupts]:
    """Counts signals instead of raising KeyboardInterrupt or ending the process; only in the main
    thread. Afterwards, SIGTERM and SIGHUP end the process: in their default way or, with `exits`,
    by SystemExit.

    The program's own handlers for SIGTERM and SIGHUP, and SIGHUP under nohup, are kept.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return

    def count(number: int, frame: FrameType | None) -> None:
        interrupts.add(number)

    numbers = [number for number in ENDING if signal.getsignal(number) in (signal.SIG_DFL, _exit)]
    before = {number: signal.signal(number, count) for number in (signal.SIGINT, *numbers)}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if interrupts.ending:
            if exits:
                raise SystemExit(128 + interrupts.ending)
            signal.raise_signal(interrupts.ending)


@contextlib.contextmanager
def exiting() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise SystemExit inside the block, so that `finally` clauses run;
    only in the main thread. The program's own handlers, and SIGHUP under nohup, are kept.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in numbers:
            if signal.getsignal(number) is _exit:
                signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def repeating_lost_interrupts() -> Iterator[None]:
    """Raises KeyboardInterrupt again in the main thread if Python ignores it, as in a finalizer or
    in a callback of a weak reference, which run at any time, and often during imports.
    """
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            _thread.start_new_thread(_interrupt_outside, (hook.__code__,))
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        if sys.unraisablehook is hook:
            sys.unraisablehook = before


def _interrupt_outside(code: CodeType) -> None:
    """Interrupts the main thread once it does not run this code."""
    main = threading.main_thread().ident
    assert main is not None
    while _runs(code, main):
        time.sleep(0)  # lets the main thread run
    waits = True
    while waits:
        position = _position(main)
        signal.pthread_kill(main, signal.SIGINT)  # also ends a system call that it waits in
        time.sleep(REPEAT_S)
        waits = _position(main) == position  # the signal came just before such a call


def _position(thread: int) -> tuple[FrameType | None, int]:
    frame = sys._current_frames().get(thread)
    return frame, frame.f_lasti if frame is not None else 0


def _runs(code: CodeType, thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _exit(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        _leave_terminal()
    raise SystemExit(128 + number)


def is_ending(code: object) -> bool:
    """Whether it is the exit code of a program that a signal of ENDING has ended."""
    return code in {128 + number for number in ENDING}


def _leave_terminal() -> None:
    """Redirects output from a terminal that has gone, because writing to it fails."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.__stdout__, sys.__stderr__):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                if os.isatty(stream.fileno()):  # type: ignore[union-attr]
                    os.dup2(null, stream.fileno())  # type: ignore[union-attr]
        os.close(null)
