"""Benchmarks of module files with the native `aot-run`, as on a device.

Owns how the tool is found and called, and what its times mean beside what dispatches compute and
what the machine can do. Measures nothing itself.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aot.analysis.launches import Launch
from aot.api import CompiledModule
from aot.base.records import dataclass
from aot.errors import CompileError, RuntimeFailure
from aot.ir import dims
from aot.ir.bounds import linear
from aot.ir.dim_parser import parse
from aot.ir.dims import Dim
from aot.link.image import EntryPointImage, VariantImage
from aot.link.notes import decode_notes
from aot.link.program import decode
from aot.link.reader import read_module_file
from aot.options import DeviceName
from aot.runtime.inputs import make_inputs
from aot.runtime.loader import Program
from aot.runtime.runner import RUNNER_NAME, find_runner
from aot.runtime.tensors import number_of, to_numbers
from aot.tools.bench.peaks import memory_gbs, peaks_of, vector_bytes
from aot.tools.open_extents import with_followers

MODULE_PATH = str | os.PathLike[str]


@dataclass(frozen=True)
class Case:
    """A benchmark case: a module, its inputs, and how to run it.

    Attributes:
        inputs: input name -> array; the others are random.
        shapes: input name -> extents, for random inputs with symbolic dims.
        threads: that share the work.
    """

    module: MODULE_PATH
    device: str = "auto"
    entry: str | None = None
    target: str | None = None
    threads: int = 1
    inputs: Mapping[str, ArrayLike] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seed: int = 0


def bench(
    module: MODULE_PATH | bytes | CompiledModule,
    device: DeviceName = "auto",
    *,
    entry: str | None = None,
    target: str | None = None,
    threads: int = 1,
    inputs: Mapping[str, ArrayLike] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    runs: int = 10,
    seconds: float = 2.0,
    profile: bool = True,
    is_cold: bool = False,
) -> dict[str, Any]:
    """Times a module with the native `aot-run`, as `aotc bench` does.

    Args:
        module: a path, the file's bytes, or what `aot.compile` returned.
        device: "cpu", "vulkan" or "auto", the first variant that runs here.
        entry: the entry point; the first one if None.
        target: the target whose variant must be used; the first that runs here if None.
        threads: threads that share the work on a CPU.
        inputs: input name -> array; the others are random.
        shapes: input name -> extents, of random inputs with symbolic dims.
        seed: of the random inputs.
        runs: runs that are timed, at least; with `is_cold`, processes.
        seconds: for at least so long runs are timed.
        profile: also times each dispatch, in runs of their own.
        is_cold: times the phases of new processes instead, from exec to the first result.

    Returns:
        Plain data with the keys of `aotc bench --json` (docs/use/benchmarking.md).

    Raises:
        CompileError: the file is no module, or an input is wrong.
        RuntimeFailure: there is no `aot-run`, or it failed; the message is its own.
    """
    with tempfile.TemporaryDirectory(prefix="aot-") as folder:
        if isinstance(module, bytes | CompiledModule):
            data = module if isinstance(module, bytes) else module.to_bytes()
            module = Path(folder) / "module.aotm"
            module.write_bytes(data)
        case = Case(module, device, entry, target, threads, inputs or {}, shapes or {}, seed)
        if is_cold:
            return cold(case, rounds=runs)
        return steady(case, runs=runs, seconds=seconds, profile=profile)


def steady(
    case: Case, *, runs: int = 10, seconds: float = 2.0, warmup: int = 3, profile: bool = True
) -> dict[str, Any]:
    """Times of consecutive runs, as plain data with stable keys (docs/use/benchmarking.md).

    Args:
        runs: at least so many are timed.
        seconds: and for at least so long.
        warmup: runs before them, after the first one.
        profile: also times each launch, in runs of their own, and measures the machine.

    Raises:
        CompileError: the file is no module, or an input is wrong.
        RuntimeFailure: there is no `aot-run`, or it failed; the message is its own.
    """
    with _prepared(case) as (command, arrays):
        options = ["--runs", str(runs), "--min-ms", str(1e3 * seconds), "--warmup", str(warmup)]
        result = _run([*command, *options, *(["--profile"] if profile else [])])
    result = {"module": os.fspath(case.module), "shapes": shapes_of(arrays), **result}
    if profile:
        # what a CPU's core can do says nothing about a GPU
        machine = measure_machine() if result["device"] == "cpu" else None
        launches = result.pop("profile")
        result |= _account(case, result, launches, machine, arrays)
    return result


def cold(case: Case, *, rounds: int = 10, drop_cache: bool = True) -> dict[str, Any]:
    """Times of the phases of new processes, from exec to the first result; medians of `rounds`.

    Args:
        drop_cache: as many more with the module out of the system's page cache, by turns.

    Raises:
        CompileError, RuntimeFailure: as for `steady`.
    """
    with _prepared(case) as (command, arrays):
        options = ["--cold", str(rounds), *(["--drop-cache"] if drop_cache else [])]
        found = _run([*command, *options])
    return {"module": os.fspath(case.module), "shapes": shapes_of(arrays), **found}


def shapes_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, list[int]]:
    """The extents of each input."""
    return {name: list(array.shape) for name, array in arrays.items()}


def measure_machine() -> dict[str, Any]:
    """The measured peaks of one core: `fma_gflops`, `half_gflops`, `byte_gops` and `byte_dot_gops`
    by vector size in bytes, as far as it has them, and `read_gbs` by size of the memory read.
    """
    return _run([str(find_runner()), "--machine"])


def round_median(command: Sequence[str], *, runs: int, seconds: float) -> float:
    """Median milliseconds of the runs of one process; `command` comes from `prepared_command`."""
    options = ["--runs", str(runs), "--min-ms", str(1e3 * seconds), "--warmup", "3"]
    return float(_run([*command, *options])["median_ms"])


def by_threads(
    case: Case, *, rounds: int = 3, runs: int = 10, seconds: float = 0.5
) -> dict[int, float]:
    """Median milliseconds with 1, 2, 4 and so on up to the case's number of threads, measured
    alternately.

    Raises:
        CompileError, RuntimeFailure: as for `steady`.
    """
    numbers = [n for n in (1 << k for k in range(8)) if n < case.threads]
    medians: dict[int, list[float]] = {n: [] for n in (*numbers, case.threads)}
    with _prepared(case) as (command, _):
        at = command.index("--threads") + 1
        for _ in range(rounds):
            for number, found in medians.items():
                turn = [*command[:at], str(number), *command[at + 1 :]]
                found.append(round_median(turn, runs=runs, seconds=seconds))
    return {number: statistics.median(found) for number, found in medians.items()}


@contextmanager
def prepared_command(case: Case) -> Iterator[tuple[list[str], dict[str, NDArray[Any]]]]:
    """(command line that runs a case, its input arrays); the inputs are in temporary files inside
    the context.

    Raises:
        CompileError, RuntimeFailure: as for `steady`.
    """
    with _prepared(case) as found:
        yield found


@contextmanager
def _prepared(case: Case) -> Iterator[tuple[list[str], dict[str, NDArray[Any]]]]:
    runner = find_runner()
    with Program(case.module, case.device, entry=case.entry, target=case.target) as program:
        shapes = with_followers(program.inputs, case.inputs, case.shapes, program.states)
        arrays = make_inputs(program.inputs, case.inputs, shapes, case.seed)
        others: dict[str, int] = {}
        stored = {
            info.name: arrays[info.name]
            if info.strings is None
            else to_numbers(info.name, number_of(info.strings), arrays[info.name], others)
            for info in program.inputs
        }
    command = [str(runner), os.fspath(case.module), "--json", "--device", case.device]
    command += ["--threads", str(case.threads)]
    for option, value in (("--entry", case.entry), ("--target", case.target)):
        command += [option, value] if value is not None else []
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        for number, (name, array) in enumerate(stored.items()):
            path = Path(folder) / f"{number}.npy"
            np.save(path, np.asarray(array, order="C"), allow_pickle=False)
            command += ["--input", f"{name}={path}"]
        yield command, arrays


def _run(command: Sequence[str]) -> dict[str, Any]:
    """Runs the tool; returns the JSON of the last line that it prints.

    Raises:
        RuntimeFailure: it failed.
    """
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RuntimeFailure(f"cannot run {command[0]}: {error.strerror}", "io") from error
    lines = result.stdout.splitlines()
    if result.returncode != 0 or not lines:
        said = result.stderr.strip().splitlines()
        reason = said[0].removeprefix(f"{RUNNER_NAME}: ") if said else "it said nothing"
        if not said and result.returncode < 0:
            reason = f"signal {-result.returncode} ended it"
        raise RuntimeFailure(f"{RUNNER_NAME}: {reason}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


# ---- what the times mean ----


def _account(
    case: Case,
    result: Mapping[str, Any],
    profile: Mapping[str, Any],
    machine: dict[str, Any] | None,
    arrays: Mapping[str, NDArray[Any]],
) -> dict[str, Any]:
    """The profile's launches with their nodes and amounts of work, and totals relative to the
    machine's peaks."""
    variant, entry, launches = _find_entry(case, result)
    values = _symbols(entry, arrays)
    known = _launches_by_word(entry, launches)
    peaks: dict[str, float] = {}
    if machine is not None:
        peaks = peaks_of(machine, variant)
        machine |= {"vector_bytes": vector_bytes(variant), "peak_gflops": peaks.get("f32")}
        machine |= {"peaks_gops": peaks, "memory_gbs": memory_gbs(machine)}
    threads = int(result["threads"])
    total_ms = sum(launch["median_ms"] for launch in profile["launches"]) or 1.0
    rows = []
    for launch in profile["launches"]:
        row = _amounts(launch, known.get(launch["word"]), values)
        seconds = launch["median_ms"] / 1e3
        row["share"] = launch["median_ms"] / total_ms
        least = _seconds_at_peak([row], peaks, launch["threads"])
        row |= _speeds(row["flops"], row["bytes"], seconds, least)
        rows.append(row)
    flops, size = (_total(row[key] for row in rows) for key in ("flops", "bytes"))
    return {
        "flops": flops,
        "bytes": size,
        **_speeds(flops, size, result["median_ms"] / 1e3, _seconds_at_peak(rows, peaks, threads)),
        "machine": machine,
        "profiled_runs": profile["runs"],
        "dispatches": rows,
    }


def _amounts(
    launch: Mapping[str, Any], known: Launch | None, values: Mapping[str, int]
) -> dict[str, Any]:
    """A row of the profile's table for one launch; amounts are per inference."""
    row: dict[str, Any] = {"node": known.origin if known is not None else ""}
    row |= {**launch, "executable": launch["name"]}
    del row["name"]
    flops = size = None
    if known is not None:
        flops, size = (_evaluate(n, values) for n in (known.flops, known.bytes))
    elif launch["kind"] != "dispatch":
        flops, size = 0, launch["bytes"] * (2 if launch["kind"] == "copy" else 1)
    count = launch["count"]
    row["dtype"] = "" if known is None else known.dtype
    row["flops"] = None if flops is None else round(count * flops)
    row["bytes"] = None if size is None else round(count * size)
    return row


def _seconds_at_peak(
    rows: Iterable[Mapping[str, Any]], peaks: Mapping[str, float], threads: int
) -> float | None:
    """Seconds that the rows' arithmetic takes at least: on `threads` cores, each type at its peak.
    Rows of a type without a known peak count as 0. None if no row has a peak, or if an amount of
    arithmetic is not known."""
    rows = list(rows)
    known = [row for row in rows if row["dtype"] in peaks]
    if not known or any(row["flops"] is None for row in rows):
        return None
    return sum(float(row["flops"]) / (1e9 * peaks[row["dtype"]] * threads) for row in known)


def _speeds(
    flops: int | None, size: int | None, seconds: float, least: float | None
) -> dict[str, float | None]:
    """The rates of work that took `seconds`: operations and bytes a second. `least` becomes a share
    of that time."""
    is_timed = seconds > 0
    return {
        "gflops": flops / seconds / 1e9 if flops is not None and is_timed else None,
        "gbs": size / seconds / 1e9 if size is not None and is_timed else None,
        "of_peak": least / seconds if least is not None and is_timed else None,
    }


def _total(amounts: Iterator[int | None]) -> int | None:
    found = list(amounts)
    return None if None in found else sum(n for n in found if n is not None)


def _find_entry(
    case: Case, result: Mapping[str, Any]
) -> tuple[VariantImage, EntryPointImage, tuple[Launch, ...]]:
    """(variant, entry point, launches from its notes) of the program that ran."""
    image = read_module_file(case.module).image
    for number, variant in enumerate(image.variants):
        if variant.target != result["target"]:
            continue
        for at, entry in enumerate(variant.entry_points):
            if entry.name != result["entry"]:
                continue
            try:
                notes = decode_notes(image.notes).variants[number] if image.notes else None
            except (ValueError, IndexError):
                notes = None  # of another version: times without names
            has_launches = notes is not None and at < len(notes.launches)
            return variant, entry, notes.launches[at] if notes and has_launches else ()
    raise CompileError(f"{os.fspath(case.module)} has changed while it was measured")


def _launches_by_word(entry: EntryPointImage, launches: Sequence[Launch]) -> dict[int, Launch]:
    words = [i.at for i in decode(entry.program.code) if i.name == "DISPATCH"]
    return dict(zip(words, launches, strict=True)) if len(words) == len(launches) else {}


def _symbols(entry: EntryPointImage, arrays: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """The values of the symbols in the dims of the inputs."""
    values: dict[str, int] = {}
    for tensor in entry.inputs:
        for info, extent in zip(tensor.dims, arrays[tensor.name].shape, strict=True):
            if info.extent is not None:
                continue
            try:
                found = linear(parse(info.text))
            except ValueError:
                continue
            if found is not None:
                symbol, factor, offset = found
                values.setdefault(symbol, (extent - offset) // factor)
    return values


def _evaluate(dim: Dim, values: Mapping[str, int]) -> int | None:
    """The value of a dim; None if it contains a symbol that no input has, such as a state's
    length."""
    known = dims.substitute(dim, dict(values))
    return known if isinstance(known, int) else None
