"""Prints kernel IR: for people, for golden tests, and as the identity of an executable.

Owns the text form. Two kernels print alike exactly where they are built alike: every dtype, extent,
stride and guard is in the text, while which nodes are shared objects and which are equal copies is
not. Subexpressions that occur twice in a statement are named `%n`, so text stays linear in size.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np

from aot.errors import InternalError
from aot.ir.expr import (
    Binary,
    Bitcast,
    Cast,
    Const,
    Dot,
    Expr,
    Fma,
    Load,
    Param,
    Select,
    Size,
    Unary,
    Unpack,
    Var,
    children,
)
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Barrier,
    Buffer,
    Combine,
    For,
    If,
    Kernel,
    Let,
    LoopKind,
    Matrix,
    MatrixDot,
    MatrixProduct,
    MatrixStore,
    MatrixZero,
    Prefetch,
    Scratch,
    Stmt,
    Store,
)
from aot.kernels.ir.scalar import schedule

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "floormod": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
_LONG = 72  # a subexpression whose text is longer gets a name, for the sake of line length


def to_text(kernel: Kernel) -> str:
    """The kernel as text, deterministic, with a newline at the end."""
    params = ", ".join(f"{p.name}: {p.dtype}" for p in kernel.params)
    lines = [f"kernel {kernel.name}({params}) {{"]
    lines += [f"  {_buffer(b)}" for b in kernel.buffers]
    for scratch in kernel.scratch:
        dims = ", ".join(map(str, scratch.shape))
        lines.append(f"  scratch {scratch.name}: {scratch.dtype}[{dims}] {scratch.space.value}")
    _body(kernel.body, 1, lines)
    lines.append("}")
    return "\n".join(lines) + "\n"


def _buffer(b: Buffer) -> str:
    shape, strides = ", ".join(map(str, b.shape)), ", ".join(map(str, b.strides))
    written = " written" if b.is_written else ""
    written += " streamed" if b.is_streamed else ""
    aligned = f" aligned {b.alignment}" if b.alignment > 1 else ""
    where = b.binding.name.lower() if b.class_param is None else f"class {b.class_param.name}"
    return (
        f"buffer {b.name}: {b.dtype}[{shape}] strides [{strides}] "
        f"in {where} at {b.offset.name}{aligned}{written}"
    )


def _body(body: tuple[Stmt, ...], depth: int, lines: list[str]) -> None:
    indent = "  " * depth
    for stmt in body:
        match stmt:
            case For():
                lines.append(f"{indent}for {stmt.var.name} in 0..{stmt.extent} {_kind(stmt)} {{")
                _body(stmt.body, depth + 1, lines)
                lines.append(f"{indent}}}")
            case If():
                (condition,) = _expressions([stmt.condition], indent, lines)
                lines.append(f"{indent}if {condition} {{")
                _body(stmt.then, depth + 1, lines)
                if stmt.otherwise:
                    lines.append(f"{indent}}} else {{")
                    _body(stmt.otherwise, depth + 1, lines)
                lines.append(f"{indent}}}")
            case Let():
                (value,) = _expressions([stmt.value], indent, lines)
                lines.append(f"{indent}let {stmt.var.name}: {stmt.var.dtype} = {value}")
            case Store():
                _store(stmt, indent, lines)
            case Combine():
                (value,) = _expressions([stmt.value], indent, lines)
                name, dtype, lane = stmt.result.name, stmt.result.dtype, stmt.lane.name
                lines.append(
                    f"{indent}combine {name}: {dtype} = {stmt.op} of {value} for {lane} in "
                    f"0..{stmt.extent} lane(0) by {stmt.shared.name}"
                )
            case Prefetch():
                texts = _expressions([stmt.index], indent, lines)
                lines.append(f"{indent}prefetch {_access(stmt.source, texts)}")
            case MatrixDot():
                loads = [stmt.rows, *stmt.columns]
                *at, rows, low, high = _expressions([*stmt.line, *loads], indent, lines)
                line = _access(stmt.sums, [*at, ":"])
                lines.append(f"{indent}{line} += matrix_dot({rows}, {low}, {high})")
            case MatrixZero():
                texts = _expressions([*stmt.place], indent, lines)
                lines.append(f"{indent}{_access(stmt.sums, [*texts, ':', ':'])} = zeros")
            case MatrixProduct():
                rank, split = len(stmt.place), len(stmt.place) + len(stmt.left.indices)
                roots = [*stmt.place, *stmt.left.indices, *stmt.right.indices]
                texts = _expressions(roots, indent, lines)
                sums = _access(stmt.sums, [*texts[:rank], ":", ":"])
                left, right = (
                    _matrix(stmt.left, texts[rank:split]),
                    _matrix(stmt.right, texts[split:]),
                )
                lines.append(f"{indent}{sums} += matrix_product.{stmt.terms}({left}, {right})")
            case MatrixStore():
                rank = len(stmt.place)
                texts = _expressions([*stmt.place, *stmt.target.indices], indent, lines)
                sums = _access(stmt.sums, [*texts[:rank], ":", ":"])
                lines.append(f"{indent}{_matrix(stmt.target, texts[rank:])} = {sums}")
            case Barrier():
                lines.append(f"{indent}barrier{' buffers' if stmt.orders_buffers else ''}")


def _kind(loop: For) -> str:
    if loop.kind in (LoopKind.WORKGROUP, LoopKind.LANE):
        return f"{loop.kind.value}({loop.axis})"
    return f"{loop.kind.value}"


def _store(stmt: Store, indent: str, lines: list[str]) -> None:
    rank = len(stmt.indices)
    roots = [*stmt.indices, stmt.value, *([] if stmt.guard is None else [stmt.guard])]
    texts = _expressions(roots, indent, lines)
    guard = "" if stmt.guard is None else f" when {texts[rank + 1]}"
    lines.append(f"{indent}{_access(stmt.target, texts[:rank])} = {texts[rank]}{guard}")


def _access(source: Buffer | Scratch, indices: list[str]) -> str:
    return f"{source.name}[{', '.join(indices)}]"


def _matrix(matrix: Matrix, indices: list[str]) -> str:
    name = "transposed" if matrix.is_transposed else "matrix"
    return f"{name}({_access(matrix.source, indices)} step {matrix.step})"


def _expressions(roots: list[Expr], indent: str, lines: list[str]) -> list[str]:
    """Texts of a statement's expressions; appends a line for each subexpression that gets a
    name."""
    order = schedule(roots)
    numbers: dict[Expr, int] = {}
    by_key: dict[Hashable, int] = {}
    unique: list[Expr] = []
    for node in order:
        key = (_label(node), node.dtype, *(numbers[c] for c in children(node)))
        numbers[node] = by_key.setdefault(key, len(by_key))
        if numbers[node] == len(unique):
            unique.append(node)
    uses = [0] * len(unique)
    for node in (*(c for u in unique for c in children(u)), *roots):
        uses[numbers[node]] += 1
    root_numbers = {numbers[r] for r in roots}
    texts: list[str] = []
    named = 0
    for number, node in enumerate(unique):
        text = _node(node, [texts[numbers[c]] for c in children(node)])
        is_long = len(text) > _LONG and number not in root_numbers
        if children(node) and (uses[number] > 1 or is_long):
            lines.append(f"{indent}%{named} = {_bare(text)}")
            text = f"%{named}"
            named += 1
        texts.append(text)
    return [_bare(texts[numbers[r]]) for r in roots]


def _bare(text: str) -> str:
    """The text of an expression without its outermost parentheses, if they are a pair."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0 and at < len(text) - 1:
            return text
    return text[1:-1]


def _label(node: Expr) -> Hashable:
    """The parts of a node that distinguish it from others with the same dtype and operands."""
    match node:
        case Const() | Size() | Param() | Var():
            return type(node).__name__, _node(node, [])
        case Load():
            return "Load", node.source.name, len(node.indices), node.guard is None
        case Unary() | Binary():
            return type(node).__name__, node.op
        case _:
            return type(node).__name__


def _node(node: Expr, args: list[str]) -> str:
    match node:
        case Const():
            return _literal(node)
        case Var():
            return node.name
        case Size():
            return f"size({node.dim})"
        case Param():
            return f"${node.name}"
        case Load():
            rank = len(node.indices)
            text = _access(node.source, [_bare(a) for a in args[:rank]])
            if node.dtype.is_packed:
                text = f"{node.dtype}({text})"
            return (
                text
                if node.guard is None
                else (f"({text} where {args[rank]} else {args[rank + 1]})")
            )
        case Unary():
            return f"{node.op}({_bare(args[0])})"
        case Binary():
            if node.op in _INFIX:
                return f"({args[0]} {_INFIX[node.op]} {args[1]})"
            return f"{node.op}({_bare(args[0])}, {_bare(args[1])})"
        case Fma():
            return f"fma({', '.join(map(_bare, args))})"
        case Dot():
            return f"dot{'.narrow' if node.is_narrow else ''}({', '.join(map(_bare, args))})"
        case Unpack():
            return f"unpack.{node.parts[0]}.{node.parts[1]}({_bare(args[0])})"
        case Select():
            return f"({args[0]} ? {args[1]} : {args[2]})"
        case Cast():
            return f"{node.dtype}({_bare(args[0])})"
        case Bitcast():
            return f"bitcast.{node.dtype}({_bare(args[0])})"
    raise InternalError(f"{type(node).__name__} cannot be printed in a kernel")


def _literal(node: Const) -> str:
    if node.dtype is DType.INDEX:
        return str(node.value)
    if node.dtype is DType.BOOL:
        return "true" if node.value else "false"
    if not node.dtype.is_float:
        return f"{node.value}:{node.dtype}"
    with np.errstate(over="ignore"):
        value = node.dtype.numpy.type(node.value)
    if not math.isfinite(value):
        return f"{value}:{node.dtype}"
    # The fewest digits that give the same value of the dtype back.
    is_plain = value == 0 or 1e-4 <= abs(value) < 1e6
    digits = (
        np.format_float_positional(value, trim="0")
        if is_plain
        else np.format_float_scientific(value, trim="0", exp_digits=1)
    )
    return f"{digits}:{node.dtype}"
