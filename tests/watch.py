"""Ends the servers of tests that were killed, and deletes their files."""

from __future__ import annotations

import subprocess
from pathlib import Path

# Waits for a line of the process that has started the servers, or for its end. A pid counts only if
# the command line of its process names the folder.
_WATCH = """
trap '' HUP INT TERM
read -r _ && exit
folder=$1 signal=$2
for file in "$folder"/$3; do
  read -r pid <"$file" && grep -qF "$folder" "/proc/$pid/cmdline" && kill "-$signal" "$pid" &&
    while kill -0 "$pid"; do sleep 0.1; done
done
rm -rf "$folder"
"""


class Watch:
    """Runs until `end`. If this process ends first, in any way, it sends `signal` to the servers whose
    pids are in the files `pids`, a pattern relative to `folder`, and deletes the folder.
    """

    def __init__(self, folder: Path, *, pids: str, signal: str) -> None:
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", str(folder), signal, pids],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it
        )

    def end(self) -> None:
        self.process.communicate(b"closed\n")
