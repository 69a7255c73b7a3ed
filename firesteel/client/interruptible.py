"""Calls of gRPC that the exception of a signal may interrupt.

Such an exception, raised inside gRPC, may leave a lock of the channel taken: then later calls, such
as the cancellation of the job, and the channel's destructor wait forever. Python raises it in the
main thread only. So calls of the main thread are made in another thread, for which it waits.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from firesteel.common.rpc.bearer import CALL_KINDS

_END: Any = object()  # of a stream
_Answers = queue.SimpleQueue[tuple[Any, BaseException | None]]


def interruptible(channel: grpc.Channel) -> grpc.Channel:
    """Makes the calls on a channel interruptible, and returns it. A call that streams answers can
    be iterated over and cancelled, and has `initial_metadata()` and `is_active()`.
    """

    def wrapped(kind: str, make: Callable[..., Any]) -> Callable[..., Any]:
        outside = _Stream if kind.endswith("_stream") else _called

        def multi_callable(*args: Any, **kwargs: Any) -> Any:
            call = make(*args, **kwargs)

            def outside_the_main_thread(*call_args: Any, **call_kwargs: Any) -> Any:
                if threading.current_thread() is not threading.main_thread():
                    return call(*call_args, **call_kwargs)
                return outside(functools.partial(call, *call_args, **call_kwargs))

            return outside_the_main_thread

        return multi_callable

    for kind in CALL_KINDS:
        setattr(channel, kind, wrapped(kind, getattr(channel, kind)))
    return channel


def _called(call: Callable[[], Any]) -> Any:
    answers: _Answers = queue.SimpleQueue()
    try:
        _start(lambda: _answer(call, answers))
    except RuntimeError:  # since Python 3.12, functions of `atexit` start no threads
        return call()
    return _answered(answers)


class _Stream(Iterator[Any]):
    """A call whose answers a thread reads one by one, on request."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._requests: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: _Answers = queue.SimpleQueue()
        self._call: Any = None
        requests, answers = self._requests, self._answers

        def serve() -> None:  # knows nothing of the stream, whose end it awaits
            while (request := requests.get()) is not None:
                _answer(request, answers)

        _start(serve)
        self._call = self._ask(make)

    def __next__(self) -> Any:
        call = self._call
        answer = self._ask(lambda: next(call, _END))
        if answer is _END:
            raise StopIteration
        return answer

    def initial_metadata(self) -> Any:
        return self._ask(self._call.initial_metadata)

    def is_active(self) -> bool:
        return bool(self._ask(self._call.is_active))

    def cancel(self) -> None:
        self._call.cancel()

    def __del__(self) -> None:
        if self._call is not None:
            self._call.cancel()
        self._requests.put(None)

    def _ask(self, request: Callable[[], Any]) -> Any:
        self._requests.put(request)
        return _answered(self._answers)


def _start(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="interruptible-call", daemon=True).start()


def _answer(request: Callable[[], Any], answers: _Answers) -> None:
    try:
        answers.put((request(), None))
    except BaseException as error:
        answers.put((None, error))


def _answered(answers: _Answers) -> Any:
    answer, error = answers.get()
    if error is None:
        return answer
    try:
        raise error
    finally:
        del error  # it refers to this frame
