"""Op records: the single definition of an op, from which verifier, parser, docs, interpreter and
tests derive.

Owns the record's form and the registry. Importing aot.ops fills it, a file a family; no other
place lists ops by name.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any

from aot.base.records import dataclass
from aot.errors import CompileError, InternalError
from aot.ir import dims
from aot.ir.attributes import Attributed
from aot.ir.body import Body
from aot.ir.contraction import ContractionDims
from aot.ir.dims import Dim, DimExpr
from aot.ir.expr import Expr, Var
from aot.ir.graph import Assumption, Attr, ConstantData, FunctionRef, Op
from aot.ir.index_map import IndexMap
from aot.ir.types import DType, DTypeKind, Layout, TensorType

if TYPE_CHECKING:
    from aot.ir.mapped_operand import LayoutRule


def _of_kind(kind: DTypeKind) -> frozenset[DType]:
    """The dtypes of a kind in which some target computes."""
    return frozenset(d for d in DType if d.kind is kind and not d.is_storage_only)


FLOATS, SIGNED, UNSIGNED = map(_of_kind, (DTypeKind.FLOAT, DTypeKind.SIGNED, DTypeKind.UNSIGNED))
INTEGERS = SIGNED | UNSIGNED
NUMBERS = FLOATS | INTEGERS
STORED_ONLY = frozenset(d for d in DType if d.is_storage_only)
ANY = NUMBERS | STORED_ONLY | {DType.BOOL}
BOOL = _of_kind(DTypeKind.BOOL)


class Kind(Enum):
    """The kind of an op's work; passes and the plan depend on it and not on op names.

    STRUCTURE: constants, returns, dispatches, control.
    VIEW: the result is the operand's bytes under another type.
    ELEMENTWISE: one result element from one element of each operand (broadcast allowed).
    MOVEMENT: result elements are chosen operand elements.
    REDUCTION: `compute` has a Reduce.
    CONTRACTION: a sum of products of two operands.
    RECURRENCE: a loop over steps; the kernel is written by hand in aot/kernels.
    SCAN, SCATTER, SORT: serial work along lines of an axis; the kernel is written by hand as well.
    ATTENTION: a mix of values by a softmax; the kernel is written by hand, but takes in what only
        renames or cheaply computes the elements that it loads and stores.
    SHAPE: depends on types only.
    """

    STRUCTURE = "structure"
    VIEW = "view"
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    RECURRENCE = "recurrence"
    SCAN = "scan"
    SCATTER = "scatter"
    SORT = "sort"
    ATTENTION = "attention"
    SHAPE = "shape"

    @property
    def has_handwritten_kernel(self) -> bool:
        """Whether the kernel is written by hand, for the one op."""
        return self in _HANDWRITTEN

    @property
    def blocks_fusion(self) -> bool:
        """Whether the kernel is handwritten and cannot include other ops, so that nothing fuses
        with it."""
        return self.has_handwritten_kernel and self is not Kind.ATTENTION


_SUMMING = (Kind.REDUCTION, Kind.CONTRACTION, Kind.RECURRENCE, Kind.SCAN, Kind.ATTENTION)
_HANDWRITTEN = (Kind.RECURRENCE, Kind.SCAN, Kind.SCATTER, Kind.SORT, Kind.ATTENTION)


@dataclass(frozen=True)
class Operand:
    """A declared operand of an op.

    Attributes:
        kind: "required", "optional" (may be None) or "variadic" (last, one or more).
        same_as: name of an operand whose dtype this one must have.
        is_mixed: variadic operands may differ in dtype.
        clamps: an integer beyond a narrower dtype means what that dtype's last value means.
    """

    name: str
    dtypes: frozenset[DType] = ANY
    kind: str = "required"
    same_as: str | None = None
    is_mixed: bool = False
    clamps: bool = False


_REQUIRED = object()


@dataclass(frozen=True)
class Attribute:
    """The declaration of an op's attribute. `type` is one of int, float, bool, str, dtype, dims,
    ints, dim, data, function, layout, map.

    ints is a tuple of int; dims a tuple whose items may be symbolic; map an index map's steps.
    """

    name: str
    type: str
    default: Any = _REQUIRED
    doc: str = ""

    @property
    def is_required(self) -> bool:
        return self.default is _REQUIRED

    def accepts(self, value: Any) -> bool:
        """Whether `value` has the attribute's type; the default always has."""
        return value is self.default or _ATTRIBUTE_TYPES[self.type](value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_dim(value: Any) -> bool:
    return _is_int(value) or isinstance(value, DimExpr)


def _is_map(value: Any) -> bool:
    try:
        IndexMap.of_attr(value)
    except ValueError:
        return False
    return True


_ATTRIBUTE_TYPES: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "float": lambda v: _is_int(v) or isinstance(v, float),
    "bool": lambda v: isinstance(v, bool),
    "str": lambda v: isinstance(v, str),
    "dtype": lambda v: isinstance(v, DType),
    "dim": _is_dim,
    "dims": lambda v: isinstance(v, tuple) and all(map(_is_dim, v)),
    "ints": lambda v: isinstance(v, tuple) and all(map(_is_int, v)),
    "data": lambda v: isinstance(v, ConstantData),
    "function": lambda v: isinstance(v, FunctionRef),
    "layout": lambda v: isinstance(v, Layout),
    "map": _is_map,
}


@dataclass(frozen=True)
class Constraint:
    """A rule beyond dtypes; `text` is the user's message, `holds` decides."""

    text: str
    holds: Callable[[Call], bool]


@dataclass(frozen=True)
class Need:
    """A condition on dynamic extents, `least <= most`. A program checks it; `what` begins the error
    message of a run that violates it."""

    least: Dim
    most: Dim
    what: str

    @property
    def room(self) -> Dim:
        """The difference `most - least`, which must not be negative."""
        return dims.add(self.most, dims.multiply(self.least, -1))


@dataclass(frozen=True)
class Compute:
    """The definition of a result: its element `indices` is `value`, whose loads refer to operands
    by number."""

    indices: tuple[Var, ...]
    value: Expr


@dataclass(frozen=True)
class Sample:
    """A call that must work everywhere: operand types (None is absent) and attributes.

    Attributes:
        low, high: range that float operands are drawn from, and the integer ones.
        constant_operands: operands that a compiled model would have as constants.
    """

    operands: tuple[TensorType | None, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    low: float = -2.0
    high: float = 2.0
    constant_operands: tuple[int, ...] = ()


@dataclass
class Call(Attributed):
    """One use of an op, as rules see it: operand types and complete attributes.

    Attributes:
        assumptions: equalities of dims that the shape rule took for granted.
        is_exact: reference semantics must use a fixed order of summation and no CPU-dependent
            routine, because the result goes into the product.
    """

    record: OpRecord
    operands: tuple[TensorType | None, ...]
    attrs: dict[str, Attr]
    origin: str = ""
    assumptions: list[Assumption] = field(default_factory=list)
    result_types: tuple[TensorType, ...] = ()
    is_exact: bool = False

    def operand(self, index: int) -> TensorType:
        """The type of an operand, which must be present."""
        found = self.operands[index]
        assert found is not None  # `check` has seen it, and what types attributes have
        return found

    @property
    def contraction(self) -> ContractionDims | None:
        """The roles of the call's dims, if it is a contraction; else None."""
        return None if self.record.contraction is None else self.record.contraction(self)

    def has(self, index: int) -> bool:
        return index < len(self.operands) and self.operands[index] is not None

    def equal(self, a: Dim, b: Dim, reason: str) -> bool:
        """Whether dims are equal; undecidable symbolic cases are assumed to be, and recorded."""
        if a == b:
            return True
        if isinstance(a, int) and isinstance(b, int):
            return False
        from aot.ir.dims import bounds

        difference = a - b if isinstance(a, DimExpr) else -(b - a)
        low, high = bounds(difference, {})
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        self.assumptions.append(Assumption(a, b, reason))
        return True

    def error(self, message: str) -> CompileError:
        where = f" (node {self.origin!r})" if self.origin else ""
        return CompileError(f"{self.record.name}{where}: {message}")


_shape_rule_calls: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar(
    "shape_rule_calls", default=None
)


class count_shape_rules:  # noqa: N801 - used like a function
    """A context manager that counts the shape rules called inside it; `.calls` is the number so
    far.

    A counter inside another adds to it when it ends, unless `is_hidden`: checks that are no part
    of compiling, such as verifying after each pass, stay out of the statistics.
    """

    def __init__(self, *, is_hidden: bool = False) -> None:
        self._is_hidden = is_hidden

    def __enter__(self) -> count_shape_rules:
        self._cell = [0]
        self._token = _shape_rule_calls.set(self._cell)
        return self

    def __exit__(self, *_: object) -> None:
        _shape_rule_calls.reset(self._token)
        outer = _shape_rule_calls.get()
        if outer is not None and not self._is_hidden:
            outer[0] += self._cell[0]

    @property
    def calls(self) -> int:
        return self._cell[0]


@dataclass(frozen=True)
class OpRecord:
    """The definition of an op.

    Attributes:
        infer: shape rule: result types from a checked Call.
        reference: numpy semantics: operand arrays (None where absent) to result arrays. Ops that
            compute with shapes also accept object arrays of dims.
        compute: per-element meaning, one Compute a result; None where a kernel is written by hand
            or the op is never a kernel.
        contraction: what the dims of the operands do, for Kind.CONTRACTION; of a checked Call with
            result types.
        sums_in: the dtype in which a contraction sums and of its result, where that is not the
            operands' own.
        flops: arithmetic operations of a call, of an op without `compute` or one that says its
            meaning by more of them than it stands for; None: there are none, or those of `compute`.
        kind: see Kind.
        view_of: operand whose bytes the result is, for Kind.VIEW.
        index_map: which element of the only operand each element of the result is, as steps;
            None where it is not that simple.
        needs: what must hold of open extents for the op to stay inside its operands; of a slice
            `index_map` says it.
        writes: operands that the op writes.
        propagate: how the op runs on operands behind index maps (aot/ops/layout_rules.py); None:
            the maps are carried out first.
        is_cheap: recomputing it costs less than storing it.
        jumps: operands of floats that make floats of which a last bit may change much more than
            last bits: those of floor. Where the result is no float, every operand of floats does.
        edges: operands with a last number before an infinity or NaN: a divisor, those of roots.
        is_approximate: a result of floats has no one right last bit, as that of a sum or of exp;
            None: as its kind says, see `rounds_freely`.
        is_commutative: operands may be swapped.
        takes_dims: `reference` works on object arrays of dims, so that shape arithmetic folds.
        results_from: "rule": `infer` gives the result types; "block": the op runs
            blocks, as `body` says, and its results are what they yield; "callee":
            it runs the function that its attribute of type function names, with attribute `dims`,
            if it has one, as the function's dim parameters.
        body: how it runs its blocks, for results_from "block".
        is_state: its result is the memory of the state variable that attribute `variable` names.
        has_unknown_effects: it may read and write all that its operands lead to and all memory that
            others see, and its results may be any of that.
        container: "holds": the result keeps its operands and has no memory of its own; "opens":
            the result may also be anything that operand `view_of` keeps. "joins": the result is
            its operands' memory, side by side.
        room: results that are memory for its kernel to work in: there whether something reads them
            or not.
        unsupported: why no program can run it yet; "" if it can.
    """

    name: str
    summary: str
    operands: tuple[Operand, ...]
    infer: Callable[[Call], Sequence[TensorType]]
    kind: Kind
    attributes: tuple[Attribute, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    reference: Callable[[Call, Sequence[Any]], Sequence[Any]] | None = None
    compute: Callable[[Call], Sequence[Compute]] | None = None
    contraction: Callable[[Call], ContractionDims] | None = None
    sums_in: DType | None = None
    flops: Callable[[Call], Dim] | None = None
    view_of: int | None = None
    index_map: Callable[[Call], IndexMap] | None = None
    needs: Callable[[Call], Sequence[Need]] | None = None
    writes: tuple[int, ...] = ()
    propagate: LayoutRule | None = None
    is_terminator: bool = False
    has_side_effects: bool = False
    is_cheap: bool = False
    jumps: tuple[int, ...] = ()
    edges: tuple[int, ...] = ()
    is_approximate: bool | None = None
    is_commutative: bool = False
    takes_dims: bool = False
    results_from: str = "rule"
    body: Body | None = None
    is_state: bool = False
    has_unknown_effects: bool = False
    container: str = ""
    unsupported: str = ""
    room: tuple[int, ...] = ()
    samples: tuple[Sample, ...] = ()

    @property
    def rounds_freely(self) -> bool:
        """Whether two correct implementations may differ in the last bits of a float result: in
        sums, whose order is open, and in functions that are not correctly rounded."""
        if self.is_approximate is not None:
            return self.is_approximate
        return self.kind in _SUMMING

    @property
    def is_isolated(self) -> bool:
        """Whether blocks of the op can use only their own arguments."""
        return self.body is not None and self.body.is_isolated

    def call(
        self, operands: Sequence[TensorType | None], attrs: Mapping[str, Attr], origin: str = ""
    ) -> Call:
        """Checks operands, attributes and constraints, and runs the shape rule.

        Raises:
            CompileError: naming the node, the rule, what was expected and what was found.
        """
        made = self.check(operands, attrs, origin)
        cell = _shape_rule_calls.get()
        if cell is not None:
            cell[0] += 1
        made.result_types = tuple(self.infer(made))
        for number, type in enumerate(made.result_types):
            if type.problem:
                raise made.error(f"result {number} would be {type}: {type.problem}")
        return made

    def check(
        self, operands: Sequence[TensorType | None], attrs: Mapping[str, Attr], origin: str = ""
    ) -> Call:
        """Checks as `call` does, but without the shape rule: the call has no result types yet.

        Raises:
            CompileError: as `call`.
        """
        made = Call(self, tuple(operands), self._complete(attrs, origin), origin)
        self._check_operands(made)
        for number, constraint in enumerate(self.constraints, 1):
            if not constraint.holds(made):
                types = ", ".join("none" if t is None else str(t) for t in made.operands)
                raise made.error(
                    f"constraint {number}: {constraint.text}; found operands ({types})"
                )
        return made

    def _complete(self, attrs: Mapping[str, Attr], origin: str) -> dict[str, Attr]:
        complete: dict[str, Attr] = {}
        known = {a.name for a in self.attributes}
        where = f" (node {origin!r})" if origin else ""
        for name in attrs:
            if name not in known:
                raise CompileError(
                    f"{self.name}{where}: unknown attribute {name!r}, "
                    f"expected one of {sorted(known)}"
                )
        for attribute in self.attributes:
            if attribute.name in attrs:
                value = attrs[attribute.name]
                if not attribute.accepts(value):
                    raise CompileError(
                        f"{self.name}{where}: attribute {attribute.name} is "
                        f"{value!r}, expected {attribute.type}"
                    )
                complete[attribute.name] = value
            elif attribute.is_required:
                raise CompileError(f"{self.name}{where}: attribute {attribute.name!r} is missing")
            else:
                complete[attribute.name] = attribute.default
        return complete

    def _check_operands(self, call: Call) -> None:
        specs = list(self.operands)
        while specs and specs[-1].kind == "variadic" and len(specs) < len(call.operands):
            specs.append(specs[-1])
        if len(call.operands) > len(specs):
            raise call.error(f"has {len(call.operands)} operands, expected at most {len(specs)}")
        by_name: dict[str, DType] = {}
        for number, spec in enumerate(specs):
            found = call.operands[number] if number < len(call.operands) else None
            if found is None:
                if spec.kind == "required":
                    raise call.error(f"operand {number} ({spec.name}) is missing")
                continue
            if found.dtype not in spec.dtypes:
                allowed = ", ".join(sorted(d.value for d in spec.dtypes))
                raise call.error(
                    f"operand {number} ({spec.name}) is {found.dtype}, expected one of {allowed}"
                )
            wanted = by_name.get(spec.same_as or spec.name)
            if (
                wanted is not None
                and found.dtype is not wanted
                and (spec.same_as is not None or (spec.kind == "variadic" and not spec.is_mixed))
            ):
                raise call.error(
                    f"operand {number} ({spec.name}) is {found.dtype}, "
                    f"expected {wanted} as {spec.same_as or spec.name}"
                )
            by_name.setdefault(spec.name, found.dtype)


REGISTRY: dict[str, OpRecord] = {}


def register(record: OpRecord) -> OpRecord:
    """Adds a record to the table; its name must be new, and its effects consistent."""
    if record.name in REGISTRY:
        raise InternalError(f"op {record.name!r} is defined twice")
    problem = effects_problem(record)
    if problem:
        raise InternalError(f"op {record.name!r}: {problem}")
    REGISTRY[record.name] = record
    return record


def effects_problem(record: OpRecord) -> str:
    """Why a record's declared effects are inconsistent; "" if they are not."""
    is_variadic = bool(record.operands) and record.operands[-1].kind == "variadic"
    named = [*record.writes, *(() if record.view_of is None else (record.view_of,))]
    if any(n < 0 or (n >= len(record.operands) and not is_variadic) for n in named):
        return "its effects name an operand that it has not"
    if record.has_unknown_effects and named:
        return "its effects are unknown, and it says which operands it writes or shows"
    if record.has_unknown_effects and not record.has_side_effects:
        return "its effects are unknown, so that it must count as having side effects"
    if record.writes and record.compute is not None:
        return "it writes operands, so that its results are not all that it does"
    if record.writes and (record.is_cheap or record.is_commutative):
        return "it writes operands: it can't be recomputed, nor its operands be swapped"
    if record.container == "opens" and record.view_of is None:
        return "it opens a container and does not say which operand that is"
    if record.container not in ("", "holds", "opens", "joins"):
        return f"a container {record.container!r} is not known"
    if (record.results_from == "block") != (record.body is not None):
        return "results come from blocks where there is a body, and only there"
    if record.is_state and not any(a.name == "variable" for a in record.attributes):
        return "it is a state variable's memory and has no attribute variable"
    return ""


def lookup(name: str) -> OpRecord:
    """The record of op `name`.

    Raises:
        CompileError: there is none.
    """
    if name not in REGISTRY:
        raise CompileError(f"there is no op {name!r}; docs/internals/ops.md lists them")
    return REGISTRY[name]


def contraction_of(op: Op) -> ContractionDims | None:
    """The roles of a contraction op's dims; None for other ops."""
    return None if op.record.contraction is None else call_of(op).contraction


def call_of(op: Op, *, is_exact: bool = False) -> Call:
    """The call of a record that `op` represents, with the op's stored types; no shape rule runs.

    In an executable the stored types count, because they name its own dim parameters.
    """
    return Call(
        op.record,
        op.operand_types,
        op.attrs,
        op.origin,
        is_exact=is_exact,
        result_types=tuple(v.type for v in op.results),
    )
