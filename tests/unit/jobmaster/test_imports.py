from __future__ import annotations

import subprocess
import sys


def test_a_job_master_without_checkpoints_does_without_arrow() -> None:
    """It is half of what its process would import."""
    code = "import sys, jobmaster.__main__; sys.exit('pyarrow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
