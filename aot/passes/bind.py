"""bind: makes the user's fixed input shapes and values part of the program.

Requires: shapes and values name inputs of an entry point; no function is outlined yet.
Ensures: an extent that a node computes has the limit that was given for it; an input with a given
    shape has it, and the dims that follow from it are replaced everywhere (types, attributes,
    assumptions); a given bound is an assumption, and minima and maxima that the bounds decide are
    removed; an input with a given value becomes a constant. Assumptions that became true are
    removed.
Never: changes dims that do not follow from what was given, or evaluates ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aot.errors import CompileError
from aot.ir.bounds import Wanted, WantedDim, assumptions_of, bounds_of, parse_wanted
from aot.ir.compare import attr_key, map_dims
from aot.ir.data_dims import extents_of, is_capacity, limit, unlimited
from aot.ir.dims import Dim, DimExpr, Symbol, bounds, narrow, substitute
from aot.ir.equalities import difference
from aot.ir.graph import Assumption, ConstantData, Function, Module, Op, Value
from aot.ir.loops import most_runs
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import Array, DType, TensorType
from aot.passes.base import Pass, PassContext


def run(module: Module, context: PassContext) -> None:
    bind(module, context.options.input_shapes, context.options.input_values)
    bound_extents(module, context.options.max_extents)


def bound_extents(module: Module, most: Mapping[str, int]) -> None:
    """Limits dynamic extents that a model computes, and iterations of loops that only a condition
    ends.

    Args:
        most: of the extents that a node of the model computes, by its name: of those that nothing
            else limits, if there are such; of any extent by its symbol; of runs, by the name of the
            loop.

    Raises:
        CompileError: no extent is computed by such a node, or it has no use for a limit.
    """
    known: dict[str, bool] = {}  # names of nodes, and whether a number has been used
    for function in module.entry_points:
        capacities = _bound_capacities(function, most)
        loops = [op for op in function.walk() if op.name == "loop" and most_runs(op) is not None]
        roots = unlimited(function)
        # extents of nodes other than these have limits, and get less; those of loops are no runs
        kept = {op.origin for op in (*loops, *roots.values())} | capacities.keys()
        kept |= {op.origin for op in function.walk() if op.blocks}
        used: dict[str, bool] = {**capacities, **{op.origin: op.origin in most for op in loops}}
        for name, op in extents_of(function).items():
            is_meant = name in roots or op.origin not in kept
            keys = [name, *([op.origin] if op.origin and is_meant else [])]
            used.setdefault(op.origin or name, False)
            for key in keys:
                if key in most:
                    used[key] = True
                    _limit(function, op, most[key])
        for op in loops:
            if op.origin in most:
                Rewriter(function).set_attr(op, "most", most[op.origin])
        for name, is_used in used.items():
            known[name] = known.get(name, False) or is_used
    _check_used(most, known)


def _limit(function: Function, op: Op, most: int) -> None:
    """Limits the symbol of an `extent` op to at most `most`."""
    dim = op.attrs["dim"]
    assert isinstance(dim, DimExpr)
    where = f"node {op.origin!r}" if op.origin else "the model"
    found = limit(dim, most, f"an extent that {where} computes")
    function.assumptions.update({} if found is None else {found: None})


def _check_used(most: Mapping[str, int], known: Mapping[str, bool]) -> None:
    """Refuses limits that have no effect."""
    for name in most:
        if name not in known:
            listed = ", ".join(repr(n) for n in known if n) or "none"
            raise CompileError(f"no node {name!r} computes an extent, those that do are {listed}")
        if not known[name]:
            raise CompileError(
                f"--max {name!r} (max_extents) has no effect: the model itself limits the extents "
                "that the node computes, and its runs"
            )


def _bound_capacities(function: Function, most: Mapping[str, int]) -> dict[str, bool]:
    """Fixes extents that only the user can know, such as capacities. Returns their names, each with
    whether `most` has a number for it."""
    known: dict[str, bool] = {}
    values: dict[str, Dim] = {}
    for own, op in extents_of(function).items():
        if is_capacity(op):
            known.setdefault(op.origin or own, False)
            for name in (op.origin, own):
                if name in most:
                    known[name] = True
                    values[own] = most[name]
            if own in values:
                Rewriter(function).erase(op)
    if values:
        substitute_symbols(function, values)
    return known


def bind(module: Module, shapes: Mapping[str, Sequence[Wanted]], values: Mapping[str, Any]) -> None:
    """Binds shapes and values of the entry points' inputs, by input name.

    Every entry point that has an input of the name is bound.

    Args:
        shapes: dims; an int fixes an extent, a name or an expression renames or refines it, None
            or "?" leaves it; the text may bound it, as in "H:..960".
        values: arrays, or numbers, which fill an input of known shape.

    Raises:
        CompileError: no entry point has such an input, or it cannot have that shape or value.
    """
    known = list(dict.fromkeys(v.name for f in module.entry_points for v in f.inputs))
    for name in (*shapes, *values):
        if name not in known:
            listed = ", ".join(map(repr, known)) or "none"
            raise CompileError(f"there is no input {name!r}, expected one of {listed}")
    for function in module.entry_points:
        mine = {v.name: v for v in function.inputs}
        asked = {name: _asked(mine[name], dims) for name, dims in shapes.items() if name in mine}
        arrays = {name: _array(mine[name], values[name]) for name in values if name in mine}
        asked |= {name: _asked(mine[name], a.shape) for name, a in arrays.items()}
        if asked:
            substitute_symbols(function, _solve(mine, asked))
            _check_shapes(mine, asked)
        for name, dims in asked.items():
            _bound(function, mine[name], dims)
        _narrow_dims(function)
        for name, array in arrays.items():
            _make_constant(function, mine[name], array)


def _asked(value: Value, given: Sequence[Wanted]) -> tuple[WantedDim, ...]:
    """The user's shape requests for an input, dim by dim."""
    type = value.type
    if len(given) != type.rank:
        raise CompileError(
            f"input {value.name!r} has {type.rank} dims {_listed(type.dims)}, "
            f"{len(given)} are given {_listed(given)}"
        )
    try:
        return tuple(map(parse_wanted, given))
    except ValueError as error:
        raise CompileError(f"shape of input {value.name!r}: {error}") from None


def _bound(function: Function, value: Value, asked: Sequence[WantedDim]) -> None:
    """Adds assumptions for the bounds that the user gave for an input's dims."""
    try:
        for axis, (dim, wanted) in enumerate(zip(value.type.dims, asked, strict=True)):
            found = assumptions_of(dim, wanted, f"input {value.name!r}: dim {axis}")
            function.assumptions.update(dict.fromkeys(found))
    except ValueError as error:
        raise CompileError(str(error)) from None


def _array(value: Value, given: Any) -> Array:
    """The user's value for an input, as an array of the input's dtype."""
    dtype = value.type.dtype
    try:
        found = np.asarray(given)
        known = DType.of(found)
        with np.errstate(all="ignore"):
            array = found.astype(dtype.numpy)
    except (TypeError, ValueError) as error:
        raise CompileError(f"value of input {value.name!r}: {error}") from None
    is_kind = known.kind is dtype.kind or (
        known.is_integer and (dtype.is_integer or dtype.is_float)
    )
    # narrower floats round, as a user who writes 0.1 expects; integers must stay what they are
    is_kept = dtype.is_float or bool((array.astype(found.dtype) == found).all())
    if known is not dtype and not (is_kind and is_kept):
        raise CompileError(f"value of input {value.name!r} is {known}, expected {dtype}")
    if array.ndim == 0 and value.type.rank and value.type.is_static:
        array = np.full(value.type.shape, array)
    return array


def _solve(
    inputs: Mapping[str, Value], shapes: Mapping[str, Sequence[WantedDim]]
) -> dict[str, Dim]:
    """Solves for the values of symbols that give inputs the requested shapes."""
    values: dict[str, Dim] = {}
    origin: dict[str, str] = {}
    for name, shape in shapes.items():
        for axis, (dim, asked) in enumerate(zip(inputs[name].type.dims, shape, strict=True)):
            wanted = asked.dim
            if wanted is None:
                continue
            if isinstance(wanted, int) and wanted < 0:
                raise CompileError(f"input {name!r}: dim {axis} cannot be {wanted}")
            solved = _solve_one(dim, wanted)
            if solved is None:
                if dim != wanted and isinstance(dim, int):
                    raise CompileError(
                        f"input {name!r}: dim {axis} is {dim} in the model, {wanted} is given"
                        + _how_to_open(name, axis, wanted)
                    )
                continue
            symbol, value = solved
            if values.setdefault(symbol, value) != value:
                raise CompileError(
                    f"input {name!r}: dim {axis} makes {symbol} {value}, but "
                    f"{origin[symbol]} makes it {values[symbol]}"
                )
            origin.setdefault(symbol, f"dim {axis} of input {name!r}")
    return values


def _solve_one(dim: Dim, wanted: Dim) -> tuple[str, Dim] | None:
    """(symbol, value) that solves `dim == wanted`, where dim is `a * symbol + b`; None if it has no
    such form."""
    if not isinstance(dim, DimExpr) or len(dim.terms) != 1 or dim == wanted:
        return None
    monomial, factor = dim.terms[0]
    if len(monomial) != 1 or not isinstance(monomial[0], Symbol):
        return None
    rest = difference(wanted, dim.constant)
    exact = rest // factor
    return (monomial[0].name, exact) if difference(rest, exact * factor) == 0 else None


def _how_to_open(name: str, axis: int, wanted: Dim) -> str:
    """What makes a dim symbolic that a model has fixed."""
    if isinstance(wanted, int):
        return ""
    return (
        ": export the model with that dim open, of PyTorch by dynamic_shapes="
        f"{{{name!r}: {{{axis}: {str(wanted)!r}}}}}"
    )


def _listed(dims: Sequence[Wanted]) -> str:
    return f"({', '.join(map(str, dims))})"


def _check_shapes(inputs: Mapping[str, Value], shapes: Mapping[str, Sequence[WantedDim]]) -> None:
    """Checks that inputs have the requested shapes after binding."""
    for name, shape in shapes.items():
        for axis, (dim, wanted) in enumerate(zip(inputs[name].type.dims, shape, strict=True)):
            if wanted.dim is not None and dim != wanted.dim:
                raise CompileError(
                    f"input {name!r}: dim {axis} is {dim} in the model, which "
                    f"cannot be made {wanted.dim}"
                )


def substitute_symbols(function: Function, values: Mapping[str, Dim]) -> None:
    """Replaces symbols in all types, attributes and assumptions of `function`.

    A symbol that an assumption then fixes to a number is replaced too.

    Raises:
        CompileError: an assumption became false, or an extent negative.
    """
    pending = dict(values)
    while pending:
        _substitute_once(function, pending)
        pending = settle_assumptions(function)


def _substitute_once(function: Function, values: Mapping[str, Dim]) -> None:
    given = ", ".join(f"{name} = {dim}" for name, dim in sorted(values.items()))
    _map_dims(function, lambda d: substitute(d, values), given)
    old, function.assumptions = function.assumptions, {}
    for a in old:
        fresh = Assumption(substitute(a.left, values), substitute(a.right, values), a.reason)
        function.assumptions[fresh] = None


def _narrow_dims(function: Function) -> None:
    """Simplifies dims in types and attributes by the known bounds of symbols. Assumptions stay, as
    the bounds are among them."""
    known = bounds_of(function.assumptions)
    if known:
        _map_dims(function, lambda d: narrow(d, known), "its bounds")


def _map_dims(function: Function, map_dim: Callable[[Dim], Dim], given: str) -> None:
    rewriter = Rewriter(function)
    for value in function.inputs:
        _map_type(rewriter, value, map_dim, given)
    for op in function.walk():
        for name, attr in map_dims(op.attrs, map_dim).items():
            if attr_key(attr) != attr_key(op.attrs[name]):
                rewriter.set_attr(op, name, attr)
        for value in (*op.results, *(a for b in op.blocks for a in b.args)):
            _map_type(rewriter, value, map_dim, given)


def _map_type(rewriter: Rewriter, value: Value, map_dim: Callable[[Dim], Dim], given: str) -> None:
    old = value.type
    if old.is_static and (old.layout is None or not old.layout.strides):
        return
    layout = old.layout and old.layout.map_dims(map_dim)
    fresh = TensorType(old.dtype, tuple(map(map_dim, old.dims)), layout)
    if fresh == old:
        return
    if fresh.problem:
        op = value.op
        where = f"input {value.name!r}" if op is None else f"{op.name} (node {op.origin!r})"
        raise CompileError(f"{where}: with {given} its type {old} becomes {fresh}: {fresh.problem}")
    rewriter.set_type(value, fresh)


def settle_assumptions(function: Function) -> dict[str, Dim]:
    """Drops assumptions that are true, and returns the symbols that the others fix to numbers.

    Raises:
        CompileError: an assumption is false whatever its symbols are.
    """
    fixed: dict[str, Dim] = {}
    for assumption in list(function.assumptions):
        zero = difference(assumption.left, assumption.right)
        if zero == 0:
            del function.assumptions[assumption]
            continue
        if not _may_be_zero(zero):
            raise CompileError(
                f"{assumption.reason}: {assumption.left} and {assumption.right} must be equal"
            )
        solved = _solve_one(zero, 0)
        if solved is not None:
            fixed.setdefault(*solved)
    return fixed


def _may_be_zero(zero: Dim) -> bool:
    low, high = bounds(zero, {})
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    # 4*a + 6*b + 1 is never 0: all but the last is even
    return (
        not isinstance(zero, DimExpr)
        or zero.constant % math.gcd(*(coefficient for _, coefficient in zero.terms)) == 0
    )


def _make_constant(function: Function, value: Value, array: Array) -> None:
    """Replaces an input by a constant at the start of the function."""
    rewriter = Rewriter(function, function.block, function.block.first)
    made = insert_constant(rewriter, ConstantData.of(array, value.type))
    if value.name.isidentifier():
        made.name = value.name
    rewriter.replace(value, made)
    rewriter.erase_input(value)


BIND = Pass("bind", run, __doc__)
