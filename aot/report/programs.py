"""The part of a report about a program: a row for each dispatch, and the drawing of the arena.

Owns how instructions, details and what dispatches do are brought together. Computes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from aot.analysis.launches import Launch
from aot.base.records import dataclass
from aot.ir.dims import Dim
from aot.link.image import EntryPointImage, VariantImage
from aot.link.program import Instruction, constant_value, decode
from aot.report import drawings, graphs
from aot.report.numbers import Figure, amount, count, extents, ratio, size

if TYPE_CHECKING:
    from aot.report.details import DispatchDetails, EntryDetails

# What the rows of a program are beside dispatches, and which operand is their bytes.
_LENGTHS = {"COPY": 4, "FILL": 2, "TO_HOST": 2, "TO_DEVICE": 2}
_LAUNCHES = ("DISPATCH", *_LENGTHS)


@dataclass(frozen=True)
class Row:
    """A dispatch, copy or fill in the report's table.

    Attributes:
        number: of a dispatch among them.
        ops: that are computed in it, as the text form calls them.
        nodes: of the model that these came from, each once.
        reads: of what other dispatches it reads what, and why that is not computed in it.
    """

    number: int | None
    kind: str
    node: str
    executable: str
    grid: str
    flops: Figure | str
    bytes: Figure | str
    share: Figure | None
    ops: str
    nodes: Sequence[str] = ()
    within: str = ""
    reads: Sequence[tuple[str, Sequence[str]]] = ()


def rows_of(
    entry: EntryPointImage,
    image: VariantImage,
    details: EntryDetails,
    launches: Sequence[Launch],
) -> Iterator[Row]:
    """A row for each dispatch, copy and fill, in program order."""
    held = _constants_in(entry.program.code)
    total = sum(n.flops for n in launches if isinstance(n.flops, int))
    number = 0
    for instruction in (i for i in decode(entry.program.code) if i.name in _LAUNCHES):
        if instruction.name != "DISPATCH":
            yield _transfer(instruction, held)
            continue
        launch = launches[number] if number < len(launches) else None
        executable = image.executables[instruction.operands[0]]
        name = executable.name + ", on the host" * image.is_cpu_fallback(executable)
        yield _dispatch_row(number, name, details.dispatches[number], launch, total)
        number += 1


def _dispatch_row(
    number: int, executable: str, about: DispatchDetails, launch: Launch | None, total: int
) -> Row:
    region = about.region or {}
    ops = [op["op"] for op in region.get("ops", ())]
    nodes = list(dict.fromkeys(op["node"] for op in region.get("ops", ()) if op["node"]))
    roots = [root["node"] for root in region.get("roots", ()) if root["node"]]
    flops = None if launch is None else launch.flops
    node = launch.origin if launch is not None and launch.origin else "".join(roots[:1])
    return Row(
        number=number,
        kind="dispatch",
        node=node,
        executable=executable,
        grid=extents(about.grid),
        flops=_dim_figure(flops, amount),
        bytes=_dim_figure(None if launch is None else launch.bytes, size),
        share=ratio(flops, total) if isinstance(flops, int) and total else None,
        ops=", ".join(f"{n} {op}" if n > 1 else op for op, n in Counter(ops).items()),
        nodes=nodes,
        within=", ".join(about.within),
        reads=list(_reads(region)),
    )


@dataclass(frozen=True)
class OpKind:
    """The dispatches of one kind of op, with their amounts; those that are not known count as 0."""

    op: str
    count: Figure
    flops: Figure
    share: Figure
    bytes: Figure


def kinds_of(details: EntryDetails, launches: Sequence[Launch]) -> list[OpKind]:
    """Totals by the op at the root of dispatches, those with most arithmetic first."""
    met: dict[str, list[Launch | None]] = defaultdict(list)
    for number, about in enumerate(details.dispatches):
        launch = launches[number] if number < len(launches) else None
        met[_root_op(about)].append(launch)
    sums = {
        op: [
            sum(n for n in (getattr(each, key, None) for each in found) if isinstance(n, int))
            for key in ("flops", "bytes")
        ]
        for op, found in met.items()
    }
    total = sum(flops for flops, _ in sums.values())
    order = sorted(sums, key=lambda op: (-sums[op][0], -sums[op][1], op))
    return [
        OpKind(
            *(op, count(len(met[op])), amount(sums[op][0])),
            *(ratio(sums[op][0], total), size(sums[op][1])),
        )
        for op in order
    ]


def _root_op(about: DispatchDetails) -> str:
    region = about.region or {}
    roots = region.get("roots") or region.get("ops") or ()
    return str(roots[0]["op"]) if roots else "other"


def graph_of(rows: Sequence[Row], details: EntryDetails) -> Markup | None:
    """The drawing of the dispatches of `rows`; None where there is nothing to see, or too much."""
    known = {row.number: row for row in rows if row.number is not None}
    nodes = [
        graphs.Node(
            number,
            known[number].node or known[number].ops,
            known[number].ops,
            [(read["region"], read["type"]) for read in (about.region or {}).get("reads", ())],
        )
        for number, about in enumerate(details.dispatches)
        if number in known
    ]
    return graphs.graph(nodes)


def _reads(region: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    same = Counter((r["region"], r["type"], tuple(r["why"])) for r in region.get("reads", ()))
    for (source, type, why), times in same.items():
        yield f"{type} of dispatch {source}" + f", {times} times" * (times > 1), why


def _transfer(instruction: Instruction, held: Mapping[int, int]) -> Row:
    kind = instruction.name.lower().replace("_", " ")
    length = held.get(instruction.operands[_LENGTHS[instruction.name]])
    known: Figure | str = "" if length is None else size(length * (2 if kind == "copy" else 1))
    return Row(None, kind, "", kind, "", "", known, None, "")


def _constants_in(code: Sequence[int]) -> dict[int, int]:
    """The constant in each register that is set by exactly one CONST instruction."""
    values: dict[int, list[int]] = defaultdict(list)
    for instruction in decode(code):
        if instruction.name == "CONST":
            register, low, high = instruction.operands
            values[register].append(constant_value(low, high))
    return {register: found[0] for register, found in values.items() if len(found) == 1}


def _dim_figure(dim: Dim | None, form: Any) -> Figure | str:
    if dim is None:
        return ""
    return form(dim) if isinstance(dim, int) else str(dim)


def arena_of(
    entry: EntryPointImage, details: EntryDetails, nodes: Sequence[str], lower_bound: int
) -> tuple[Markup | None, Sequence[str], str]:
    """(drawing of the arena or None, kinds of memory in it, text that says why there is no
    drawing)."""
    program = entry.program
    if details.buffers is None:
        why = (
            "How large buffers are is known at run time only. Bound the open dims with "
            "--input-shape, as in x=1x3xH:..960xW:..960, to see where they would lie at most."
        )
        return None, (), why
    if not details.buffers and not program.state_bytes and not details.scratch:
        return None, (), "Nothing is in the arena."
    boxes = [
        drawings.Box(
            *(b.first, b.last, b.offset, b.size_bytes, "buffer"),
            b.makers[0] if b.makers else None,
            _buffer_name(b.makers, nodes),
        )
        for b in details.buffers
        if b.size_bytes
    ]
    if program.state_bytes:
        what = "state, kept from run to run"
        boxes.append(
            drawings.Box(0, details.positions - 1, 0, program.state_bytes, "state", None, what)
        )
    if program.scratch_offset is not None:
        boxes += [
            drawings.Box(at, at, program.scratch_offset, length, "scratch", None, "scratch")
            for at, length in sorted(details.scratch.items())
            if length
        ]
    ticks = [(d.position, n) for n, d in enumerate(details.dispatches)]
    kinds = list(dict.fromkeys(b.kind for b in boxes))
    return drawings.arena(boxes, details.positions, ticks, lower_bound), kinds, ""


def _buffer_name(makers: Sequence[int], nodes: Sequence[str]) -> str:
    known = [f"{n} {nodes[n]}".strip() for n in makers if n < len(nodes)]
    return f"made by dispatch {', then '.join(known)}" if known else "carried by a loop"
