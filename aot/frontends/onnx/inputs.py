"""The model's inputs as typed arguments: symbols for unknown dims, and values that the user binds.

A name that the model gives a dim is one symbol wherever it stands, so that binding it in one input
binds it in all. Anything else that is not a positive number becomes a symbol of its own. Bounds
that the user gives are assumptions.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from aot.errors import CompileError
from aot.frontends.onnx.strings import STRING, StringTable
from aot.frontends.onnx.tensors import UnsupportedTypeError, held_dtype
from aot.ir.bounds import Wanted, WantedDim, assumptions_of, parse_wanted
from aot.ir.dims import Dim, DimExpr, substitute, symbol
from aot.ir.graph import Assumption
from aot.ir.types import Array, DType, TensorType

InputShapes = Mapping[str, Sequence[Wanted]]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_symbol_name(text: str) -> bool:
    """Whether a dim's name can be used as a symbol; exporters also write '?', 'None' and
    expressions."""
    return _IDENTIFIER.fullmatch(text) is not None and not keyword.iskeyword(text)


def changed_extents(infos: Sequence[Any], shapes: InputShapes) -> list[str]:
    """A line for each extent that a model declares and that was given otherwise: what may be wrong
    where the model is refused then."""
    found = []
    for info in infos:
        declared = info.type.tensor_type.shape.dim
        for axis, (dim, given) in enumerate(zip(declared, shapes.get(info.name, ()), strict=False)):
            wanted = str(given)
            is_dim = given is not None and (wanted.isdecimal() or is_symbol_name(wanted))
            if dim.dim_value > 0 and is_dim and wanted != str(dim.dim_value):
                found.append(
                    f"input {info.name!r}: dim {axis} is {dim.dim_value} in the model, {wanted} "
                    "was given"
                )
    return found


class InputTypes:
    """The types of the inputs by name, after binding.

    Attributes:
        types: in the model's order, bound inputs included.
        values: contents of the inputs that are bound to a constant.
        assumptions: the bounds that are given for dims.
        unsupported: one line per input that we have no type for.
    """

    def __init__(
        self,
        infos: Sequence[Any],
        shapes: InputShapes,
        values: Mapping[str, Any],
        strings: StringTable,
    ) -> None:
        self._strings = strings
        self._of_strings = {i.name for i in infos if i.type.tensor_type.elem_type == STRING}
        self._bound: dict[str, Dim] = {}
        self._taken = {d.dim_param for info in infos for d in info.type.tensor_type.shape.dim}
        self.unsupported: list[str] = []
        self.values: dict[str, np.ndarray[Any, Any]] = {}
        names = [info.name for info in infos]
        for what, given in (("input_shapes", shapes), ("input_values", values)):
            for name in given:
                if name not in names:
                    raise CompileError(
                        f"{what}: the model has no input {name!r}; its inputs are "
                        f"{', '.join(map(repr, names)) or 'none'}"
                    )
        declared: dict[str, TensorType] = {}
        asked = {name: self._asked(name, shape) for name, shape in shapes.items()}
        for info in infos:
            try:
                declared[info.name] = self._declared(info, asked.get(info.name))
            except UnsupportedTypeError as error:
                self.unsupported.append(f"input {info.name!r}: {error}")
        for name, value in values.items():
            if name in declared:
                self.values[name] = self._value(name, value, declared[name])
        self.types = {name: self._substituted(type) for name, type in declared.items()}
        for name, type in self.types.items():
            if type.problem:
                raise CompileError(f"input {name!r} is {type}: {type.problem}")
        self.assumptions = [
            assumption
            for name, wanted in asked.items()
            if name in self.types
            for assumption in self._bounds(name, self.types[name], wanted)
        ]

    def _asked(self, name: str, shape: Sequence[Wanted]) -> list[WantedDim]:
        try:
            return [parse_wanted(item) for item in shape]
        except ValueError as error:
            raise CompileError(f"shape of input {name!r}: {error}") from None

    def _bounds(
        self, name: str, type: TensorType, wanted: Sequence[WantedDim]
    ) -> Iterator[Assumption]:
        try:
            for axis, (dim, one) in enumerate(zip(type.dims, wanted, strict=True)):
                yield from assumptions_of(dim, one, f"input {name!r}: dim {axis}")
        except ValueError as error:
            raise CompileError(str(error)) from None

    def _declared(self, info: Any, given: Sequence[WantedDim] | None) -> TensorType:
        name = info.name
        if info.type.WhichOneof("value") != "tensor_type":
            kind = (info.type.WhichOneof("value") or "value without type").replace("_", " ")
            article = "an" if kind[0] in "aeiou" else "a"
            raise UnsupportedTypeError(f"is {article} {kind}, not a tensor")
        tensor = info.type.tensor_type
        dtype = held_dtype(tensor.elem_type)
        if not tensor.HasField("shape"):
            if given is None:
                raise CompileError(
                    f"input {name!r} has no shape in the model: give one with "
                    f"--input-shape {name}=..."
                )
            return TensorType(dtype, tuple(self._given(name, item, None) for item in given))
        dims: list[Dim] = [self._dim(name, number, d) for number, d in enumerate(tensor.shape.dim)]
        if given is None:
            return TensorType(dtype, tuple(dims))
        if len(given) != len(dims):
            raise CompileError(
                f"input {name!r} has rank {len(dims)} in the model, but the shape "
                f"given for it has {len(given)} dims"
            )
        return TensorType(
            dtype,
            tuple(self._given(name, item, dim) for item, dim in zip(given, dims, strict=True)),
        )

    def _dim(self, name: str, number: int, dim: Any) -> Dim:
        kind = dim.WhichOneof("value")
        if kind == "dim_value" and dim.dim_value > 0:
            return int(dim.dim_value)
        if kind == "dim_param" and is_symbol_name(dim.dim_param):
            return symbol(dim.dim_param)
        fresh = re.sub(r"[^A-Za-z0-9_]", "_", f"{name}_d{number}")
        if not is_symbol_name(fresh):
            fresh = f"_{fresh}"
        while fresh in self._taken:
            fresh += "_"
        self._taken.add(fresh)
        return symbol(fresh)

    def _given(self, name: str, wanted: WantedDim, dim: Dim | None) -> Dim:
        """The dim that the user requested; if the model has a symbol there, binds it."""
        fresh = wanted.dim
        if fresh is None:
            if dim is None:
                raise CompileError(
                    f"input {name!r} has no shape in the model: each of its dims must be given"
                )
            return dim
        if isinstance(fresh, int) and fresh < 0:
            raise CompileError(
                f"input {name!r}: {fresh} is no dim, expected one that is not negative"
            )
        if isinstance(dim, DimExpr):
            self._bind(name, str(dim), fresh)
        return fresh

    def _bind(self, name: str, old: str, fresh: Dim) -> None:
        known = self._bound.setdefault(old, fresh)
        if known != fresh:
            raise CompileError(
                f"input {name!r}: dim {old} is {fresh} here and {known} in another place"
            )

    def _value(self, name: str, value: Any, type: TensorType) -> np.ndarray[Any, Any]:
        array = np.asarray(value)
        if name in self._of_strings:
            array = self._numbers(name, array)
        is_float = array.dtype == DType.BF16.numpy or array.dtype.kind == "f"
        if not (is_float or array.dtype.kind in "iub") or (
            type.dtype is not DType.BOOL and is_float and not type.dtype.is_float
        ):
            raise CompileError(
                f"input {name!r} is {type.dtype}, but the value given for it is {array.dtype}"
            )
        converted = array.astype(type.dtype.numpy)
        if array.dtype.kind in "iu" and not np.array_equal(converted, array):
            raise CompileError(f"input {name!r}: the value given for it does not fit {type.dtype}")
        fits = converted.ndim == type.rank and all(
            isinstance(dim, DimExpr) or dim == extent
            for dim, extent in zip(type.dims, converted.shape, strict=True)
        )
        if not fits:
            raise CompileError(
                f"input {name!r} is {type}, but the value given for it has shape {converted.shape}"
            )
        for dim, extent in zip(type.dims, converted.shape, strict=True):
            if isinstance(dim, DimExpr):
                self._bind(name, str(dim), extent)
        return converted

    def _numbers(self, name: str, array: Array) -> Array:
        texts = array.reshape(-1).tolist()
        if not all(isinstance(text, str) for text in texts):
            raise CompileError(
                f"input {name!r} is of strings, but the value given for it is {array.dtype}"
            )
        return self._strings.numbers(texts).reshape(array.shape)

    def _substituted(self, type: TensorType) -> TensorType:
        return type.with_dims(tuple(substitute(d, self._bound) for d in type.dims))
