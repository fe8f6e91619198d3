"""Where figures come from: the command line, the machine, the date and the versions of a run.

Reports, statistics and benchmarks carry these facts, by which `aotc report compare` tells whether
two of them may be compared. No module file has any of it.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import xxhash

from aot.errors import CompileError
from aot.target.host_cpu import read_cpuinfo
from aot.version import __version__

FORMAT = 1
"""The format of the facts, and of the figures beside them."""
EPOCH_VARIABLE = "SOURCE_DATE_EPOCH"
_PACKAGES = ("numpy", "llvmlite", "onnx")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_CHUNK_BYTES = 1 << 22


def provenance(kind: str, command: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """Facts about this run, as plain data.

    Args:
        kind: what was done: `compile` or `bench`.
        command: the arguments of `aotc`; empty where Python was the caller.
        more: further facts of that kind.

    Raises:
        CompileError: SOURCE_DATE_EPOCH is no number of seconds.
    """
    return {
        "format": FORMAT,
        "kind": kind,
        "aotc": __version__,
        "command": shlex.join(["aotc", *command]) if command else "",
        "date": date(),
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 1,
        "governor": governor(),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": {"python": platform.python_version(), **dict(_versions())},
        **more,
    }


def _versions() -> list[tuple[str, str]]:
    """(package, version) of the packages that decide what a compile makes."""
    found = []
    for name in _PACKAGES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return found


def date() -> str:
    """The time in UTC, to the second; that of SOURCE_DATE_EPOCH, where it is set.

    The variable is the convention of reproducible builds (reproducible-builds.org): seconds since
    1970-01-01 00:00 UTC.

    Raises:
        CompileError: the variable is no number of seconds.
    """
    given = os.environ.get(EPOCH_VARIABLE)
    if not given:
        when = datetime.now(UTC)
    else:
        try:
            when = datetime.fromtimestamp(int(given), UTC)
        except (ValueError, OverflowError, OSError) as error:
            raise CompileError(
                f"{EPOCH_VARIABLE} is {given[:40]!r}: it is a number of seconds since 1970"
            ) from error
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def cpu_name() -> str:
    """The processor as the system names it; its architecture where it has no name."""
    pattern = r"^(?:model name|Model|Hardware|uarch)\s*:\s*(\S.*)$"
    found = re.search(pattern, read_cpuinfo(), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def governor() -> str:
    """The policy by which Linux sets the clock of the first core; empty where it has none, as in
    virtual machines."""
    try:
        return _GOVERNOR.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def model_facts(paths: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """Name, bytes and digest of each model's file, which may be named as in FILE:NAME; the name
    alone of what is no regular file, such as `-`.

    The digest is xxh3's with 128 bits; data that a model keeps in other files are not in it.
    """
    return [_model(os.fspath(path)) for path in paths]


def _model(name: str) -> dict[str, Any]:
    path = Path(name if Path(name).exists() else name.rpartition(":")[0] or name)
    found: dict[str, Any] = {"name": path.name}
    if not path.is_file():
        return found  # a pipe cannot be read again
    hasher = xxhash.xxh3_128()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                hasher.update(chunk)
            found["bytes"] = stream.tell()
    except OSError:
        return found
    return {**found, "digest": hasher.hexdigest()}


def machine_text(run: Mapping[str, Any]) -> str:
    """One line about the machine of a run."""
    cores = run["cores"]
    policy = f", governor {run['governor']}" if run.get("governor") else ""
    return f"{run['cpu']}, {cores} core{'s' * (cores > 1)}{policy}, {run['os']}"
