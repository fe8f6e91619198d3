"""The graph: values, ops, blocks, functions and modules.

SSA in place, with use lists. Only `aot.ir.rewriter.Rewriter` mutates a function once it is built;
whoever keeps facts about a function (aliases, pending shapes) is a `Listener` of it. Knows op
records by reference only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import xxhash

from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.attributes import Attributed
from aot.ir.dims import Dim
from aot.ir.large_arrays import given, is_same, kept, parts
from aot.ir.schedule import StageSchedule
from aot.ir.types import DType, Layout, TensorType, to_logical, to_physical

if TYPE_CHECKING:
    from aot.ir.record import OpRecord
    from aot.options import Tie
    from aot.text.vocabulary import Vocabulary


class ConstantData:
    """Immutable contents of a constant; its hash and digest are computed once.

    Attributes:
        array: the elements as they lie in memory (the layout's physical array).
        type: dtype, logical dims and layout.
    """

    __slots__ = ("_digest", "_hash", "array", "type")

    def __init__(self, array: np.ndarray[Any, Any], type: TensorType | None = None) -> None:
        self.array: np.ndarray[Any, Any] = kept(array)
        self.type = type or TensorType(DType.of(array), tuple(array.shape))
        if self.type.physical_dims != array.shape:
            raise InternalError(f"constant of type {self.type} with an array of {array.shape}")
        self._digest: str | None = None
        self._hash: int | None = None

    @staticmethod
    def of(array: np.ndarray[Any, Any], type: TensorType) -> ConstantData:
        """A constant of `type` from its logical elements."""
        physical = to_physical(array, type)
        return ConstantData(array if physical is array else given(physical), type)

    @staticmethod
    def given(array: np.ndarray[Any, Any], type: TensorType) -> ConstantData:
        """A constant of `type` that takes over `array`, which must not be changed afterwards; no
        copy where possible."""
        return ConstantData(given(array if type.layout is None else to_physical(array, type)), type)

    @property
    def logical(self) -> np.ndarray[Any, Any]:
        """The elements by logical index, whatever the layout."""
        return self.array if self.type.layout is None else to_logical(self.array, self.type)

    @classmethod
    def borrowed(cls, array: np.ndarray[Any, Any]) -> ConstantData:
        """A constant that refers to the memory of `array`, which must not change while the constant
        is used; a copy if the array is not dense and aligned."""
        if not array.flags.c_contiguous or not array.flags.aligned:
            return cls(array)
        data = cls.__new__(cls)
        data.array = array.view()
        data.array.flags.writeable = False
        data.type = TensorType(DType.of(array), tuple(array.shape))
        data._digest = data._hash = None
        return data

    def __repr__(self) -> str:
        return f"<constant {self.type}>"

    @property
    def bytes(self) -> memoryview:
        """The elements as the little-endian bytes that a module stores; usually a view of the
        array.
        """
        stored = self.array.astype(self.array.dtype.newbyteorder("<"), copy=False)
        return stored.reshape(-1).view(np.uint8).data  # bfloat16 is no buffer of its own

    @property
    def digest(self) -> str:
        """BLAKE2b-128 of the bytes, in hex."""
        if self._digest is None:
            found = hashlib.blake2b(digest_size=16)
            for part in parts(self.bytes):
                found.update(part)
            self._digest = found.hexdigest()
        return self._digest

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ConstantData)
            and hash(self) == hash(other)
            and self.type == other.type
            and (self.array is other.array or is_same(self.bytes, other.bytes))
        )

    def __hash__(self) -> int:
        # Weights are hashed in most passes that compare ops: by a hash as fast as memory.
        if self._hash is None:
            found = xxhash.xxh3_64()
            for part in parts(self.array.reshape(-1).view(np.uint8).data):
                found.update(part)
            self._hash = hash((self.type, found.intdigest()))
        return self._hash


@dataclass(frozen=True)
class FunctionRef:
    """A reference to a function of the same module, by name, as an attribute."""

    name: str


Attr = Union[
    int, float, bool, str, DType, Dim, ConstantData, FunctionRef, Layout, tuple["Attr", ...]
]


class Value:
    """A result of an op or an argument of a block.

    Attributes:
        uses: (op, operand number) pairs, in the order they were made.
    """

    __slots__ = ("index", "name", "owner", "type", "uses")

    def __init__(self, type: TensorType, owner: Op | Block, index: int, name: str = "") -> None:
        self.type = type
        self.owner = owner
        self.index = index
        self.name = name
        self.uses: dict[tuple[Op, int], None] = {}

    @property
    def op(self) -> Op | None:
        """The op that defines the value; None for a block argument."""
        return self.owner if isinstance(self.owner, Op) else None

    @property
    def users(self) -> list[Op]:
        """Ops that use the value, each once."""
        return list(dict.fromkeys(op for op, _ in self.uses))

    def __repr__(self) -> str:
        return f"<value {self.name or self.index}: {self.type}>"


class Op(Attributed):
    """One use of an op record. `operands` may hold None where an optional operand is absent."""

    __slots__ = (
        "attrs",
        "blocks",
        "next",
        "operands",
        "origin",
        "parent",
        "prev",
        "record",
        "results",
    )

    def __init__(
        self,
        record: OpRecord,
        operands: Sequence[Value | None],
        attrs: Mapping[str, Attr],
        result_types: Sequence[TensorType],
        blocks: Sequence[Block] = (),
        origin: str = "",
    ) -> None:
        self.record = record
        self.operands: list[Value | None] = list(operands)
        self.attrs: dict[str, Attr] = dict(attrs)
        self.results = [Value(t, self, i) for i, t in enumerate(result_types)]
        self.blocks = list(blocks)
        self.origin = origin
        self.parent: Block | None = None
        self.prev: Op | None = None
        self.next: Op | None = None
        for i, value in enumerate(self.operands):
            if value is not None:
                value.uses[(self, i)] = None
        for block in self.blocks:
            block.owner = self

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def result(self) -> Value:
        """The op's only result."""
        if len(self.results) != 1:
            raise InternalError(f"op {self.name} has {len(self.results)} results, expected one")
        return self.results[0]

    @property
    def operand_types(self) -> tuple[TensorType | None, ...]:
        return tuple(None if v is None else v.type for v in self.operands)

    def __repr__(self) -> str:
        return f"<op {self.name}{f' {self.origin!r}' if self.origin else ''}>"


class Block:
    """A list of ops, with block arguments. It is linked, so that insertion and removal take
    constant time."""

    __slots__ = ("_count", "args", "first", "last", "owner")

    def __init__(self, arg_types: Sequence[TensorType] = (), names: Sequence[str] = ()) -> None:
        padded = [*names, *[""] * (len(arg_types) - len(names))]
        self.args = [
            Value(t, self, i, n) for i, (t, n) in enumerate(zip(arg_types, padded, strict=True))
        ]
        self.owner: Op | Function | None = None
        self.first: Op | None = None
        self.last: Op | None = None
        self._count = 0

    def __iter__(self) -> Iterator[Op]:
        """The ops in order; the op last yielded may be removed meanwhile."""
        op = self.first
        while op is not None:
            following = op.next
            yield op
            op = following

    def __reversed__(self) -> Iterator[Op]:
        op = self.last
        while op is not None:
            before = op.prev
            yield op
            op = before

    def __len__(self) -> int:
        return self._count

    @property
    def terminator(self) -> Op:
        """The last op, which ends the block.

        Raises:
            InternalError: the block is empty.
        """
        if self.last is None:
            raise InternalError("block is empty: it has no terminator")
        return self.last

    def _link(self, op: Op, before: Op | None) -> None:
        op.parent = self
        op.next = before
        op.prev = self.last if before is None else before.prev
        if op.prev is None:
            self.first = op
        else:
            op.prev.next = op
        if before is None:
            self.last = op
        else:
            before.prev = op
        self._count += 1

    def _unlink(self, op: Op) -> None:
        if op.prev is None:
            self.first = op.next
        else:
            op.prev.next = op.next
        if op.next is None:
            self.last = op.prev
        else:
            op.next.prev = op.prev
        op.parent = op.prev = op.next = None
        self._count -= 1


BROADCAST = "operands broadcast"  # of which every reason ends that two dims must be equal for it


@dataclass(frozen=True)
class Assumption:
    """An equality `left == right` that shape rules may assume, checked before a run.

    Attributes:
        reason: the user's message if it does not hold.
    """

    left: Dim
    right: Dim
    reason: str


class Listener:
    """The interface that is notified of every change by a Rewriter, after the change unless
    stated."""

    def op_created(self, op: Op) -> None: ...

    def op_erased(self, op: Op) -> None:
        """Called before `op` is erased."""

    def operand_changed(self, op: Op, index: int, old: Value | None) -> None: ...

    def value_replaced(self, old: Value, fresh: Value) -> None:
        """Called before users of `old` are rewired to `fresh`; each rewiring is notified too."""

    def attr_changed(self, op: Op, name: str) -> None: ...

    def input_erased(self, value: Value) -> None: ...

    def op_moved(self, op: Op) -> None: ...

    def op_widened(self, op: Op) -> None:
        """Called after an op with blocks carries or yields one more value."""

    def type_changed(self, value: Value, old: TensorType) -> None: ...

    def pending_made(self, value: Value) -> None:
        """Called after `value`, a pending shape change, has replaced another value in its users."""


@dataclass(frozen=True)
class Strings:
    """A function's string tensors: their elements are indices into a table of strings, or negative
    numbers for strings not in it, which the caller assigns.

    Attributes:
        table: the strings, each once.
        names: of the inputs and results whose elements are strings.
    """

    table: tuple[str, ...]
    names: tuple[str, ...]


class Function:
    """A named block with named inputs and results.

    Attributes:
        kind: "function", or "executable" for an outlined dispatch body.
        result_names: one per operand of the block's `return`.
        updates: results that are what an input's memory holds after a run, each with the input's
            name: whoever runs the function writes them there.
        strings: of a function that takes or gives such.
        dim_names: symbols of an executable that are its dim parameters, in order.
        bindings: buffer class of each input, then each result, of an executable (the numbers of
            BufferClass in module.fbs); empty before buffers are bound. A name is the dim parameter
            that says the class, which is not that of constants.
        schedule: how each stage of an executable runs, in the order of their results' definition;
            empty before that is decided.
    """

    def __init__(
        self, name: str, block: Block, result_names: Sequence[str] = (), kind: str = "function"
    ) -> None:
        self.name = name
        self.block = block
        self.kind = kind
        self.result_names = list(result_names)
        self.updates: dict[str, str] = {}
        self.strings: Strings | None = None
        self.dim_names: tuple[str, ...] = ()
        self.bindings: tuple[int | str, ...] = ()
        self.schedule: tuple[StageSchedule, ...] = ()
        self.assumptions: dict[Assumption, None] = {}
        self.listeners: list[Listener] = []
        block.owner = self

    def __repr__(self) -> str:
        counts = f"{len(self.inputs)} inputs, {len(self.result_names)} results"
        return f"<{self.kind} @{self.name}: {counts}>"

    @property
    def inputs(self) -> list[Value]:
        return self.block.args

    @property
    def results(self) -> list[Value]:
        return [v for v in self.block.terminator.operands if v is not None]

    def walk(self) -> Iterator[Op]:
        """Every op in pre-order: an op before those nested in it."""
        return walk(self.block)


def walk(block: Block) -> Iterator[Op]:
    """Every op of `block` and of nested blocks, in pre-order."""
    for op in block:
        yield op
        for inner in op.blocks:
            yield from walk(inner)


class Module:
    """Functions by name, in order; "main" is the model unless entry points are named.

    Attributes:
        states: inputs that the model itself ties to outputs, as `CompileOptions.states` has them;
            only a module that was just read has any.
        vocabulary: of a language model.
        metadata: what the model's file says about itself, by key.
    """

    def __init__(self, functions: Iterable[Function] = ()) -> None:
        self.functions: dict[str, Function] = {}
        self.states: dict[str, tuple[str, int] | Tie] = {}
        self.vocabulary: Vocabulary | None = None
        self.metadata: dict[str, str] = {}
        for function in functions:
            self.add(function)

    def add(self, function: Function) -> None:
        if function.name in self.functions:
            raise InternalError(f"module has two functions named {function.name!r}")
        self.functions[function.name] = function

    def __repr__(self) -> str:
        listed = ", ".join(f"@{f.name}" for f in self.entry_points)
        return f"<Module {listed or 'of none'}, {len(self.executables)} executables>"

    @property
    def main(self) -> Function:
        return self.functions["main"]

    @property
    def executables(self) -> list[Function]:
        return [f for f in self.functions.values() if f.kind == "executable"]

    @property
    def entry_points(self) -> list[Function]:
        return [f for f in self.functions.values() if f.kind == "function"]


def is_kept(dtype: DType, wide: DType) -> bool:
    """Whether `wide` represents every value of `dtype` exactly."""
    if dtype.is_integer and wide is DType.F64 and dtype.bits > 32:
        return False  # which numpy calls safe
    return dtype is wide or bool(np.can_cast(dtype.numpy, wide.numpy, "safe"))


def casts_as_one(source: DType, between: DType, to: DType) -> bool:
    """Whether a cast to `between` and then to `to` equals a cast to `to`: integers wrap, but a
    float in between saturates."""
    saturates = source.is_integer and between.is_float and to.is_integer
    return is_kept(source, between) and (not saturates or is_kept(source, to))
