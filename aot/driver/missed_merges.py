"""Missed-merge remarks: pairs of executables that almost became one, and the difference that kept
them apart.

Finds the first difference of each pair and the rule that kept the two apart. Runs after all
merging, and merges and changes nothing. Takes linear time: an executable is compared with the next
one that does the same ops, and with the next one that differs in one op, never with all others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

from aot.analysis.dispatches import dispatches_of
from aot.analysis.stages import heaviest, plans_of, stages_of
from aot.base.records import dataclass
from aot.ir.compare import attr_key
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Attr, ConstantData, Function, Module, Op, Value
from aot.ir.schedule import Schedule
from aot.ir.text.printer import print_attr, print_op
from aot.ir.types import DType, TensorType
from aot.passes.specialise.slots import SMALL, Family, family_of, groups_of, have_common_groups
from aot.target.model import Target

# Of a module with very many executables, only those with the most code are compared, and only the
# pairs that would save the most bytes are reported.
MAX_EXECUTABLES, MAX_PAIRS = 2000, 100

_BINDINGS = ("constants", "arena", "inputs", "outputs")
_NOTHING = "(nothing)"


@dataclass(frozen=True)
class Difference:
    """The first difference between two executables: the rule that it violates, and the IR of
    each."""

    rule: str
    first: str
    second: str


@dataclass(frozen=True)
class Settings:
    """The compile options that matter for missed merges."""

    optimize: str = "balanced"
    despecialise: bool = True


def missed_merges(
    module: Module, sizes: Mapping[str, int], target: Target, settings: Settings
) -> list[dict[str, Any]]:
    """Pairs of executables that differ in one respect only, largest saving of code first.

    Args:
        sizes: bytes of code, by executable.

    Returns:
        A dict a pair: `executables`, their `nodes` (where each is first dispatched), the `rule`
        that kept them apart, the `first` and `second` text, and `bytes` of code that one for both
        would save.
    """
    calls: dict[str, Op] = {}
    for op, name in dispatches_of(module):
        calls.setdefault(name, op)
    called = [f for f in module.executables if f.name in calls]
    largest = set(sorted(called, key=lambda f: -sizes[f.name])[:MAX_EXECUTABLES])
    known = [
        _Executable(f, calls[f.name].attrs.get("ties", ()), target) for f in called if f in largest
    ]
    found = []
    position = {executable: number for number, executable in enumerate(known)}
    for pair in _pairs(known):
        a, b = sorted(pair, key=position.__getitem__)
        made = difference(a, b, settings)
        names = (a.function.name, b.function.name)
        found.append(
            {
                "executables": list(names),
                "nodes": [calls[name].origin for name in names],
                "rule": made.rule,
                "first": made.first,
                "second": made.second,
                "bytes": min(sizes[name] for name in names),
            }
        )
    found.sort(key=_saved, reverse=True)
    return found[:MAX_PAIRS]


def _saved(miss: Mapping[str, Any]) -> int:
    return int(miss["bytes"])


class TypeKey(NamedTuple):
    """A type without the extents that parameters can replace, which are -1."""

    dtype: DType
    dims: tuple[Dim, ...]
    order: Hashable
    gaps: Hashable


class OpKey(NamedTuple):
    """An op's attributes and result types, without the numbers that parameters can replace."""

    attrs: tuple[tuple[str, Hashable], ...]
    results: tuple[TypeKey, ...]


class Key(NamedTuple):
    """An executable's body, without the numbers that parameters can replace."""

    inputs: tuple[TypeKey, ...]
    ops: tuple[OpKey, ...]


def _key(family: Family) -> Key:
    """The body's key with names for its parts."""
    found: Any = family.key
    (types, ops), _ = found
    made = [OpKey(attrs, tuple(map(_type_key, results))) for _, _, attrs, results in ops]
    return Key(tuple(map(_type_key, types)), tuple(made))


def _type_key(found: Any) -> TypeKey:
    dtype, dims, *rest = found
    if len(rest) == 1:  # split: the layout itself
        return TypeKey(dtype, dims, (rest[0].splits, rest[0].order), rest[0].strides)
    return TypeKey(dtype, dims, *rest)


class _Executable:
    """An executable with everything that identifies it for merging: its body's key, operand ties,
    and stage schedules."""

    def __init__(self, function: Function, ties: Attr, target: Target) -> None:
        self.function = function
        self.ties = ties
        self.ops = tuple(op.name for op in function.block)
        self.plans = plans_of(function, target)
        family, _ = family_of(function, self.plans, has_classes=target.has_workgroups)
        self.classes = family.classes
        self.key = _key(family)
        self.schedules = family.schedules
        self.word_sums = family.word_sums
        self.known = family.known
        self.is_row_a_query = family.is_row_a_query
        self.is_for_gpu = target.has_workgroups
        # sorted by what no parameter can change, those that differ in extents alone are neighbours
        stages = zip(stages_of(function.block, function.results), self.plans, strict=True)
        other = {heaviest(s.ops) for s, plan in stages if plan.schedule is Schedule.WINOGRAD}
        looks = [_look(v, is_other=v.op in other) for v in _values(function)]
        self.order = repr((*looks, function.bindings))


def _look(value: Value, *, is_other: bool) -> tuple[Hashable, ...]:
    """The part of a value and its op that no parameter can change; `is_other` ignores the
    algorithm.
    """
    type, layout, op = value.type, value.type.layout, value.op
    small = [d if isinstance(d, int) and d < SMALL else -1 for d in type.dims]
    attrs = [] if op is None else sorted((n, _attr_text(a)) for n, a in op.attrs.items())
    return (
        str(type.dtype),
        type.rank,
        str(layout and layout.order),
        str(small),
        is_other,
        str(attrs),
    )


def _attr_text(value: Attr) -> str:
    if isinstance(value, ConstantData):
        return f"{value.type} {value.digest}"
    return repr(attr_key(value))


def _values(function: Function) -> Iterator[Value]:
    yield from function.inputs
    for op in function.block:
        yield from op.results


def _pairs(known: Sequence[_Executable]) -> Iterator[tuple[_Executable, _Executable]]:
    """Pairs of executables worth comparing: at most two for each executable."""
    by_ops: dict[tuple[str, ...], list[_Executable]] = {}
    for executable in known:
        by_ops.setdefault(executable.ops, []).append(executable)
    for same in by_ops.values():
        yield from pairwise(sorted(same, key=lambda e: e.order))
    for one, other in pairwise(sorted(by_ops)):
        if _is_close(one, other):
            yield by_ops[one][0], by_ops[other][0]


def _is_close(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two lists of ops are equal except for one op; `return` does not count."""
    ahead = _common(one, other)
    behind = min(_common(one[::-1], other[::-1]), min(len(one), len(other)) - ahead)
    return ahead + behind > 1 and ahead + behind >= max(len(one), len(other)) - 1


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def difference(a: _Executable, b: _Executable, settings: Settings) -> Difference:
    """The reason why two executables were not merged: the first difference in their text, or the
    cost decision if only extents differ.
    """
    first, second = a.function, b.function
    if len(first.inputs) != len(second.inputs):
        texts = [f"{len(f.inputs)} operands" for f in (first, second)]
        return Difference("one reads more buffers", texts[0], texts[1])
    keys = [e.key.inputs for e in (a, b)]
    for number, (x, y) in enumerate(zip(first.inputs, second.inputs, strict=True)):
        rule = _type_rule(x.type, y.type, keys[0][number], keys[1][number])
        if rule:
            return Difference(rule, f"operand {number}: {x.type}", f"operand {number}: {y.type}")
    found = _body_difference(a, b)
    if found is not None:
        return found
    are_compiled_in = a.is_for_gpu or not settings.despecialise
    if a.classes != b.classes or (are_compiled_in and first.bindings != second.bindings):
        texts = [" ".join(map(_class_text, f.bindings)) for f in (first, second)]
        return Difference("their buffers are of other classes", texts[0], texts[1])
    if are_compiled_in and attr_key(a.ties) != attr_key(b.ties):
        ties = [f"ties {print_attr(e.ties)}" for e in (a, b)]
        return Difference("one may write over an operand that the other keeps", ties[0], ties[1])
    if a.word_sums != b.word_sums:
        texts = [", ".join(f"{print_attr(n)} terms" for n in e.word_sums) for e in (a, b)]
        return Difference("scratch is as large as their sums of bytes are", texts[0], texts[1])
    groups = [groups_of(f) for f in (first, second)]
    if not have_common_groups(groups):
        texts = [
            ", ".join(f"{g.number} groups of {g.columns} columns" for g in own) for own in groups
        ]
        are_lanes = any(g.is_depthwise for own in groups for g in own)
        rule = "a lane's group must be known" if are_lanes else "a tile must not straddle groups"
        return Difference(rule, texts[0], texts[1])
    return _extents(a, b, settings)


def _class_text(place: int | str) -> str:
    return place if isinstance(place, str) else _BINDINGS[place]


def _body_difference(a: _Executable, b: _Executable) -> Difference | None:
    numbers: list[dict[Value | None, int]] = [{None: -1}, {None: -1}]
    for executable, known in zip((a, b), numbers, strict=True):
        for value in _values(executable.function):
            known[value] = len(known)
    ops = zip_longest(a.function.block, b.function.block)
    for number, (x, y) in enumerate(ops):
        if x is None or y is None:
            texts = [print_op(op) if op is not None else _NOTHING for op in (x, y)]
            return Difference("one does more", texts[0], texts[1])
        rule = _op_rule(x, y, numbers, (a.key.ops[number], b.key.ops[number]))
        if rule:
            return Difference(rule, print_op(x), print_op(y))
    return None


def _op_rule(
    x: Op, y: Op, numbers: Sequence[Mapping[Value | None, int]], keys: tuple[OpKey, OpKey]
) -> str | None:
    if x.name != y.name:
        return "they compute different ops"
    operands = [[known[v] for v in op.operands] for op, known in zip((x, y), numbers, strict=True)]
    if operands[0] != operands[1]:
        return "operands are others, or in another order"
    known = [dict(key.attrs) for key in keys]
    for name in sorted({*known[0], *known[1]}):
        if known[0].get(name) != known[1].get(name):
            return _attr_rule(name, x, y)
    for number, (a, b) in enumerate(zip(x.results, y.results, strict=True)):
        rule = _type_rule(a.type, b.type, keys[0].results[number], keys[1].results[number])
        if rule:
            return rule
    return None


def _attr_rule(name: str, x: Op, y: Op) -> str:
    """Why a differing attribute cannot be a parameter."""
    one, other = x.attrs.get(name), y.attrs.get(name)
    if isinstance(one, ConstantData) and isinstance(other, ConstantData):
        if one.type != other.type:
            return "constants of other types are part of the code"
        return "a constant's bytes are part of the code"
    kinds = {a.name: a.type for a in x.record.attributes}
    if kinds.get(name) in ("dim", "dims"):
        return _dims_rule(_flat(one), _flat(other), f"in attribute {name}")
    return f"attribute {name} is compiled in"


def _flat(value: Attr | None) -> list[Dim]:
    if isinstance(value, tuple):
        return [dim for each in value for dim in _flat(each)]
    return [value] if isinstance(value, (int, DimExpr)) else []


def _dims_rule(x: Sequence[Dim], y: Sequence[Dim], where: str) -> str:
    """Why differing dims cannot be parameters."""
    if len(x) != len(y):
        return f"they have other numbers of dims {where}"
    differing = [d for pair in zip(x, y, strict=True) if pair[0] != pair[1] for d in pair]
    smallest = min((d for d in differing if isinstance(d, int)), default=SMALL)
    if smallest < 2:
        return f"a {smallest} {where} leaves a loop or a step out, so it is no parameter"
    return (
        f"numbers below {SMALL} {where} change loops (kernels, strides, pads), so they are no "
        "parameters"
    )


def _type_rule(x: TensorType, y: TensorType, x_key: TypeKey, y_key: TypeKey) -> str | None:
    """Why two types cannot be made equal by parameters; None if they can."""
    if x_key == y_key:
        return None
    if x.dtype is not y.dtype:
        return "element types are compiled in"
    if x_key.dims != y_key.dims:
        return _dims_rule(x.dims, y.dims, "in a shape")
    if x_key.order != y_key.order:
        return "the order of dims in memory is compiled in"
    return "one is dense and the other a part of something larger, with strides"


def _plan_text(schedule: tuple[Schedule, bool, tuple[int, int]]) -> str:
    kind, is_window, (shares, staged) = schedule
    text = f"{kind.value} by windows" if is_window else str(kind.value)
    text = text if shares == 1 else f"{text} in {shares} shares"
    return f"{text}, {staged} terms at a time in shared memory" if staged else text


def _extents(a: _Executable, b: _Executable, settings: Settings) -> Difference:
    """The reason why two executables that differ only in extents were not merged."""
    x, y = next(
        (
            (x, y)
            for x, y in zip(_values(a.function), _values(b.function), strict=True)
            if x.type != y.type
        ),
        (None, None),
    )
    texts = [f"%{n}: {v.type}" if v is not None else _NOTHING for n, v in ((0, x), (0, y))]
    texts = [text.replace("%0: ", "") for text in texts]
    if a.known != b.known:
        own = [[k for k in x.known if k not in y.known] for x, y in ((a, b), (b, a))]
        known, *_ = (*own[0], *own[1])
        texts = [", ".join(f"{k.value} of {print_attr(k.dims)}" for k in ks) for ks in own]
        return Difference(f"kernels of {known.kernels} must know their {known.what}", *texts)
    if a.is_row_a_query != b.is_row_a_query:
        return Difference("on a GPU few queries have several rows of lanes each", *texts)
    if a.schedules != b.schedules:
        first, second = (", ".join(map(_plan_text, e.schedules)) for e in (a, b))
        return Difference("they run by other schedules", f"plan {first}", f"plan {second}")
    if not settings.despecialise:
        return Difference("only extents differ, and despecialising is off", *texts)
    tiles = [" ".join(f"{p.rows}x{p.columns}" for p in e.plans) for e in (a, b)]
    if tiles[0] != tiles[1]:
        texts = [f"{text}, tile {tile}" for text, tile in zip(texts, tiles, strict=True)]
    return Difference(
        "only extents differ: sharing would take more code, or more time than --optimize "
        f"{settings.optimize} allows",
        *texts,
    )
