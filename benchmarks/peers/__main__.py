"""Runs some of `make bench ONLY=peers`, `python -m benchmarks.peers [NAME...]`, and prints the
result as JSON.
"""

from __future__ import annotations

import json
import sys

from rich.console import Console

from benchmarks.peers.rows import NAMES, Peers, steps
from benchmarks.progress import Steps

if __name__ == "__main__":
    wanted = sys.argv[1:] or NAMES
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        sys.exit(
            f"benchmarks.peers: there is no {', '.join(unknown)}; known are {', '.join(NAMES)}"
        )
    with Steps(Console(stderr=True), sum(len(steps(name)) for name in wanted)) as progress:
        peers = Peers(progress)
        rows = [row for name in wanted for row in peers.run(name)]
    print(json.dumps(rows, indent=2))
