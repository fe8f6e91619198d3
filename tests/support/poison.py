"""Runs on a runtime that poisons memory, under two patterns: the same bits, no zone touched.

    python tests/support/poison.py KIND TARGET SEED [SECONDS]
    python tests/support/poison.py samples TARGET FIRST [COUNT]

A process has one runtime, so that a test starts this as one of its own. `KIND` is one of KINDS;
whatever differs or is refused is printed, a line of JSON each, and last how many runs there were.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from tests.support.paths import RUNTIME
from tests.support.runtime_build import build, library_sources

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]

PATTERNS = (0xFF, 0x3F)  # NaN and -1; floats near 0.75, and integers beyond any extent
BYTE_VARIABLE = "AOT_POISON_BYTE"
FLAGS = ["-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-DAOT_POISON"]
_NO_LIMIT = "nothing says how large it can be"


def poison_library() -> Path | None:
    """The runtime's library, built to poison memory; None where the compiler is missing."""
    sources = [*library_sources(), RUNTIME / "tests" / "poison.c"]
    return build("libaot_runtime_poison.so", sources, FLAGS)


# ---- plans: what compilers know of a program and modules don't say ----


class _Buffer(ctypes.Structure):
    _fields_ = (
        *(("offset", ctypes.c_uint64), ("bytes", ctypes.c_uint64)),
        *(("first", ctypes.c_uint32), ("last", ctypes.c_uint32)),
    )


class _Site(ctypes.Structure):
    _fields_ = (("word", ctypes.c_uint32), ("position", ctypes.c_uint32))


class _Plan(ctypes.Structure):
    _fields_ = (
        *(("sites", ctypes.c_void_p), ("buffers", ctypes.c_void_p)),
        *(("site_count", ctypes.c_uint32), ("buffer_count", ctypes.c_uint32)),
    )


@dataclass
class Plan:
    """Attributes:
    sites: words of DISPATCH instructions, and their positions.
    buffers: offset, bytes, first and last position; of fixed offsets.
    """

    sites: Sequence[tuple[int, int]]
    buffers: Sequence[tuple[int, int, int, int]] = ()
    _kept: list[Any] = field(default_factory=list)

    def give(self, program: Any) -> None:
        """Has the runs of a program poison what is dead; the plan must live as long."""
        sites = (_Site * len(self.sites))(*(_Site(*s) for s in self.sites))
        buffers = (_Buffer * len(self.buffers))(*(_Buffer(*b) for b in self.buffers))
        counts = len(self.sites), len(self.buffers)
        plan = _Plan(ctypes.addressof(sites), ctypes.addressof(buffers), *counts)
        self._kept += [sites, buffers]
        function = program._library.aot_poison_set_plan
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p), None
        function(program._program, ctypes.addressof(plan))


def plan_of(emitted: Any) -> Plan | None:
    """Of an emitted program; None where its dispatches are not those of its text, one by one."""
    from aot.link import module_fbs as fbs

    image = emitted.entry_point.program
    words, at = [], 0
    while at < len(image.code):
        if image.code[at] & 0xFF == fbs.Opcode.DISPATCH:
            words.append(at)
        at += image.code[at] >> 8
    if len(words) != len(emitted.positions) or (not image.buffers and emitted.buffers is None):
        return None
    fixed = () if image.buffers else emitted.buffers
    return Plan(
        list(zip(words, emitted.positions, strict=True)),
        [(b.offset, b.size_bytes, b.first, b.last) for b in fixed],
    )


class _Observer:
    """Keeps the programs of one compile for one target."""

    def __init__(self) -> None:
        self.programs: list[Any] = []

    def variant(self) -> _Observer:
        return self

    def formed(self, module: Any, context: Any) -> None:
        pass

    def built(self, module: Any, context: Any, kernels: Any, programs: Any, launches: Any) -> None:
        self.programs = list(programs)

    def timed(self, target: str, spans: Any) -> None:
        pass


def compiled(source: Any, target: str, **options: Any) -> tuple[bytes, dict[str, Plan | None]]:
    """A module's file, and the plans of its entry points."""
    from aot.api import CompiledModule
    from aot.driver.pipeline import compile_module
    from aot.options import CompileOptions

    observer = _Observer()
    made = compile_module(source, CompileOptions(targets=(target,), **options), _quiet, observer)
    plans = {p.entry_point.name: plan_of(p) for p in observer.programs}
    return CompiledModule(made.image, made.stats).to_bytes(), plans


def _quiet(stage: str, done: int, total: int) -> None:
    pass


# ---- runs ----


def outputs_under(
    pattern: int,
    data: bytes,
    entry: str | None,
    plan: Plan | None,
    runs: Sequence[Feeds],
    **how: Any,
) -> list[dict[str, Array]]:
    """The outputs of runs of a new program, one after the other."""
    import aot

    os.environ[BYTE_VARIABLE] = str(pattern)
    with aot.load(data, entry=entry, **how) as program:
        if plan is not None:
            plan.give(program)
        return [{k: np.array(v) for k, v in program(feeds).items()} for feeds in runs]


def fault(
    data: bytes, entry: str | None, plan: Plan | None, runs: Sequence[Feeds], **how: Any
) -> str:
    """What differs between the patterns, or what the runtime refused; "" where nothing is wrong."""
    from aot.errors import RuntimeFailure

    try:
        first, second = (outputs_under(p, data, entry, plan, runs, **how) for p in PATTERNS)
    except RuntimeFailure as failure:
        return str(failure)
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        for name in a:
            if a[name].tobytes() != b[name].tobytes():
                return f"output {name!r} of run {number} differs between patterns"
    return ""


# ---- kinds ----

Case = tuple[str, Any, dict[str, Any], Sequence[Feeds], dict[str, Any]]
"""Its name, a model, options to compile it, what is run, options to load it."""


def _graphs(seed: int) -> Iterator[Case]:
    """Random graphs: of ops' samples, quantised, with control flow and states, of open dims, and
    of dims that data decide."""
    from tests.support import control_functions, data_dim_graphs
    from tests.support.quantised_graphs import QuantisedGraph

    rng = random.Random(seed)
    for number in range(1 << 30):
        one = rng.randrange(1 << 30)
        kind = number % 4
        if kind == 0:
            graph = drawn_graph(one)
            yield f"graph {one}", graph.module, {}, [graph.inputs(one)], {}
        elif kind == 1:
            quantised = QuantisedGraph(one)
            function = quantised.module.main
            yield f"quantised {one}", quantised.module, {}, [_random_inputs(function, one)], {}
        elif kind == 2:
            extent: int | str = rng.choice((16, "N"))
            module = control_functions.made(one, extent, "concat")
            names = [v.name for v in module.main.inputs]
            sizes = (16,) if extent == 16 else (16, 5, 1)
            feeds = [
                dict(zip(names, control_functions.inputs(one + n, s), strict=True))
                for n, s in enumerate(sizes)
            ]
            yield f"control {one} {extent}", module, {}, feeds, {}
        else:
            data = data_dim_graphs.DataGraph(one, 3)
            model = data.model()
            given = [data_dim_graphs.given(model, n) for n in range(3)]
            yield f"data dims {one}", model, {"max_extents": data.bounds}, given, {}


def _random_inputs(function: Any, seed: int) -> Feeds:
    from tests.support.graphs import random_inputs

    return random_inputs(function, seed)


def drawn_graph(seed: int) -> Any:
    """A graph of ops' samples."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    from tests.support.random_graphs import graphs

    found: list[Any] = []
    options = settings(
        max_examples=2,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

    @seeded(seed)
    @options
    @given(graphs(max_ops=10))
    def draw(graph: Any) -> None:
        found.append(graph)

    draw()
    return found[-1]  # the first is the smallest there is


def _models(seed: int) -> Iterator[Case]:
    from aot.ir.text.parser import parse_module
    from tests.support import control_models, generated_models, gguf_files, gguf_models

    for name, generated in generated_models.GENERATED.items():
        yield name, generated.model(), {}, generated.runs, {}
        yield f"{name}, threads", generated.model(), {}, generated.runs, {"threads": 3}
    for name, case in control_models.CONTROLLED.items():
        yield name, case.model(), {"input_shapes": case.input_shapes}, case.runs, {}
    for name, text, runs in _states():
        yield name, parse_module(text.replace("concat_alias", "concat")), {}, runs, {}
    for name in ("llama_odd", "llama_factors", "qwen2", "qwen3", "gemma3", "phi3_long", "cohere2"):
        shape = gguf_models.MODELS[name]
        tokens = [{"tokens": t} for t in _tokens(shape.vocabulary, seed)]
        yield name, gguf_files.data(replace(shape, layers=2)), {"context": 16}, tokens, {}


def _states() -> Iterator[tuple[str, str, Sequence[Feeds]]]:
    """Variables that grow: rows behind those in use are never read."""
    from tests.support.control_sources import CACHE, HEADS

    w = np.array([2, 3], np.float32)
    counts = (1, 2, 0, 2, 1)
    new = [np.arange(2 * n, dtype=np.float32).reshape(1, n, 2) for n in counts]
    yield "growing", CACHE, [{"new": x, "w": w} for x in new]
    heads = [np.full((2, 1, 3), n / 4, np.float32) for n in range(5)]
    yield "growing heads", HEADS, [{"new": x} for x in heads]


def _tokens(vocabulary: int, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocabulary, count).astype(np.int32) for count in (3, 1, 1, 4)]


KINDS: dict[str, Callable[[int], Iterator[Case]]] = {"graphs": _graphs, "models": _models}


def run_samples(target: str, first: int, count: int) -> Iterator[dict[str, Any]]:
    """Samples of ops, each an entry point of one module."""
    from aot.ir.clone import clone_function
    from aot.ir.graph import Module
    from tests.support.samples_module import entries, inputs_of, samples_module

    chosen = dict(list(entries(1).items())[first : first + count])
    functions = samples_module(1).functions
    data, plans = compiled(Module([clone_function(functions[n]) for n in chosen]), target)
    for entry, cases in chosen.items():
        found = fault(data, entry, plans[entry], [inputs_of(cases)] * 2)
        yield {"case": entry, "planned": plans[entry] is not None, "fault": found}


def run_cases(kind: str, seed: int, seconds: float, target: str) -> Iterator[dict[str, Any]]:
    import aot

    end = time.process_time() + seconds if seconds else float("inf")
    for name, model, options, runs, how in KINDS[kind](seed):
        if time.process_time() > end:
            return
        try:
            data, plans = compiled(model, target, **options)
        except (aot.UnsupportedError, aot.CompileError) as error:
            # told in one line: an op that is not there, or an extent of an output without a limit
            is_told = isinstance(error, aot.UnsupportedError) or _NO_LIMIT in str(error)
            if kind == "graphs" and is_told:
                continue
            raise
        (plan,) = plans.values()
        yield {
            "case": name,
            "planned": plan is not None,
            "fault": fault(data, None, plan, runs, **how),
        }


def main(kind: str, target: str, seed: int, seconds: float) -> None:
    warnings.simplefilter("ignore")
    if kind == "samples":
        from tests.support.samples_module import CASES

        cases = run_samples(target, seed, int(seconds) or len(CASES))
    else:
        cases = run_cases(kind, seed, seconds, target)
    runs = planned = 0
    for case in cases:
        runs, planned = runs + 1, planned + case["planned"]
        if case["fault"]:
            print(json.dumps({"kind": kind, "seed": seed, **case}), flush=True)
    print(json.dumps({"runs": runs, "planned": planned}), flush=True)


if __name__ == "__main__":
    chosen, wanted, number, *rest = sys.argv[1:]
    library = poison_library()
    assert library is not None
    os.environ["AOT_RUNTIME_LIBRARY"] = str(library)
    main(chosen, wanted, int(number), float(rest[0]) if rest else 0)
