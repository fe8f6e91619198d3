"""The table of ONNX ops, and `Node`, an entry's view of an ONNX node.

An op more is one entry more: a function from a Node to values, registered with `onnx_op`. The
entry adapts what opset versions spell differently; types, operand counts and required attributes
are checked against ONNX's own schemas before it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Union

from onnx import AttributeProto

from aot.analysis.dim_values import DimValues
from aot.base.records import dataclass
from aot.errors import CompileError
from aot.frontends.lib.builder import (
    UnsupportedNodeError as UnsupportedNodeError,  # noqa: PLC0414 - entries import it from here
)
from aot.frontends.lib.extents import bound, given_dims
from aot.frontends.lib.place import Place
from aot.frontends.onnx.scopes import StackedList, TensorList
from aot.frontends.onnx.strings import STRING, StringTable, decoded
from aot.frontends.onnx.tensors import UnsupportedTypeError, tensor_array
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Value
from aot.ir.rewriter import Rewriter
from aot.ir.types import Array

Results = Union[Value, Sequence["Value | None"]]
_SCALAR_FIELDS = {AttributeProto.INT: "i", AttributeProto.FLOAT: "f", AttributeProto.STRING: "s"}


@dataclass(frozen=True)
class Entry:
    """An op's importer, valid from opset `since` until a later entry."""

    since: int
    build: Callable[[Node], Results]


TABLE: dict[tuple[str, str], list[Entry]] = {}


def onnx_op(
    *names: str, since: int = 1, domain: str = ""
) -> Callable[[Callable[[Node], Results]], Callable[[Node], Results]]:
    """Registers the importer of ONNX ops `names` as defined in opset `since` and later."""

    def register(build: Callable[[Node], Results]) -> Callable[[Node], Results]:
        for name in names:
            entries = TABLE.setdefault((domain, name), [])
            entries.append(Entry(since, build))
            entries.sort(key=lambda entry: -entry.since)
        return build

    return register


def find_entry(domain: str, name: str, opset: int) -> Entry | None:
    """The entry for an op at an opset version; None where there is none."""
    return next((entry for entry in TABLE.get((domain, name), []) if entry.since <= opset), None)


def supported_ops() -> list[tuple[str, str, int]]:
    """(domain, op, oldest opset) of each op that can be imported, sorted."""
    return sorted((domain, name, entries[-1].since) for (domain, name), entries in TABLE.items())


@dataclass
class Node(Place):
    """One ONNX node as its entry sees it; a GraphBuilder of `aot.frontends.lib` at the node's
    place.

    Attributes:
        inputs: operand values; None where an optional one is absent. Trailing ones are left out.
        outputs: output names; "" where one is absent or nothing reads it.
        opset: version of the node's domain.
        lists: operands that are sequences of tensors, by number; `inputs` has None for them.
        kinds: ONNX's element types of those values of the model that are only stored (`stored.py`).
        seed: what decides random tensors, with the node's own.
        strings: those that the model names.
        ranks: ranks that the model declares, by name.
    """

    op_type: str
    label: str
    opset: int
    inputs: list[Value | None]
    outputs: list[str]
    attributes: dict[str, Any]
    rewriter: Rewriter
    values: DimValues
    folder: Path | None = None
    lists: dict[int, TensorList | StackedList] = field(default_factory=dict)
    kinds: dict[Value, int] = field(default_factory=dict)
    seed: int = 0
    strings: StringTable = field(default_factory=StringTable)
    ranks: Mapping[str, int] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)

    # operands

    def input(self, index: int) -> Value:
        """A required operand; an error if it is absent."""
        found = self.optional(index)
        if found is None:
            raise self.error(f"operand {index} is missing")
        return found

    def optional(self, index: int) -> Value | None:
        """Operand `index`, or None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def element_type(self, index: int) -> int | None:
        """The ONNX element type of a storage-only operand; None for others."""
        found = self.optional(index)
        return None if found is None else self.kinds.get(found)

    def dims(self, index: int, what: str) -> tuple[Dim, ...]:
        """The elements of a 1-D or scalar integer operand, as dims.

        Raises:
            UnsupportedNodeError: they depend on more than the shapes of inputs.
        """
        found = self.values.of(self.input(index))
        if found is None:
            raise self._unknown(index, what)
        return tuple(v if isinstance(v, DimExpr) else int(v) for v in found.reshape(-1))

    def _unknown(self, index: int, what: str) -> UnsupportedNodeError:
        """The error for an operand whose value is unknown, with the condition under which bounds
        would determine it."""
        text = f"operand {index} ({what}) is not known at compile time"
        reason = self.values.why_unknown(self.input(index))
        if reason is not None:
            text += (
                f": it depends on {reason}; bounds of these extents may decide it, as in "
                "--input-shape x=1x3xH:32..960"
            )
        return UnsupportedNodeError(text)

    def extents(self, index: int, what: str) -> tuple[Dim, ...]:
        """The elements of an integer operand as extents; computed ones become symbols, which must
        not be negative. The caller must bound them (`aot.frontends.lib.extents.bound`).
        """
        found = given_dims(self, self.input(index))
        if found is None:
            raise self._unknown(index, what)
        return tuple(v if isinstance(v, DimExpr) else int(v) for v in found.reshape(-1))

    def extent(self, index: int, what: str, most: Dim | None) -> Dim:
        """The single element of an integer operand as an extent of at most `most`; the model may
        compute it.
        """
        found = self.extents(index, what)
        if len(found) != 1:
            raise self.error(f"operand {index} ({what}) has {len(found)} elements, expected 1")
        bound(self, found[0], most, f"operand {index} ({what})")
        return found[0]

    def ints(self, index: int, what: str) -> tuple[int, ...]:
        """The elements of an integer operand as ints; symbols are not allowed."""
        found = self.dims(index, what)
        if any(isinstance(v, DimExpr) for v in found):
            raise UnsupportedNodeError(f"operand {index} ({what}) depends on the input's shape")
        return tuple(int(v) for v in found)

    def dim(self, index: int, what: str) -> Dim:
        """The single element of an integer operand as a dim."""
        found = self.dims(index, what)
        if len(found) != 1:
            raise self.error(f"operand {index} ({what}) has {len(found)} elements, expected 1")
        return found[0]

    def number(self, index: int, what: str) -> float | int | bool:
        """The single element of an operand that must be known."""
        found = self.values.known(self.input(index))
        if found is not None and found.size != 1:
            raise self.error(f"operand {index} ({what}) has {found.size} elements, expected 1")
        if found is None or found.dtype == object:
            raise UnsupportedNodeError(f"operand {index} ({what}) is not known at compile time")
        value: float | int | bool = found.reshape(()).item()
        return value

    def whole(self, index: int, what: str) -> int:
        """The single element of an operand as an int; it must be an integer."""
        value = self.number(index, what)
        if isinstance(value, float) and not value.is_integer():
            raise self.error(f"operand {index} ({what}) is {value}, expected a whole number")
        return int(value)

    # attributes

    def has(self, name: str) -> bool:
        return name in self.attributes

    def ignore(self, *names: str) -> None:
        """Marks attributes as read that do not affect the result."""
        self._used.update(names)

    def attribute(self, name: str) -> Any:
        """The protobuf message of a required attribute."""
        self._used.add(name)
        if name not in self.attributes:
            raise self.error(f"attribute {name!r} is missing")
        return self.attributes[name]

    def int_attr(self, name: str, default: int | None = None) -> int:
        self._used.add(name)
        if default is not None and name not in self.attributes:
            return default
        return int(self.attribute(name).i)

    def float_attr(self, name: str, default: float | None = None) -> float:
        """The value of a float attribute, with float32's precision."""
        self._used.add(name)
        if default is not None and name not in self.attributes:
            return default
        return float(self.attribute(name).f)

    def str_attr(self, name: str, default: str | None = None) -> str:
        self._used.add(name)
        if default is not None and name not in self.attributes:
            return default
        return decoded(self.attribute(name).s)

    def ints_attr(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        self._used.add(name)
        if default is not None and name not in self.attributes:
            return tuple(default)
        return tuple(int(i) for i in self.attribute(name).ints)

    def floats_attr(self, name: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        self._used.add(name)
        if default is not None and name not in self.attributes:
            return tuple(default)
        return tuple(float(v) for v in self.attribute(name).floats)

    def strs_attr(self, name: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        self._used.add(name)
        if name not in self.attributes:
            return tuple(default)
        return tuple(decoded(text) for text in self.attribute(name).strings)

    def string_attr(self, name: str, default: str | None = None) -> int:
        """The table index of a string attribute."""
        return int(self.strings.numbers([self.str_attr(name, default)])[0])

    def string(self, made: Value) -> Value:
        """Records that `made` is a tensor of strings, and returns it."""
        self.kinds[made] = STRING
        return made

    def tensor_attr(self, name: str) -> Array:
        """The array of a tensor attribute; strings as their indices in the model's table."""
        found = self.attribute(name)
        try:
            what = f"attribute {name!r}"
            return tensor_array(found.t, what, self.folder, strings=self.strings)
        except UnsupportedTypeError as error:
            raise UnsupportedNodeError(f"attribute {name!r}: {error}") from None

    def axis_attr(self, rank: int, default: int | None = None, name: str = "axis") -> int:
        """An axis attribute, counted from the front."""
        return self.axis(self.int_attr(name, default), rank)

    def unread_attributes(self) -> list[str]:
        """Attributes that the entry did not read, whose meaning would be lost."""
        return [name for name in self.attributes if name not in self._used]

    # outputs

    def wants(self, index: int) -> bool:
        """Whether an output is used."""
        return index < len(self.outputs) and self.outputs[index] != ""

    def refuse_output(self, index: int, what: str) -> None:
        """Rejects the node if an output that cannot be computed is used."""
        if self.wants(index):
            raise UnsupportedNodeError(f"output {index} ({what}) is not supported")

    def error(self, message: str) -> CompileError:
        """An error in the user's model at this node."""
        return CompileError(f"{self.op_type} (node {self.label!r}): {message}")
