"""Packages for WebAssembly, run under Node: many calls of one loaded model in one process.

    loader = make_package(module, folder)     NAME.mjs, by `aotc package --format wasm`
    results = run_calls(loader, [Call({"x": array})])

Skips the calling test where Node or the toolchain is missing. What needs relaxed SIMD, which no
distribution's Node has by itself yet, is for `relaxed_flags` to say. Owns no test.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.link.code_image import CodeImage
from aot.packaging import package
from tests.support.cpu_running import CLASSES, Job

Array = np.ndarray[Any, Any]
_RUNNER = Path(__file__).resolve().with_name("node_runner.mjs")
_IMAGE_RUNNER = Path(__file__).resolve().with_name("node_image.mjs")
# A module whose one function multiplies and adds by relaxed SIMD
_RELAXED = (
    "0061736d01000000010401600000030201000a3e013c00fd0c00000000000000000000000000000000fd0c00"
    "000000000000000000000000000000fd0c00000000000000000000000000000000fd85021a0b"
)
_ARRAYS = {
    "float32": "Float32Array",
    "float64": "Float64Array",
    "int8": "Int8Array",
    "int16": "Int16Array",
    "int32": "Int32Array",
    "int64": "BigInt64Array",
    "uint8": "Uint8Array",
    "uint16": "Uint16Array",
    "uint32": "Uint32Array",
    "uint64": "BigUint64Array",
    # what JavaScript has no arrays for, as their bits
    "float16": "Uint16Array",
    "bfloat16": "Uint16Array",
    "bool": "Uint8Array",
}
_DTYPES = {array: dtype for dtype, array in reversed(_ARRAYS.items())}


@dataclass(frozen=True)
class Call:
    """One run. Calls of one entry point that follow each other share its state.

    Attributes:
        entry: the entry point's name; None is the first.
    """

    inputs: dict[str, Array]
    entry: str | None = None


@dataclass(frozen=True)
class Outcome:
    """Attributes:
    outputs: by name; f16 and bool as unsigned integers.
    target: whose code ran.
    memory_bytes: that the runtime has after the run.
    status, message: of a run that was refused.
    """

    outputs: dict[str, Array] = field(default_factory=dict)
    target: str = ""
    memory_bytes: int = 0
    status: str = ""
    message: str = ""


def require_node() -> str:
    """Node's path."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    return found


def require_toolchain() -> None:
    """Skips where what compiles the runtime is missing."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed (the extra toolchain)")


def make_package(module: Path, folder: Path) -> Path:
    """The path of the packaged module's own JavaScript file."""
    require_toolchain()
    made = package(module, "wasm", folder)
    loader = made.folder / f"{module.stem}.mjs"
    assert loader.name in made.files
    return loader


def run_node(*arguments: object, cwd: Path | None = None, timeout_s: float = 600) -> str:
    """What a script prints; it must succeed."""
    command = [require_node(), *map(str, arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, timeout=timeout_s
    )
    assert result.returncode == 0, f"{result.stdout[-2000:]}{result.stderr[-4000:]}"
    return result.stdout


@cache
def relaxed_flags() -> tuple[str, ...] | None:
    """What makes Node take relaxed SIMD, if anything; None where nothing does."""
    node = shutil.which("node")
    probe = f"process.exit(WebAssembly.validate(Buffer.from('{_RELAXED}', 'hex')) ? 0 : 1)"
    for flags in ((), ("--experimental-wasm-relaxed-simd",)) if node else ():
        command = [node, *flags, "-e", probe]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return flags
    return None


def run_calls(loader: Path, calls: Sequence[Call], flags: Sequence[str] = ()) -> list[Outcome]:
    """The outcome of each call, in order; `flags` are Node's own."""
    blob = bytearray()
    written = []
    for call in calls:
        inputs = []
        for name, array in call.inputs.items():
            data = np.ascontiguousarray(array).tobytes()
            kind = _ARRAYS[str(array.dtype)]
            shape = list(array.shape)
            place = {"at": len(blob), "size": len(data)}
            inputs.append({"name": name, "array": kind, "shape": shape, **place})
            blob += data
        written.append({"entry": call.entry, "inputs": inputs})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.bin").write_bytes(blob)
        (folder / "calls.json").write_text(json.dumps({"calls": written}))
        run_node(*flags, _RUNNER, loader, folder / "calls.json", folder)
        data = (folder / "out.bin").read_bytes()
        found = json.loads((folder / "out.json").read_text())
    return [_outcome(item, data) for item in found]


def _outcome(item: dict[str, Any], data: bytes) -> Outcome:
    if "status" in item:
        return Outcome(status=item["status"], message=item["message"])
    outputs = {}
    for given in item["outputs"]:
        part = data[given["at"] : given["at"] + given["size"]]
        array = np.frombuffer(part, _DTYPES[given["array"]]).reshape(given["shape"])
        outputs[given["name"]] = array
    return Outcome(outputs, item["target"], item["memory"])


def run_image(image: CodeImage, jobs: list[Job]) -> None:
    """Runs job i with entry i of a code image, changing the jobs' classes in place.

    Raises:
        AssertionError: a job failed; names its kernel.
    """
    starts = sorted(set(image.entries))
    written, blob = [], bytearray()
    for job, entry in zip(jobs, image.entries, strict=True):
        blobs = [bytes(job.classes[c]) for c in CLASSES] + [job.block]
        sizes = [*map(len, blobs), -(-job.scratch_bytes // 64) * 64]
        written.append({"kernel": starts.index(entry), "grid": job.grid, "sizes": sizes})
        blob += b"".join(blobs)
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / part for part in ("image.wasm", "jobs.json", "in", "out")]
        for path, data in zip(paths, (image.data, json.dumps(written).encode(), blob)):
            path.write_bytes(data)
        result = subprocess.run(
            [require_node(), _IMAGE_RUNNER, *paths], capture_output=True, text=True, check=False
        )
        if result.returncode:
            said = result.stderr.strip()
            number = said.split(":")[0].removeprefix("job ")
            kernel = jobs[int(number)].kernel.name if number.isdecimal() else "none"
            raise AssertionError(f"node ended with {result.returncode} in kernel {kernel}: {said}")
        out = paths[3].read_bytes()
    for job in jobs:
        for name in ("arena", "outputs"):
            size = len(job.classes[name])
            job.classes[name][:], out = out[:size], out[size:]
    assert not out
