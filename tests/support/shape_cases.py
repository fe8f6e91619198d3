"""Ops behind producers and before consumers that fusion joins them with, at extents by chance.

Schedules branch on extents that samples never have: caches and scratch outgrown, rows that divide
nothing, two axes of rows kept apart by a broadcast. A case is an op's sample with other extents,
what computes its operands, and what is done with its result; some of its extents may be open. It
follows from its number:

    python tests/support/shape_cases.py FIRST COUNT TARGET...

compiles COUNT cases from FIRST on for the targets, runs them here, compares with the interpreter
of graphs, prints what is wrong with a case that is as small as may be, and exits with 1 then.
"wasm32" runs under Node, "tiny-x86-64-v3" is x86-64-v3 with tiny caches and scratch.
"""

from __future__ import annotations

import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import aot
import aot.ops
from aot.builder import Builder
from aot.errors import AotError, ProofWarning
from aot.ir.dims import Dim, evaluate, symbol
from aot.ir.graph import Module, Value
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, Sample
from aot.ir.text.parser import parse_module
from aot.ir.text.printer import print_module
from aot.ir.types import DType, TensorType
from aot.target.selection import load
from tests.support.cross import run_module
from tests.support.node import Call, make_package, run_calls
from tests.support.op_samples import draw
from tests.support.random_graphs import CALLS, difference
from tests.support.samples_module import CROSS
from tests.support.tiny_target import tiny
from tests.support.vulkan_graph import run_on_driver

Array = np.ndarray[Any, Any]

SMALL = (1, 2, 3, 4, 5, 6, 7, 8, 9)
AROUND = tuple(n + d for n in (12, 16, 32, 48, 64, 128, 256) for d in (-1, 0, 1))
LARGE = (100, 144, 197, 300, 384, 400, 513, 768, 1000, 1025)
HUGE = (4095, 4097, 16_385, 65_537)
MOST = 1 << 18  # elements of a value
BOUND = 1 << 21  # elements of a value times the sum that each is of
FLOATS = (DType.F32, DType.F16)
# no model has open numbers of heads, and no pass makes Winograd's ops of open extents
NOT_OPEN = ("attention", "winograd_inputs", "winograd_outputs")
WASM = "wasm32"
_UNARY = ("neg", "tanh", "relu", "sigmoid")


@dataclass(frozen=True)
class Case:
    """Attributes:
    op, sample: a record's name, and the number of its sample.
    extents: what the sample's extents become, by what they are there.
    producers: of each operand what computes it, by name, and a number that says how.
    consumers: what is done with the first result, one after the other.
    is_open: those of the sample's extents that are open.
    """

    op: str
    sample: int
    extents: tuple[tuple[int, int], ...]
    producers: tuple[tuple[str, int], ...]
    consumers: tuple[tuple[str, int], ...]
    is_open: frozenset[int]


def case_of(number: int) -> Case:
    """The case of a number."""
    rng = random.Random(number)
    op = rng.choice(list(CALLS))
    which = rng.choice(CALLS[op])
    sample = REGISTRY[op].samples[which]
    types = [t for t in sample.operands if t is not None]
    old = sorted({n for t in types for n in t.dims if isinstance(n, int) and n > 1})
    has_indices = any(t.dtype.is_integer for t in types)
    extents = []
    for n in old:
        groups = (SMALL, AROUND, LARGE, HUGE, (0,))
        (group,) = rng.choices(groups, weights=(4, 5, 3, 0.5, 0.3))
        fresh = rng.choice(group) if rng.random() < 0.8 else n
        extents.append((n, max(fresh, n) if has_indices else fresh))
    producers = tuple(
        (rng.choice(list(PRODUCERS)) if rng.random() < 0.6 else "", rng.randrange(1 << 16))
        for _ in sample.operands
    )
    consumers = tuple(
        (rng.choice(list(CONSUMERS)), rng.randrange(1 << 16)) for _ in range(rng.choice((0, 1, 2)))
    )
    is_open = frozenset(n for n in old if rng.random() < 0.4) if rng.random() < 0.4 else frozenset()
    is_open = frozenset() if op in NOT_OPEN else is_open
    return Case(op, which, tuple(extents), producers, consumers, is_open)


# making a module


@dataclass
class _Made:
    """A module while it is made, and the ranges of its inputs."""

    case: Case
    sample: Sample
    builder: Builder
    ranges: list[tuple[float, float]]
    shapes: list[tuple[int, ...]]

    def input(self, dtype: DType, dims: Sequence[Dim], low: float = -2, high: float = 2) -> Value:
        number = len(self.ranges)
        _check_size([self.extent(d) for d in dims])
        self.ranges.append((low, high))
        self.shapes.append(tuple(self.extent(d) for d in dims))
        return self.builder.input(f"x{number}", TensorType(dtype, tuple(dims)))

    def extent(self, dim: Dim) -> int:
        return evaluate(dim, {f"N{old}": new for old, new in self.case.extents})

    def dim(self, old: Dim) -> Dim:
        if not isinstance(old, int) or old not in dict(self.case.extents):
            return old
        return symbol(f"N{old}") if old in self.case.is_open else dict(self.case.extents)[old]

    def op(self, name: str, *operands: Any, **attrs: Any) -> Value:
        made = self.builder.op(name, *operands, **attrs)
        value = made[0] if isinstance(made, (list, tuple)) else made
        assert isinstance(value, Value)
        return value


def module_of(case: Case) -> tuple[Module, list[Array]] | None:
    """The module of a case and its inputs; None where the op has no such operands."""
    record = REGISTRY[case.op]
    sample = record.samples[case.sample]
    made = _Made(case, sample, Builder(), [], [])
    try:
        operands = [
            None
            if t is None
            else _operand(made, n, TensorType(t.dtype, tuple(map(made.dim, t.dims))))
            for n, t in enumerate(sample.operands)
        ]
        results = made.builder.op(case.op, *operands, **dict(sample.attrs))
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        value, kept = results[0], results
        if value.type.dtype in FLOATS:
            for name, how in case.consumers:
                value = CONSUMERS[name](made, value, how)
            kept = [value, *results[1:]]
        for number, result in enumerate(dict.fromkeys(kept)):
            made.builder.output(f"y{number}", result)
        module = made.builder.module()
    except (AotError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return None
    sizes = [v.type for op in module.main.block for v in op.results]
    if any(prod(made.extent(d) for d in t.dims) > MOST for t in sizes):
        return None
    if prod(n for _, n in case.extents) > BOUND:
        return None
    if any(n < 0 for shape in made.shapes for n in shape):
        return None  # an open window is larger than what it slides over
    rng = np.random.default_rng(7)
    arrays = [
        draw(TensorType(v.type.dtype, shape), *ends, rng)
        for v, shape, ends in zip(module.main.inputs, made.shapes, made.ranges, strict=True)
    ]
    return module, arrays


def _check_size(dims: Sequence[int]) -> None:
    if prod(dims) > MOST:
        raise ValueError(f"{dims} are too many elements")


def _operand(made: _Made, number: int, type: TensorType) -> Value:
    sample = made.sample
    name, how = made.case.producers[number]
    if number in sample.constant_operands:
        if not type.is_static:
            raise ValueError("a constant with an open extent")
        _check_size([made.extent(d) for d in type.dims])
        rng = np.random.default_rng(number)
        return made.builder.constant(draw(type, sample.low, sample.high, rng))
    is_plain = type.dtype in FLOATS and (sample.low, sample.high) == (-2.0, 2.0)
    if name and is_plain and type.dims:
        return PRODUCERS[name](made, type, how)
    return made.input(type.dtype, type.dims, sample.low, sample.high)


def _narrowed(dims: Sequence[Dim], how: int) -> tuple[Dim, ...]:
    """The dims with some of them 1, as the bits of `how` say, or left out in front."""
    narrow: tuple[Dim, ...] = tuple(1 if how >> n & 1 else d for n, d in enumerate(dims))
    while how >> 15 and narrow and narrow[0] == 1:
        narrow = narrow[1:]
    return narrow


def _with_broadcast(made: _Made, value: Value, how: int) -> Value:
    other = made.input(value.type.dtype, _narrowed(value.type.dims, how))
    return made.op("mul" if how >> 12 & 1 else "add", value, other)


def _unary(made: _Made, value: Value, how: int) -> Value:
    return made.op(_UNARY[how % len(_UNARY)], value)


def _permutation(rank: int, how: int) -> tuple[int, ...]:
    order = list(range(rank))
    random.Random(how).shuffle(order)
    return tuple(order)


def _transposed(made: _Made, value: Value, how: int) -> Value:
    return made.op("transpose", value, perm=_permutation(value.type.rank, how))


def _softmax(made: _Made, value: Value, how: int) -> Value:
    return made.op("softmax", value, axis=how % value.type.rank)


def _normalised(made: _Made, value: Value, how: int) -> Value:
    axis = value.type.rank - 1 - how % min(2, value.type.rank)
    scale = made.input(value.type.dtype, value.type.dims[axis:]) if how >> 3 & 1 else None
    return made.op("layer_norm", value, scale, None, axis=axis)


def _reduced(made: _Made, value: Value, how: int) -> Value:
    axes = tuple(n for n in range(value.type.rank) if how >> n & 1)
    if not axes:
        return value
    name = ("reduce_sum", "reduce_max", "reduce_mean")[how % 3]
    return made.op(name, value, axes=axes, keepdims=bool(how >> 9 & 1))


def _less_its_mean(made: _Made, value: Value, how: int) -> Value:
    axes = tuple(n for n in range(value.type.rank) if how >> n & 1) or (value.type.rank - 1,)
    return made.op("sub", value, made.op("reduce_mean", value, axes=axes, keepdims=True))


def _made(
    change: Callable[[_Made, Value, int], Value],
) -> Callable[[_Made, TensorType, int], Value]:
    def produce(made: _Made, type: TensorType, how: int) -> Value:
        return change(made, made.input(type.dtype, type.dims), how)

    return produce


def _from_transposed(made: _Made, type: TensorType, how: int) -> Value:
    order = _permutation(type.rank, how)
    dims: list[Dim] = [1] * type.rank
    for n, axis in enumerate(order):
        dims[axis] = type.dims[n]
    return made.op("transpose", made.input(type.dtype, dims), perm=order)


def _from_parts(made: _Made, type: TensorType, how: int) -> Value:
    axis = how % type.rank
    extent = type.dims[axis]
    if not isinstance(extent, int) or extent < 2:
        return made.input(type.dtype, type.dims)
    first = 1 + how % (extent - 1)
    parts = [
        made.input(type.dtype, (*type.dims[:axis], n, *type.dims[axis + 1 :]))
        for n in (first, extent - first)
    ]
    return made.op("concat", *parts, axis=axis)


def _from_slice(made: _Made, type: TensorType, how: int) -> Value:
    dims = tuple(d + 1 + (how >> n & 1) for n, d in enumerate(type.dims))
    stops = tuple(d + 1 for d in type.dims)
    ones = (1,) * type.rank
    return made.op("slice", made.input(type.dtype, dims), starts=ones, stops=stops, steps=ones)


PRODUCERS: dict[str, Callable[[_Made, TensorType, int], Value]] = {
    "with a broadcast": _made(_with_broadcast),
    "unary": _made(_unary),
    "transposed": _from_transposed,
    "of parts": _from_parts,
    "of a slice": _from_slice,
    "softmax": _made(_softmax),
    "less its mean": _made(_less_its_mean),
}
CONSUMERS: dict[str, Callable[[_Made, Value, int], Value]] = {
    "with a broadcast": _with_broadcast,
    "unary": _unary,
    "transposed": _transposed,
    "softmax": _softmax,
    "normalised": _normalised,
    "reduced": _reduced,
    "less its mean": _less_its_mean,
}


# judging


def problem_of(case: Case, target: str) -> str | None:
    """What is wrong with what a target computes; "" where nothing is, None where there is no such
    case."""
    made = module_of(case)
    if made is None:
        return None
    module, arrays = made
    function = module.main
    inputs = dict(zip((v.name for v in function.inputs), arrays, strict=True))
    text = print_module(module)
    try:
        with np.errstate(all="ignore"):
            wanted = run(function, inputs)
    except (AotError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return None  # the op has no such elements
    try:
        found = _found(target, parse_module(text), inputs)
    except aot.UnsupportedError:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:400]}"
    with np.errstate(all="ignore"):
        return difference(function, inputs, wanted, found)


def _found(target: str, module: Module, inputs: dict[str, Array]) -> list[Array]:
    """The results here, of a GPU's target on a software driver, of WebAssembly under Node, or of
    another CPU's under QEMU."""
    if load(machine_of(target)).gpu is not None:
        return run_on_driver("lavapipe", module.main, inputs)
    compiled = aot.compile(module, targets=[machine_of(target)], cache=False, jobs=1)
    if target in CROSS or target == WASM:
        with tempfile.TemporaryDirectory() as folder:
            run_there = _under_node if target == WASM else _emulated
            outputs = run_there(target, Path(folder), compiled.to_bytes(), inputs)
        dtypes = [value.type.dtype.numpy for value in module.main.results]
        pairs = zip(module.main.result_names, dtypes, strict=True)
        return [outputs[name].view(dtype) for name, dtype in pairs]
    with aot.load(compiled) as program:
        return list(program(inputs).values())


def _emulated(target: str, folder: Path, file: bytes, inputs: dict[str, Array]) -> dict[str, Array]:
    return run_module(CROSS[target], folder, file, inputs)[0]


def _under_node(
    target: str, folder: Path, file: bytes, inputs: dict[str, Array]
) -> dict[str, Array]:
    module = folder / "module.aotm"
    module.write_bytes(file)
    (outcome,) = run_calls(make_package(module, folder / "package"), [Call(inputs)])
    if outcome.message:
        raise AotError(f"{target}: {outcome.message}")
    return outcome.outputs


def machine_of(target: str) -> str:
    """The target's name, or the path of a file of one with tiny caches and scratch."""
    return tiny(target.removeprefix("tiny-")) if target.startswith("tiny-") else target


def smaller(case: Case) -> Iterator[Case]:
    """Cases with less of one thing."""
    for n in range(len(case.consumers)):
        yield replace(case, consumers=case.consumers[:n] + case.consumers[n + 1 :])
    for n, (name, _) in enumerate(case.producers):
        if name:
            rest = (*case.producers[:n], ("", 0), *case.producers[n + 1 :])
            yield replace(case, producers=rest)
    for old in sorted(case.is_open):
        yield replace(case, is_open=case.is_open - {old})
    for n, (old, new) in enumerate(case.extents):
        for less in dict.fromkeys((old, 1, new // 2, new - 1)):
            if 0 < less < new:
                yield replace(
                    case, extents=(*case.extents[:n], (old, less), *case.extents[n + 1 :])
                )


def reduced(case: Case, target: str, tries: int = 60) -> Case:
    """A case that is wrong, as small as a few tries make it."""
    while tries > 0:
        for less in smaller(case):
            tries -= 1
            if problem_of(less, target):
                case = less
                break
            if tries <= 0:
                break
        else:
            break
    return case


def report(number: int, target: str) -> str | None:
    """What is wrong with a case and with a smaller one, as text; "" where nothing is, None where
    there is no such case."""
    case = case_of(number)
    problem = problem_of(case, target)
    if not problem:
        return problem
    case = reduced(case, target)
    made = module_of(case)
    assert made is not None
    command = f"python tests/support/shape_cases.py {number} 1 {target}"
    return f"{command}\n{problem_of(case, target)}\n{case}\n{print_module(made[0])}"


def main() -> int:
    """Runs the cases that the command line asks for."""
    warnings.simplefilter("error", ProofWarning)
    first, count = int(sys.argv[1]), int(sys.argv[2])
    found = Counter[str]()
    for number in range(first, first + count):
        for target in sys.argv[3:]:
            text = report(number, target)
            found["none" if text is None else "wrong" if text else "right"] += 1
            if text:
                print(text, flush=True)
    print(f"{found['right']} right, {found['wrong']} wrong, {found['none']} that there are not")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
