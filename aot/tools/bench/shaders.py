"""Benchmarks of a Vulkan driver's compile time for a module's shaders, and of how much
deduplication saves.

Each figure comes from a fresh process of this module, with the driver's own caches off, or in a
folder of its own. Creation and first dispatch are timed separately, because some drivers compile
at the one, some at the other. Measures only; the programs are those of `aot.compile`.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from ctypes import byref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aot.base.records import dataclass
from aot.errors import RuntimeFailure
from aot.link.image import Device, EntryPointImage, ExecutableImage, ModuleImage, VariantImage
from aot.link.module import module_bytes
from aot.link.program import decode
from aot.link.reader import read_module
from aot.runtime import loader, tensors, vulkan_facts
from aot.runtime.inputs import make_inputs

CREATIONS = ("serial", "batch", "parallel")
_OP_NAME = 5
_SPIRV_HEAD_WORDS = 5
# Capabilities, extensions, the memory model, entry points and modes, and debug text stand before.
_BEFORE_NAMES = frozenset((3, 4, 5, 6, 7, 8, 10, 11, 14, 15, 16, 17, 331))


@dataclass(frozen=True)
class Level:
    """A module compiled at one level of deduplication."""

    name: str
    module: bytes


def levels_of(full: bytes, structural: bytes | None) -> list[Level]:
    """The module at each level of deduplication: only as compiled, or, given the module without
    despecialisation too, none, structural and despecialised."""
    if structural is None:
        return [Level("as compiled", full)]
    return [
        Level("none", without_sharing(structural)),
        Level("structural", structural),
        Level("despecialised", full),
    ]


def without_sharing(module: bytes) -> bytes:
    """The module with a separate shader for every dispatch. Equal shaders get different names,
    which do not affect compilation."""
    image = read_module(module)
    variants = tuple(_explode(v) if v.device is Device.VULKAN else v for v in image.variants)
    return module_bytes(ModuleImage(variants, image.rodata, image.rodata_segments, image.producer))


def _explode(variant: VariantImage) -> VariantImage:
    executables: list[ExecutableImage] = []
    entries: list[EntryPointImage] = []
    for entry in variant.entry_points:
        code = list(entry.program.code)
        for instruction in decode(entry.program.code):
            if instruction.name != "DISPATCH":
                continue
            known = variant.executables[instruction.operands[0]]
            number = len(executables)
            spirv, texels = (
                None if s is None else _named(s, number) for s in (known.spirv, known.texel_spirv)
            )
            name = f"{known.name}.{number}"
            executables.append(replace(known, name=name, spirv=spirv, texel_spirv=texels))
            code[instruction.at + 1] = number
        entries.append(replace(entry, program=replace(entry.program, code=tuple(code))))
    return replace(variant, executables=tuple(executables), entry_points=tuple(entries))


def _named(spirv: bytes, number: int) -> bytes:
    """A copy of the shader with one more OpName, so that driver caches treat it as new."""
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    at = _SPIRV_HEAD_WORDS
    while words[at] & 0xFFFF in _BEFORE_NAMES:
        at += words[at] >> 16
    text = f"d{number}".encode()
    text += bytes(4 - len(text) % 4)
    name = struct.pack("<II", (2 + len(text) // 4) << 16 | _OP_NAME, 1) + text
    return spirv[: 4 * at] + name + spirv[4 * at :]


# ---- figures ----


def bench_shaders(
    module: str | os.PathLike[str],
    model: str | os.PathLike[str] | None,
    *,
    input_values: Mapping[str, Any],
    **how: Any,
) -> dict[str, Any]:
    """The times of a module file's shaders; with its model, also at lower levels of deduplication.

    Raises:
        CompileError: the model can't be compiled.
        RuntimeFailure: as for `shader_figures`, or the file has no Vulkan variant.
    """
    full = Path(module).read_bytes()
    variants = [v for v in read_module(full).variants if v.device is Device.VULKAN]
    if not variants:
        raise RuntimeFailure(f"{module} has no variant for vulkan", "not_found")
    structural = None
    if model is not None:
        from aot.api import compile as compile_model

        first, host = variants[0], variants[0].host
        wanted = [first.target, *([] if host is None else [host.target])]
        structural = compile_model(
            model, targets=wanted, input_values=input_values, disable=["despecialise"]
        ).to_bytes()
    return shader_figures(full, structural, **how)


def shader_figures(
    full: bytes,
    structural: bytes | None,
    *,
    inputs: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    seed: int = 0,
    rounds: int = 3,
) -> dict[str, Any]:
    """Times of creation, of the first and of the second run at each level, with cold and with
    filled caches.

    Args:
        full: a module file's bytes, as they ship.
        structural: the same model compiled without despecialisation, or None.
        inputs: arrays or "random" by input, as `aotc run` takes them.
        shapes: of random inputs whose dims are symbolic.
        seed: of the random inputs.
        rounds: fresh processes for each figure; the one with the least total counts.

    Raises:
        RuntimeFailure: no Vulkan device runs the module.
    """
    result: dict[str, Any] = {"levels": {}}
    with tempfile.TemporaryDirectory(prefix="aotc-shaders-") as name:
        folder = Path(name)
        arrays = _save_inputs(full, inputs, shapes, seed, folder)
        for level in levels_of(full, structural):
            path = folder / "level.aotm"
            path.write_bytes(level.module)
            runs = {
                creation: [_run(path, arrays, creation, None) for _ in range(rounds)]
                for creation in CREATIONS
            }
            cold = {creation: _best(found) for creation, found in runs.items()}
            caches = folder / level.name
            _run(path, arrays, "serial", caches)  # fills them
            filled = [_run(path, arrays, "serial", caches) for _ in range(rounds)]
            cached = _best(filled)
            first = cold["serial"]
            result |= {k: first[k] for k in ("device", "target", "is_software")}
            result["levels"][level.name] = {
                "pipelines": len(first["pipelines"]),
                "dispatches": first["dispatches"],
                "words": sum(p["words"] for p in first["pipelines"]),
                "cold": {k: _totals(v) for k, v in cold.items()},
                "cached": _totals(cached),
                "by_pipeline": _by_pipeline(runs["serial"], filled),
            }
    return result


def _totals(run: Mapping[str, Any]) -> dict[str, float]:
    keys = ("create_ms", "first_run_ms", "second_run_ms", "first_dispatch_ms", "cpu_ms")
    return {k: run[k] for k in keys} | {"total_ms": run["create_ms"] + run["first_run_ms"]}


def _by_pipeline(
    cold: Sequence[Mapping[str, Any]], cached: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One row for each pipeline: its size in words, and its least times over the rounds with cold
    and with filled caches.
    """
    least = [_least(runs) for runs in (cold, cached)]
    return [
        {
            "name": p["name"],
            "words": p["words"],
            **least[0][p["name"]],
            **{f"cached_{key}": value for key, value in least[1][p["name"]].items()},
        }
        for p in cold[0]["pipelines"]
    ]


def _least(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The least times of each pipeline over the runs."""
    found: dict[str, dict[str, float]] = {}
    for pipeline in (p for run in runs for p in run["pipelines"]):
        times = {key: pipeline[key] for key in ("create_ms", "first_dispatch_ms")}
        known = found.setdefault(pipeline["name"], times)
        known |= {key: min(value, known[key]) for key, value in times.items()}
    return found


def _best(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return min(runs, key=lambda run: float(run["create_ms"] + run["first_run_ms"]))


def _save_inputs(
    module: bytes,
    inputs: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    seed: int,
    folder: Path,
) -> Path:
    """Writes the arrays of all inputs to a file, in order; returns its path."""
    with loader.load(module, "vulkan") as program:
        arrays = make_inputs(program.inputs, inputs, shapes, seed)
        ordered = {str(n): arrays[info.name] for n, info in enumerate(program.inputs)}
    path = folder / "inputs.npz"
    np.savez(path, **ordered)  # type: ignore[arg-type]
    return path


def _run(module: Path, inputs: Path, creation: str, caches: Path | None) -> dict[str, Any]:
    """The figures of a new process; without `caches`, all caches of pipelines and shaders are
    disabled."""
    variables = {**os.environ, "AOT_VULKAN_PIPELINES": creation}
    if caches is None:
        variables |= {"AOT_PIPELINE_CACHE": "0", "MESA_SHADER_CACHE_DISABLE": "true"}
    else:
        variables |= {"AOT_CACHE_DIR": str(caches), "MESA_SHADER_CACHE_DIR": str(caches)}
        variables.pop("AOT_PIPELINE_CACHE", None)
        variables.pop("MESA_SHADER_CACHE_DISABLE", None)
    variables["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    command = [sys.executable, "-m", "aot.tools.bench.shaders", str(module), str(inputs)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise RuntimeFailure(f"measuring shaders failed: {last}", "device")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ---- in the fresh process ----


class _Measured:
    """A program run through the C interface, with its launches timed."""

    def __init__(self, path: str) -> None:
        self.library = loader._library(loader.find_library())
        vulkan_facts.declare(self.library)
        self.launches: list[tuple[int, str, int]] = []
        self._profile = vulkan_facts.Profile(self._record)
        self._module, self._program = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("aot_module_open_path", os.fsencode(path), None, out=self._module)
        options = loader._ProgramOptions(
            device=2, profile=ctypes.cast(self._profile, ctypes.c_void_p).value
        )
        self.call("aot_program_create", self._module, byref(options), out=self._program)

    def _record(self, user: int | None, launch: Any) -> None:
        found = launch.contents
        self.launches.append((found.word, found.name.decode(), found.duration_ns))

    def call(self, name: str, *arguments: Any, out: Any = None) -> None:
        error = loader._Error()
        outs = () if out is None else (byref(out),)
        if getattr(self.library, name)(*arguments, byref(error), *outs) != 0:
            raise RuntimeFailure(error.message.decode(), "device")

    def run(self, arrays: Sequence[np.ndarray[Any, Any]]) -> float:
        """Runs the program once and returns the milliseconds; `launches` then has the times of this
        run."""
        self.launches.clear()
        for number, array in enumerate(arrays):
            tensor = tensors.to_tensor(array)
            self.call("aot_program_set_input", self._program, number, byref(tensor))
        self.call("aot_program_prepare", self._program)
        start = time.perf_counter()
        self.call("aot_program_run", self._program)
        return 1e3 * (time.perf_counter() - start)

    def info(self) -> vulkan_facts.Info:
        found = vulkan_facts.info_of(self.library, self._program)
        if found is None:
            raise RuntimeFailure("the program does not run on vulkan", "unsupported")
        return found

    def pipelines(self) -> list[vulkan_facts.Pipeline]:
        return vulkan_facts.pipelines_of(self.library, self._program)


def measure(path: str, inputs: str) -> dict[str, Any]:
    """The figures of one program in this process, ready for JSON; times are in milliseconds.

    A pipeline's first dispatch is what its first launch takes longer than the same launch does in
    the second run.
    """
    with np.load(inputs) as saved:
        arrays = [saved[str(n)] for n in range(len(saved))]
    begin = time.process_time()
    program = _Measured(path)
    first_run = program.run(arrays)
    cpu = time.process_time() - begin
    first = list(program.launches)
    second_run = program.run(arrays)
    again = {word: ns for word, _, ns in program.launches}
    info = program.info()
    image = read_module(Path(path).read_bytes())
    variant = next(v for v in image.variants if v.device is Device.VULKAN)
    shader_of = {e.name: e.spirv for e in variant.executables}
    extra: dict[bytes | None, float] = {}
    for word, name, ns in first:
        shader = shader_of.get(name)
        if shader is not None and shader not in extra:
            extra[shader] = max(0.0, (ns - again.get(word, ns)) / 1e6)
    pipelines = [
        {
            "name": p.executable.decode(),
            "words": p.words,
            "create_ms": p.create_ns / 1e6,
            "first_dispatch_ms": extra.get(shader_of[p.executable.decode()], 0.0),
        }
        for p in program.pipelines()
    ]
    return {
        "device": info.device_name.decode(),
        "target": variant.target,
        "is_software": info.device_type == vulkan_facts.SOFTWARE,
        "dispatches": len(first),
        "create_ms": info.pipelines_ns / 1e6,
        "first_run_ms": first_run,
        "cpu_ms": 1e3 * cpu,
        "second_run_ms": second_run,
        "first_dispatch_ms": sum(p["first_dispatch_ms"] for p in pipelines),
        "pipelines": pipelines,
    }


def figures_text(facts: Mapping[str, Any]) -> str:
    """The figures as text."""
    kind = ", a driver in software" if facts["is_software"] else ""
    lines = [f"{facts['target']} on {facts['device']}{kind}; times in ms", ""]
    heads = ("level", "pipelines", "words", *CREATIONS, "first run", "second", "cached total")
    rows = [heads]
    for name, level in facts["levels"].items():
        cold = level["cold"]
        rows.append(
            (
                name,
                str(level["pipelines"]),
                f"{level['words']:,}",
                *(f"{cold[c]['create_ms']:.1f}" for c in CREATIONS),
                f"{cold['serial']['first_run_ms']:.1f}",
                f"{cold['serial']['second_run_ms']:.1f}",
                f"{level['cached']['total_ms']:.1f}",
            )
        )
    lines += _columns(rows)
    name, level = list(facts["levels"].items())[-1]
    lines += ["", f"pipelines, {name}:"]
    pipelines = [("words", "create", "first dispatch", "cached", "name")]
    pipelines += [
        (
            f"{p['words']:,}",
            f"{p['create_ms']:.2f}",
            f"{p['first_dispatch_ms']:.2f}",
            f"{p['cached_create_ms'] + p['cached_first_dispatch_ms']:.2f}",
            p["name"],
        )
        for p in level["by_pipeline"]
    ]
    return "\n".join(lines + _columns(pipelines))


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _main(arguments: Sequence[str]) -> int:
    try:
        sys.stdout.write(json.dumps(measure(*arguments)))
    except RuntimeFailure as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
