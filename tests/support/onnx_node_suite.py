"""ONNX's own node tests as ours: which cases, how they are fed, and what became of each.

Owns the selection and the engines; no engine knows a case by its name. Engines are our graph
interpreter ("interpreter"), compile + C runtime ("cpu") and SPIR-V on a software driver ("vulkan").
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

import aot
from aot.errors import AotError, InternalError, UnsupportedError
from aot.frontends.onnx import import_onnx
from aot.ir.builtin import EXTENT
from aot.ir.clone import clone_function
from aot.ir.data_dims import Largest, extents_of
from aot.ir.dims import symbol
from aot.ir.graph import Function, Module
from aot.ir.interpreter.interpreter import run
from aot.tools.string_numbers import StringNumbers
from tests.support.onnx_sequence_values import as_tensors, has_lists

Array = np.ndarray[Any, Any]
Outcome = str  # "" for a pass, else why not

ENGINES = ("interpreter", "cpu", "vulkan")
BATCH = 64  # cases a module: executables that are equal are compiled once

_RANDOM = (
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
# Element types of the cases that the project promises; the others are run and pinned as well.
CORE_TYPES = frozenset({TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64})


def _values(model: Any) -> list[Any]:
    return [*model.graph.input, *model.graph.output]


def _drops_at_random(model: Any) -> bool:
    """Dropout in training mode with a ratio above 0; the names tell."""
    name = model.graph.name
    return name.startswith("test_training_dropout") and "zero_ratio" not in name


# (what a case is excluded for, whether the case is such a one), tried in order
EXCLUSIONS: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    (
        "optimisers of training (ai.onnx.preview.training)",
        lambda model: model.graph.node[0].domain == "ai.onnx.preview.training",
    ),
    (
        "ImageDecoder: compressed images are decoded before a program, by a library for them",
        lambda model: model.graph.node[0].op_type == "ImageDecoder",
    ),
    (
        "a result that is random, and pinned to numpy's generator",
        lambda model: (
            any(node.op_type in _RANDOM for node in model.graph.node) or _drops_at_random(model)
        ),
    ),
)
_UNKNOWN = re.compile(r"operand (\d+) [^;]*known at compile time")


@dataclass
class Case:
    """One case.

    Attributes:
        baked: inputs that are constants, because the importer must know them.
        feeds, expected: by name, of each data set.
    """

    name: str
    model: Any
    is_core: bool
    feeds: list[dict[str, Array]]
    expected: list[list[Array]]
    rtol: float
    atol: float
    baked: tuple[str, ...] = ()

    @property
    def op(self) -> str:
        nodes = self.model.graph.node
        return str(nodes[0].op_type) if len(nodes) == 1 else "definitions"


@cache
def cases() -> tuple[dict[str, Case], dict[str, int]]:
    """The selected cases by name, and how many were excluded for what."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        found = load_model_tests(kind="node")
    chosen: dict[str, Case] = {}
    excluded: dict[str, int] = {reason: 0 for reason, _ in EXCLUSIONS}
    for test in found:
        reason = next((text for text, holds in EXCLUSIONS if holds(test.model)), None)
        if reason is not None:
            excluded[reason] += 1
            continue
        model, data_sets = test.model, test.data_sets
        if has_lists(model):
            (data,) = data_sets
            model, data = as_tensors(model, data)
            data_sets = [data]
        names = [i.name for i in model.graph.input]
        types = {i.type.tensor_type.elem_type for i in _values(model)}
        chosen[test.name] = Case(
            test.name,
            model,
            types <= CORE_TYPES,
            [_feeds(names, inputs) for inputs, _ in data_sets],
            [[_array(a) for a in outputs] for _, outputs in data_sets],
            test.rtol,
            test.atol,
        )
    return chosen, excluded


def _feeds(names: Sequence[str], inputs: Sequence[Any]) -> dict[str, Array]:
    return {name: held(_array(found)) for name, found in zip(names, inputs, strict=True)}


def _array(found: Any) -> Array:
    """Contents of a data set; some cases keep them as protobuf."""
    is_proto = isinstance(found, TensorProto)
    return np.asarray(numpy_helper.to_array(found) if is_proto else found)


def held(array: Array) -> Array:
    """Contents as a program has them: bytes, where an element type is only stored."""
    name = array.dtype.name
    if name.startswith(("int4", "int2")):
        return array.astype(np.int8)
    if name.startswith(("uint4", "uint2")):
        return array.astype(np.uint8)
    return array.view(np.uint8) if name.startswith(("float8", "float4")) else array


def imported(case: Case) -> Function:
    """The case's function. Inputs that the importer says it must know become constants, and so do
    those whose elements are extents: some are negative, and most are bounded by nothing."""
    while True:
        try:
            function = import_onnx(case.model).main
            wanted = _inputs_as_extents(function)
            if not wanted or len(case.feeds) != 1:
                return function
        except UnsupportedError as error:
            asked = _operands_to_know(case, error) or _small_inputs(case)
            wanted = [name for name in asked if name not in case.baked]
            if not wanted or len(case.feeds) != 1:
                raise
        _bake(case, wanted)


_SMALL = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)


def _small_inputs(case: Case) -> list[str]:
    """Inputs that may be shapes, or numbers of iterations and conditions."""
    return [
        i.name
        for i in case.model.graph.input
        if i.type.tensor_type.elem_type in _SMALL and len(i.type.tensor_type.shape.dim) <= 1
    ]


def _inputs_as_extents(function: Function) -> list[str]:
    """Inputs whose elements are extents, as they are or moved only."""
    found: dict[str, None] = {}
    largest = Largest.of(function)
    if any(largest.largest(symbol(name)) is None for name in largest.names):
        return [v.name for v in function.inputs if v.type.rank <= 1]
    for op in extents_of(function).values():
        value = op.operands[0]
        while value is not None and value.op is not None and value.op.name in _MOVES:
            value = value.op.operands[0]
        if value is not None and value in function.inputs:
            found[value.name] = None
    return list(found)


_MOVES = frozenset(
    {
        "reshape",
        "slice",
        "cast",
        "less",
        "add",
        "where",
        "maximum",
        "minimum",
        "sub",
        "equal",
        "neg",
    }
)


def _operands_to_know(case: Case, error: UnsupportedError) -> list[str]:
    """Inputs that the importer asks for by number; all small integer ones where it is a node of
    the op's definition that asks."""
    nodes = case.model.graph.node
    inputs = nodes[0].input
    wanted: list[str] = []
    for item in error.items:
        numbers = [int(n) for n in _UNKNOWN.findall(item)]
        if numbers and ("definition" in item or len(nodes) > 1):
            wanted += _small_inputs(case)
        else:
            wanted += [inputs[n] for n in numbers if n < len(inputs)]
    return list(dict.fromkeys(wanted))


def _bake(case: Case, names: Sequence[str]) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for name in names:
        array = case.feeds[0].pop(name)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    kept = [i for i in model.graph.input if i.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    case.model, case.baked = model, (*case.baked, *names)


def difference(case: Case, number: int, results: Sequence[Array]) -> Outcome:
    """How the results of a data set differ from what ONNX expects."""
    expected = case.expected[number]
    if len(results) != len(expected):
        return f"{len(results)} results, expected {len(expected)}"
    for ours, theirs in zip(results, expected, strict=True):
        if ours.dtype != held(theirs).dtype:
            return f"wrong dtype: {ours.dtype}, expected {held(theirs).dtype}"
        if ours.shape != theirs.shape:
            return f"wrong shape: {list(ours.shape)}, expected {list(theirs.shape)}"
        if theirs.dtype.name.startswith(("float", "bfloat")):
            ours = ours.view(theirs.dtype)
            a, b = (x.astype(np.float64) for x in (ours, theirs))
            same = np.isclose(a, b, rtol=case.rtol, atol=case.atol, equal_nan=True)
        else:
            same = ours == held(theirs)
        if not np.all(same):
            return f"wrong values: {np.size(same) - np.count_nonzero(same)} of {np.size(same)}"
    return ""


def _reason(error: Exception) -> Outcome:
    """What a case failed for, without what names the case."""
    if isinstance(error, UnsupportedError):
        return "; ".join(re.sub(r"^\S+ \(node '[^']*'\): ", "", item) for item in error.items)
    text = str(error).splitlines()[0] if str(error) else ""
    text = re.sub(r"^model: ", "", text)
    text = re.sub(r" ?\(node '[^']*'\)", "", text)
    kind = (
        ""
        if isinstance(error, AotError) and not isinstance(error, InternalError)
        else (f"{type(error).__name__}: ")
    )
    return f"{kind}{text}"


# engines: cases in, one outcome a case out


def on_interpreter(chosen: Iterable[Case]) -> dict[str, Outcome]:
    outcomes = {}
    for case in chosen:
        try:
            function = imported(case)
            outcomes[case.name] = _first(
                difference(case, number, _interpreted(function, feeds))
                for number, feeds in enumerate(case.feeds)
            )
        except Exception as error:  # a crash is an outcome, and named
            outcomes[case.name] = _reason(error)
    return outcomes


def _interpreted(function: Function, feeds: dict[str, Array]) -> list[Array]:
    strings = StringNumbers(function)
    return list(strings.given(run(function, strings.taken(feeds))).values())


def _first(outcomes: Iterable[Outcome]) -> Outcome:
    return next((o for o in outcomes if o), "")


def on_cpu(chosen: Iterable[Case], target: str = "host", device: str = "cpu") -> dict[str, Outcome]:
    """Many cases are entry points of one module; one that does not compile is found by halving."""
    outcomes: dict[str, Outcome] = {}
    functions: dict[str, Function] = {}
    by_name = {case.name: case for case in chosen}
    for case in by_name.values():
        try:
            functions[case.name] = imported(case)
        except Exception as error:
            outcomes[case.name] = _reason(error)
    names = list(functions)
    batches = [names[start : start + BATCH] for start in range(0, len(names), BATCH)]
    while batches:
        batch = batches.pop()
        try:
            data = aot.compile(_module(functions, batch), targets=[target]).to_bytes()
        except Exception as error:
            if len(batch) == 1:
                outcomes[batch[0]] = _reason(error)
            else:
                middle = len(batch) // 2
                batches += [batch[:middle], batch[middle:]]
            continue
        for name in batch:
            outcomes[name] = _run_entry(by_name[name], data, device)
    return {name: outcomes[name] for name in by_name}


def _module(functions: Mapping[str, Function], names: Sequence[str]) -> Module:
    module = Module()
    for name in names:
        copy = clone_function(functions[name])
        copy.name = name
        module.add(copy)
    return module


def _run_entry(case: Case, data: bytes, device: str) -> Outcome:
    try:
        with aot.load(data, entry=case.name, device=device) as program:
            return _first(
                difference(case, number, list(program(feeds).values()))
                for number, feeds in enumerate(case.feeds)
            )
    except Exception as error:
        return _reason(error)


def on_vulkan(chosen: Iterable[Case], driver: str = "lavapipe") -> dict[str, Outcome]:
    """Control flow and extents that data decide are the runtime's; all else runs without it."""
    from tests.support.vulkan_graph import run_on_driver
    from tests.support.vulkan_runtime import running_on

    def _on_driver(driver: str, function: Function, feeds: dict[str, Array]) -> list[Array]:
        strings = StringNumbers(function)
        return list(strings.given(run_on_driver(driver, function, strings.taken(feeds))).values())

    outcomes = {}
    of_runtime: list[Case] = []
    for case in chosen:
        try:
            function = imported(case)
            if extents_of(function) and len(case.feeds) == 1:  # known: nothing for data to decide
                case = replace(case, feeds=[dict(case.feeds[0])])
                _bake(case, list(case.feeds[0]))
                function = imported(case)
            if any(op.blocks or op.record is EXTENT for op in function.walk()):
                outcomes[case.name] = ""  # below
                of_runtime.append(case)
                continue
            outcomes[case.name] = _first(
                difference(case, number, _on_driver(driver, function, feeds))
                for number, feeds in enumerate(case.feeds)
            )
        except Exception as error:
            outcomes[case.name] = _reason(error)
    if of_runtime:
        with TemporaryDirectory() as folder, running_on(driver, Path(folder)):
            outcomes |= on_cpu(of_runtime, "vulkan-1.1", "vulkan")
    return outcomes


RUN: dict[str, Callable[[Iterable[Case]], dict[str, Outcome]]] = {
    "interpreter": on_interpreter,
    "cpu": on_cpu,
    "vulkan": on_vulkan,
}


def survey(
    engines: Sequence[str] = ENGINES, names: Sequence[str] = ()
) -> dict[str, dict[str, Outcome]]:
    """Outcomes by engine and case. What the interpreter fails is not asked of the others."""
    chosen, _ = cases()
    wanted = [chosen[n] for n in names] if names else list(chosen.values())
    outcomes = {"interpreter": on_interpreter(wanted)}
    passed = [c for c in wanted if not outcomes["interpreter"][c.name]]
    for engine in engines:
        if engine != "interpreter":
            outcomes[engine] = {**outcomes["interpreter"], **RUN[engine](passed)}
    return outcomes
