"""`python -m benchmarks.peers [NAME...]`: only some rows; nothing is written."""

from __future__ import annotations

import json
import sys

from benchmarks.peers.rows import NAMES, run

if __name__ == "__main__":
    wanted = tuple(sys.argv[1:]) or NAMES
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        sys.exit(f"benchmarks.peers: there is no {', '.join(unknown)}; known are {', '.join(NAMES)}")
    print(json.dumps(run(wanted), indent=2))
