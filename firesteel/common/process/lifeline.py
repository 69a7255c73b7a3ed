"""How a child process reports that it is ready, and how it ends with its cluster.

The child calls `watch_lifeline` first of all and `announce_ready` when it serves. Two inherited
pipes do the rest, without polling and without depending on a clean-up:

* ready: the child writes one JSON line when it serves (its addresses), then closes it. EOF before
  that line means that it failed to start; the reason is in its log.
* lifeline: the parent holds the only write end and never writes. When the parent dies, however it
  dies, the kernel closes it; the child's whole process group is then killed, its JVM and other
  helpers with it. The reader is a shell in that group, a megabyte that works even when the child's
  native code holds the interpreter. It also kills the group when the child itself dies.
  (PR_SET_PDEATHSIG would end the child alone, orphan its helpers, and fire when the parent's
  *thread* ends.)

Masters pass their own lifeline on (`lifeline="inherit"`), so a JobMaster or TaskExecutor ends with
the cluster, not with the Dispatcher or ResourceManager that happened to start it. A slot's process
gets its TaskExecutor's own.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any, Literal

READY_FD = "FIRESTEEL_READY_FD"
LIFELINE_FD = "FIRESTEEL_LIFELINE_FD"

# The read end for children, and the write end that this process keeps open.
_own_lifeline: tuple[int, int] | None = None
# Never written; the kernel closes it when this process ends, and the group killer reads EOF.
_alive: int | None = None


def announce_ready(**facts: Any) -> None:
    """Reports to a waiting parent that this process is ready: `facts` are its addresses."""
    fd = os.environ.pop(READY_FD, None)
    if fd is not None:
        with os.fdopen(int(fd), "w") as pipe:
            pipe.write(json.dumps(facts) + "\n")


def watch_lifeline() -> None:
    """Ends this process and its group when the holder of the lifeline dies. Call it first."""
    if ready := os.environ.get(READY_FD):
        # A helper that held it would hide this process's death from the process that waits for it.
        os.set_inheritable(int(ready), False)
    fd = os.environ.get(LIFELINE_FD)
    if fd is None:
        return
    os.set_inheritable(int(fd), False)
    if os.getpgrp() == os.getpid():  # a separate group
        _start_group_killer(int(fd))
    threading.Thread(target=_die_with, args=(int(fd),), name="lifeline", daemon=True).start()


def _start_group_killer(lifeline: int) -> None:
    """Starts a shell in this group that kills the group when the lifeline or this process ends.

    The shell ignores the signals of an orderly stop, which are for the rest of the group.
    """
    global _alive
    alive_read, _alive = os.pipe()
    os.posix_spawn(
        "/bin/sh",
        [
            "sh",
            "-c",
            "trap '' HUP INT TERM; (read -r _ <&3; kill -KILL 0) & read -r _; kill -KILL 0",
        ],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, lifeline, 0),
            (os.POSIX_SPAWN_DUP2, alive_read, 3),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )
    os.close(alive_read)


def _die_with(fd: int) -> None:
    while os.read(fd, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def lifeline_for_children(kind: Literal["own", "inherit"]) -> int:
    """Returns the read end of the lifeline for a child."""
    inherited = os.environ.get(LIFELINE_FD)
    if kind == "inherit" and inherited is not None:
        return int(inherited)
    global _own_lifeline
    if _own_lifeline is None:
        _own_lifeline = os.pipe()
    return _own_lifeline[0]
