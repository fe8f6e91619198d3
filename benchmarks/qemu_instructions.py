"""Instructions per multiply-add of a model, counted under QEMU: speed on machines that aren't here.

    python benchmarks/qemu_instructions.py yolov8n_320 squeezenet_rw --target aarch64-generic
    python benchmarks/qemu_instructions.py yolov8n_320 --by executable --target armv7-neon
    python benchmarks/qemu_instructions.py my.onnx --shape x=1x3x224x224 --json counts.json

One inference of the module as it would be shipped, in a static `aot-run`; a plugin of QEMU counts
between the driver's calls (qemu_counts.c), so that loading and writing outputs is left out. The
multiply-adds are those of direct convolutions and matrix products, whatever algorithm computes
them. Counts are the same on any machine; they say nothing of caches. Owns no bound: tests do.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import aot
from aot.analysis.control import control_ops
from aot.driver.pipeline import prepared
from aot.errors import AotError
from aot.ir import dims, expr
from aot.ir.bounds import linear
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Function, FunctionRef, Op
from aot.ir.record import Call, Kind, call_of
from aot.ops.structure import DISPATCH
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.runtime.inputs import make_inputs
from aot.target import selection as targets
from tests.support import models
from tests.support.cross import CROSS_TARGETS, build_runtime, run_emulated
from tests.support.paths import SUPPORT
from tests.support.runtime_build import build

_PLUGIN = SUPPORT / "qemu_counts.c"
# functions of the CPU driver where a count ends and the next one begins
MARKS = ("cpu_begin", "cpu_dispatch", "cpu_end")
BEGIN, DISPATCH_MARK, END = range(len(MARKS))
# options of a compile that change what is counted
_COUNTED = ("input_shapes", "optimize", "winograd", "arithmetic")
_PRODUCTS = (Kind.CONTRACTION, Kind.RECURRENCE, Kind.ATTENTION)


@dataclass(frozen=True)
class Row:
    """A dispatch of one inference.

    Attributes:
        node: the model's node at its heart.
        executable: what is called.
        extents: what tells dispatches of one executable apart; its dim parameters.
        multiply_adds: of direct products; 0 where there are none.
        instructions: from this dispatch to the next one, the runtime's own few among them.
    """

    node: str
    executable: str
    extents: tuple[int, ...]
    multiply_adds: int
    instructions: int


@dataclass(frozen=True)
class Counts:
    """One inference.

    Attributes:
        rows: by dispatch, in their order.
        before: instructions before the first dispatch.
    """

    rows: tuple[Row, ...]
    before: int

    @property
    def instructions(self) -> int:
        return self.before + sum(row.instructions for row in self.rows)

    @property
    def multiply_adds(self) -> int:
        return sum(row.multiply_adds for row in self.rows)

    @property
    def per_multiply_add(self) -> float:
        return self.instructions / self.multiply_adds


def count_model(model: str | Path, options: CompileOptions, inputs: Mapping[str, Any]) -> Counts:
    """Compiles a model for the one target of `options`, runs it once under QEMU and counts.

    Args:
        inputs: input name -> array; others are random, and need shapes without symbols.

    Raises:
        RuntimeError: a compiler or emulator is missing, or the run failed.
    """
    (name,) = options.targets
    arch = targets.load(name).arch
    if arch not in CROSS_TARGETS:
        raise RuntimeError(f"{name} is not for a CPU that QEMU runs here")
    keywords = {f: getattr(options, f) for f in _COUNTED}
    file = aot.compile(model, targets=[name], **keywords).to_bytes()
    return _counts(*count_dispatches(file, arch, inputs), _work_of(model, options, inputs))


def count_dispatches(file: bytes, arch: str, inputs: Mapping[str, Any]) -> tuple[int, list[int]]:
    """The instructions of one inference of a module: before its dispatches, and by dispatch.

    Args:
        arch: a key of CROSS_TARGETS, of a variant in the module.
        inputs: input name -> array.
    """
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        path = Path(folder) / "model.aotm"
        path.write_bytes(file)
        arguments: list[str | Path] = [path, "--runs", "0"]
        for number, (input_name, array) in enumerate(inputs.items()):
            np.save(Path(folder) / f"{number}.npy", np.asarray(array, order="C"))
            arguments += ["--input", f"{input_name}={folder}/{number}.npy"]
        segments = run_counted(arch, arguments, Path(folder) / "counts")
    ends = [i for i, (mark, _) in enumerate(segments) if mark == END]
    start = max(i for i, (mark, _) in enumerate(segments[: ends[-1]]) if mark == BEGIN)
    run = segments[start + 1 : ends[-1]]
    return segments[start][1], [count for mark, count in run if mark == DISPATCH_MARK]


def run_counted(arch: str, arguments: Sequence[str | Path], out: Path) -> list[tuple[int, int]]:
    """The plugin's lines of a run of `aot-run`: which of MARKS, and instructions until the next."""
    tool, plugin = _tool_for(arch), plugin_for(CROSS_TARGETS[arch].emulator)
    marks = ",".join(f"mark={address:x}" for address in _addresses(arch, tool))
    options = ["-plugin", f"{plugin},out={out},{marks}"]
    result = run_emulated(arch, [tool, *arguments], 1800, options=options)
    if result.returncode:
        raise RuntimeError(f"aot-run for {arch} failed: {result.stderr.strip()}")
    lines = [line.split() for line in out.read_text().splitlines()]
    return [(int(mark), int(count)) for mark, count in lines]


def _tool_for(arch: str) -> Path:
    tool = build_runtime(arch)
    if tool is None:
        raise RuntimeError(f"{CROSS_TARGETS[arch].compiler} is not installed")
    return tool


def plugin_for(emulator: str) -> Path:
    """The plugin, for QEMU as it is installed.

    Raises:
        RuntimeError: QEMU or a C compiler is missing.
    """
    if shutil.which(emulator) is None:
        raise RuntimeError(f"{emulator} is not installed")
    said = subprocess.run([emulator, "--version"], capture_output=True, text=True, check=True)
    version = re.search(r"version (\d+)", said.stdout)
    api = 1 if version and int(version[1]) < 9 else 2  # the oldest that it still accepts
    flags = ["-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-DCOUNTS_API={api}"]
    plugin = build("libqemu_counts.so", [_PLUGIN], flags)
    if plugin is None:
        raise RuntimeError("gcc is not installed")
    return plugin


def _addresses(arch: str, tool: Path) -> list[int]:
    nm = CROSS_TARGETS[arch].compiler.replace("gcc", "nm")
    text = subprocess.run([nm, str(tool)], capture_output=True, text=True, check=True).stdout
    found = {
        words[-1]: int(words[0], 16)
        for words in map(str.split, text.splitlines())
        if len(words) == 3
    }
    return [found[mark] for mark in MARKS]


def _counts(before: int, found: Sequence[int], work: Sequence[Row]) -> Counts:
    """An inference by dispatch; a copy or fill counts for what is before it."""
    if len(found) != len(work):  # branches, loops, or dispatches of nothing
        total = sum(row.multiply_adds for row in work)
        return Counts((Row("", "all", (), total, sum(found)),), before)
    rows = [
        Row(row.node, row.executable, row.extents, row.multiply_adds, count)
        for row, count in zip(work, found, strict=True)
    ]
    return Counts(tuple(rows), before)


def _work_of(model: str | Path, options: CompileOptions, inputs: Mapping[str, Any]) -> list[Row]:
    """The dispatches of a model and their multiply-adds; instructions are not known yet."""
    module, left = prepared(model, options)
    context = PassContext(left, targets.load(options.targets[0]))
    run_passes(module, (*MODEL_PASSES, *TARGET_PASSES), context)
    (function,) = module.entry_points
    values: dict[str, int] = {}
    for value in function.inputs:
        for dim, extent in zip(value.type.dims, inputs[value.name].shape, strict=True):
            found = linear(dim)
            if found is not None:
                symbol, factor, offset = found
                values.setdefault(symbol, (extent - offset) // factor)
    executables = {f.name: f for f in module.executables}
    return [_row(op, executables, values) for op in control_ops(function) if op.record is DISPATCH]


def _row(op: Op, executables: Mapping[str, Function], values: Mapping[str, int]) -> Row:
    name = op.attrs["executable"]
    assert isinstance(name, FunctionRef)
    executable = executables[name.name]
    given = op.attrs.get("dims", ())
    assert isinstance(given, tuple)
    env: dict[str, Dim] = {}
    for key, value in zip(executable.dim_names, given, strict=True):
        if isinstance(value, int | DimExpr):
            env[key] = dims.substitute(value, dict(values))
    total = dims.substitute(_multiply_adds(executable), env)
    extents = tuple(value for value in env.values() if isinstance(value, int))
    return Row(op.origin, name.name, extents, total if isinstance(total, int) else 0, 0)


def _multiply_adds(executable: Function) -> Dim:
    total: Dim = 0
    for op in executable.block:
        if op.record.kind in _PRODUCTS:
            total = dims.add(total, _terms(call_of(op)))
    return total


def _terms(call: Call) -> Dim:
    """Products that are summed by one op."""
    record = call.record
    if record.flops is not None:
        return dims.floor_divide(record.flops(call), 2)
    assert record.compute is not None
    total: Dim = 0
    for compute, type in zip(record.compute(call), call.result_types, strict=True):
        reduces = [e for e in expr.nodes(compute.value) if isinstance(e, expr.Reduce)]
        for reduce in reduces:
            axes = dims.product([n for _, n in reduce.axes])
            total = dims.add(total, dims.multiply(type.element_count, axes))
    return total


# ---- the command ----


def _table(counts: Counts, by: str) -> list[str]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for number, row in enumerate(counts.rows):
        key = (row.executable, "") if by == "executable" else (str(number), row.node)
        groups.setdefault(key, []).append(row)
    lines = ["  per MAC  instructions  of all          MACs  dispatch"]
    for (key, _), rows in groups.items():
        instructions = sum(row.instructions for row in rows)
        work = sum(row.multiply_adds for row in rows)
        ratio = f"{instructions / work:9.3f}" if work else "        -"
        of_all = instructions / counts.instructions
        what = key if by == "executable" else _described(rows[0])
        lines.append(f"{ratio} {instructions:13,} {of_all:7.1%} {work:13,}  {what}")
    if by == "executable":
        lines[1:] = sorted(lines[1:], key=lambda line: -int(line[9:23].replace(",", "")))
    return lines


def _described(row: Row) -> str:
    extents = " ".join(map(str, row.extents))
    return f"{row.node} ({row.executable}{' ' if extents else ''}{extents})"


def _parsed_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    pairs = [text.rpartition("=") for text in texts]
    return {name: tuple(map(int, dims_.split("x"))) for name, _, dims_ in pairs}


def _model(name: str, arguments: argparse.Namespace) -> tuple[str | Path, dict[str, Any]]:
    """A model's file and the inputs of its run."""
    if name in models.MODELS:
        return models.model_path(name), models.feeds(name)
    shapes = _parsed_shapes(arguments.shape)
    with aot.load(aot.compile(name, input_shapes=shapes)) as program:
        return name, make_inputs(program.inputs, {}, shapes)


def main() -> int:
    """Prints a table for each model and target; the last lines are the totals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", help="names of samples/model_zoo.py, or paths")
    parser.add_argument("--target", action="append", help="default: aarch64-generic")
    parser.add_argument("--by", choices=("dispatch", "executable", "model"), default="dispatch")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1x3x48x192")
    parser.add_argument("--open", action="store_true", help="leave shapes open that the model does")
    parser.add_argument("--optimize", default="balanced")
    parser.add_argument("--no-winograd", action="store_true")
    parser.add_argument("--arithmetic", default="fp32")
    parser.add_argument("--json", metavar="FILE", help="writes all counts")
    arguments = parser.parse_args()
    totals, found = [], []
    for name in arguments.models:
        model, inputs = _model(name, arguments)
        shapes = {} if arguments.open else {key: x.shape for key, x in inputs.items()}
        for target in arguments.target or ["aarch64-generic"]:
            options = CompileOptions(
                targets=(target,),
                input_shapes=shapes,
                optimize=arguments.optimize,
                winograd=not arguments.no_winograd,
                arithmetic=arguments.arithmetic,
            )
            counts = count_model(model, options, inputs)
            if arguments.by != "model":
                print(f"{name} on {target}", *_table(counts, arguments.by), sep="\n", end="\n\n")
            totals.append(
                f"{name} on {target}: {counts.instructions:,} instructions, "
                f"{counts.multiply_adds:,} multiply-adds: {counts.per_multiply_add:.4f} each"
            )
            rows = [asdict(row) for row in counts.rows]
            found.append({"model": name, "target": target, "before": counts.before, "rows": rows})
    print(*totals, sep="\n")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (AotError, RuntimeError, OSError) as error:
        sys.exit(f"qemu_instructions: {error}")
