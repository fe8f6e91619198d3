"""Compiles each model that is named on standard input, in a process of its own with limits.

    python hostile_runner.py MEGABYTES SECONDS < paths

Forks after importing, so that a model costs no start of Python. Prints one line of JSON a model:
what was raised, or how the process ended.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot
import aot.driver.pipeline

# LLVM and onnx are loaded before the limits, and once
from aot.backends.cpu.compile import compile_kernel  # noqa: F401
from aot.frontends.onnx import import_onnx  # noqa: F401


def used_bytes() -> int:
    """Address space in use."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def compile_limited(path: str, megabytes: int, seconds: int, out: int) -> None:
    limit = used_bytes() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(4 * seconds)  # for what waits instead of computing
    try:
        aot.compile(path)
        found = {"error": "", "message": ""}
    except BaseException as error:  # MemoryError and RecursionError are answers too
        found = {"error": type(error).__name__, "message": str(error)[:20_000]}
    os.write(out, json.dumps(found).encode())


def main() -> None:
    megabytes, seconds = int(sys.argv[1]), int(sys.argv[2])
    for line in sys.stdin:
        path = line.rstrip("\n")
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ours)
            compile_limited(path, megabytes, seconds, theirs)
            os._exit(0)
        os.close(theirs)
        with os.fdopen(ours, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(child, 0)
        found = (
            json.loads(data)
            if data
            else {"error": "killed", "message": f"exit code {os.waitstatus_to_exitcode(status)}"}
        )
        print(json.dumps({"path": path, **found}), flush=True)


if __name__ == "__main__":
    main()
