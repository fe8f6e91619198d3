"""Compiles in a process of its own and gives the module's digest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import hashlib, sys
import aot
storage, targets = sys.argv[2], sys.argv[3:]
data = aot.compile(sys.argv[1], storage=storage, targets=targets, cache=False).to_bytes()
print(hashlib.sha256(data).hexdigest())
"""


def digest_in_fresh_process(
    path: Path, targets: list[str], storage: str = "fp32", **environment: str
) -> str:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), storage, *targets],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return result.stdout.strip()
