"""The dispatches of models: which executables run at which extents, on which integers.

Owns what is kept of a model between runs. Two dispatches are one where they have the same kernel
and the same extents; which models they are of does not matter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from aot.analysis.dispatches import dims_of_dispatch, dispatches_of
from aot.analysis.launches import flops_by_dtype, launch_of
from aot.analysis.memory.storage import ARENA, CONSTANTS
from aot.backends import sources
from aot.backends.cpu.object_cache import ObjectCache, key_of
from aot.driver.pipeline import prepared, read_model
from aot.ir import dims
from aot.ir.assumed_extents import MEASURED
from aot.ir.builtin import CONSTANT
from aot.ir.clone import clone_function
from aot.ir.dims import Dim
from aot.ir.graph import ConstantData, Function, Module, Op
from aot.ir.text.parser import parse_module
from aot.ir.text.printer import print_attr, print_module
from aot.ir.types import DTypeKind, TensorType
from aot.kernels.ir.fingerprint import fingerprint
from aot.kernels.ir.nodes import Kernel
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target.model import Target

# integers of a constant that are kept, because kernels read memory at them; more are drawn
MOST_INTEGERS = 1 << 16
# a text or key of an older form is not found
_FORM = b"dispatches 1"

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Source:
    """A model to be taken apart.

    Attributes:
        name: what tables call it.
        content: a path or the bytes of a model.
        shapes: of its inputs; open dims that it does not bind are 1 in front, else some tens.
    """

    name: str
    content: Path | bytes
    shapes: Shapes = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Dispatch:
    """A dispatch, ready to be lowered.

    Attributes:
        function: its executable.
        dims: the values of its dim parameters.
        bytes: of what it must read and write at least, each once.
        integers: operand number -> the integers that it holds in the model.
        model, node: where it was met first.
        count: how many such dispatches the models have.
    """

    function: Function
    dims: Mapping[str, int]
    bytes: int
    integers: Mapping[int, Sequence[int]]
    model: str
    node: str
    count: int = 1

    @property
    def text(self) -> str:
        """What it computes, with its extents: the same whatever the compiler chooses for it."""
        return text_of(self.function, self.dims)


def key(dispatch: Dispatch, kernel: Kernel) -> str:
    """What tells dispatches apart: the kernel and its extents."""
    values = sorted(dispatch.dims.items())
    return hashlib.sha256(fingerprint(kernel) + repr(values).encode()).hexdigest()


def sized(type: TensorType, values: Mapping[str, int]) -> TensorType:
    """The type with numbers for dims that have names."""

    def known(dim: Dim) -> Dim:
        return dims.substitute(dim, dict(values))

    layout = type.layout and type.layout.map_dims(known)
    return TensorType(type.dtype, tuple(map(known, type.dims)), layout)


def text_of(function: Function, values: Mapping[str, int]) -> str:
    """Ops, attributes and types of an executable at some extents, in a line."""
    inputs = ", ".join(str(sized(v.type, values)) for v in function.inputs)
    parts = []
    for op in function.block:
        if op.record.is_terminator:
            continue
        found = [
            f"{k}={_attribute(v, values)}" for k, v in sorted(op.attrs.items()) if v is not None
        ]
        types = ", ".join(str(sized(v.type, values)) for v in op.results)
        parts.append(f"{op.name}({', '.join(found)}) {types}")
    return f"({inputs}) {'; '.join(parts)}"


def _attribute(value: Any, values: Mapping[str, int]) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_attribute(v, values) for v in value)}]"
    if isinstance(value, dims.DimExpr):
        return str(dims.substitute(value, dict(values)))
    return print_attr(value)


def dispatches_of_source(source: Source, target: Target, cache: ObjectCache) -> list[Dispatch]:
    """The different dispatches of a model, as a compile makes them.

    They are kept in the cache: a second run of the same compiler reads no model.

    Raises:
        CompileError, UnsupportedError: the model cannot be compiled.
    """
    content = source.content
    data = content if isinstance(content, bytes) else content.read_bytes()
    shapes = json.dumps({k: list(v) for k, v in source.shapes.items()}, sort_keys=True)
    parts = (sources.digest("."), hashlib.sha256(data).digest(), shapes.encode())
    known = key_of((_FORM, *parts, repr(target).encode()))
    found = cache.get(known)
    if found is None:
        found = json.dumps(list(_records(source, target))).encode()
        cache.put(known, found)
    return [_dispatch(record, source.name) for record in json.loads(found)]


def outlined(source: Source, target: Target) -> Module:
    """The module of a model after its passes: executables, and the program that runs them."""
    given: Any = source.content if isinstance(source.content, bytes) else str(source.content)
    shapes = {k: tuple(v) for k, v in source.shapes.items()}
    options = CompileOptions(targets=(target.name,), input_shapes=shapes)
    inputs = read_model(given, options).entry_points[0].inputs
    symbols: dict[str, int] = {}
    for value in inputs:
        for axis, dim in enumerate(value.type.dims):
            for symbol in sorted(dims.symbols(dim)):
                symbols.setdefault(symbol, 1 if axis == 0 else MEASURED)
    if symbols:
        shapes |= {v.name: tuple(dims.evaluate(d, symbols) for d in v.type.dims) for v in inputs}
        options = replace(options, input_shapes=shapes)
    module, options = prepared(given, options)
    run_passes(module, MODEL_PASSES, PassContext(options))
    run_passes(module, TARGET_PASSES, PassContext(options, target))
    return module


def _records(source: Source, target: Target) -> Iterator[dict[str, Any]]:
    """A model's dispatches as plain data, equal ones once."""
    module = outlined(source, target)
    texts: dict[str, str] = {}
    met: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
    for op, name in dispatches_of(module):
        function = module.functions[name]
        given = dims_of_dispatch(op, function.dim_names)
        values = tuple(_number(given[n]) for n in _extents(function))
        if name not in texts:
            texts[name] = _alone(function)
        text = texts[name]
        record = met.get((text, values))
        if record is not None:
            record["count"] += 1
            continue
        met[text, values] = {
            "text": text,
            "dims": values,
            "bytes": _number(launch_of(op, function, flops_by_dtype(function)).bytes),
            "integers": _integers(op),
            "node": op.origin,
            "count": 1,
        }
    yield from met.values()


def _alone(function: Function) -> str:
    """The text of an executable, whichever of the program's memory it works on."""
    made = clone_function(function)
    made.name = "e"
    made.dim_names = _extents(function)
    made.bindings = tuple(b if b == CONSTANTS else ARENA for b in function.bindings)
    return print_module(Module([made]))


def _extents(function: Function) -> tuple[str, ...]:
    """Its dim parameters, less those that say where buffers are."""
    return tuple(name for name in function.dim_names if name not in function.bindings)


def _number(dim: Dim) -> int:
    """A dim; what only a run tells is some tens."""
    return dims.evaluate(dim, dict.fromkeys(dims.symbols(dim), MEASURED))


def _integers(op: Op) -> dict[str, list[int]]:
    found = {}
    for number, value in enumerate(v for v in op.operands if v is not None):
        if value.op is None or value.op.record is not CONSTANT:
            continue
        data = value.op.attrs["value"]
        assert isinstance(data, ConstantData)
        is_index = value.type.dtype.kind in (DTypeKind.SIGNED, DTypeKind.UNSIGNED)
        if is_index and value.type.dtype.bits >= 32 and data.array.size <= MOST_INTEGERS:
            found[str(number)] = np.asarray(data.array).ravel().tolist()
    return found


def _dispatch(record: Mapping[str, Any], model: str) -> Dispatch:
    (function,) = parse_module(record["text"]).functions.values()
    return Dispatch(
        function,
        dict(zip(function.dim_names, record["dims"], strict=True)),
        record["bytes"],
        {int(number): values for number, values in record["integers"].items()},
        model,
        record["node"],
        record["count"],
    )
