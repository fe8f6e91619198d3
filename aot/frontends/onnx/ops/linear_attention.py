"""Imports ONNX's LinearAttention: a state per head that each token updates and reads."""

from __future__ import annotations

import math

from aot.base.records import dataclass
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir.dims import Dim
from aot.ir.graph import Value

MAX_STEPS = 64  # a dozen ops for each token; decoding has one
_RULES = ("linear", "gated", "delta", "gated_delta")


@dataclass(frozen=True)
class _Sizes:
    """The sizes of linear attention: heads of keys and values, queries per head, and vector
    lengths."""

    batch: Dim
    heads: int
    queries: int
    keys: int
    values: int


class _Steps:
    """The operands of each token, in f32 at least."""

    def __init__(self, node: Node, sizes: _Sizes) -> None:
        self.node, self.sizes = node, sizes
        self.rule = node.str_attr("update_rule", "gated_delta")
        dtype = node.input(0).type.dtype
        self.dtype = dtype.accumulator
        scale = node.float_attr("scale", 0.0) or 1 / math.sqrt(sizes.keys)
        self.scale = node.scalar(scale, self.dtype)

    def token(self, operand: int, step: int, *dims: Dim) -> Value:
        """Token `step` of an operand [B, T, heads * vector] as [B, dims...]."""
        x = self.node.input(operand)
        batch, _, width = x.type.dims
        part = self.node.emit(
            "slice", x, starts=(0, step, 0), stops=(batch, step + 1, width), steps=(1, 1, 1)
        )
        return self.node.cast(self.node.reshape(part, (batch, *dims)), self.dtype)

    def decayed(self, state: Value, step: int) -> Value:
        width = self.node.input(4).type.dims[2]
        rows = 1 if width == self.sizes.heads else self.sizes.keys
        decay = self.token(4, step, self.sizes.heads, rows, 1)
        return self.node.emit("mul", self.node.emit("exp", decay), state)

    def updated(self, state: Value | None, step: int) -> Value:
        """The state after a token; a state of None is zero."""
        emit, sizes = self.node.emit, self.sizes
        if state is not None and self.rule.startswith("gated"):
            state = self.decayed(state, step)
        news = self.token(2, step, sizes.heads, 1, sizes.values)
        if self.rule.endswith("delta"):
            if state is not None:
                key = self.token(1, step, sizes.heads, 1, sizes.keys)
                news = emit("sub", news, emit("matmul", key, state))
            width = self.node.input(5).type.dims[2]
            rate = self.token(5, step, 1 if width == 1 else sizes.heads, 1, 1)
            news = emit("mul", rate, news)
        column = self.token(1, step, sizes.heads, sizes.keys, 1)
        added = emit("mul", column, news)
        return added if state is None else emit("add", state, added)

    def read(self, state: Value, step: int) -> Value:
        """The output [B, 1, query heads * vector] of a token's queries on the state."""
        sizes = self.sizes
        queries = self.token(0, step, sizes.heads, sizes.queries, sizes.keys)
        found = self.node.emit("mul", self.node.emit("matmul", queries, state), self.scale)
        return self.node.reshape(
            found, (sizes.batch, 1, sizes.heads * sizes.queries * sizes.values)
        )


def _sizes(node: Node) -> _Sizes:
    query, key, value = (node.input(i).type for i in range(3))
    heads, all_queries = node.int_attr("kv_num_heads"), node.int_attr("q_num_heads")
    if any(t.rank != 3 for t in (query, key, value)):
        raise node.error("query, key and value have 3 dims each: [B, T, heads * vector]")
    if heads < 1 or all_queries < 1 or all_queries % heads:
        raise node.error(
            f"q_num_heads is {all_queries}, expected a positive multiple of kv_num_heads, {heads}"
        )
    widths = (query.dims[2], key.dims[2], value.dims[2])
    found = []
    for what, width, count in zip(
        ("query", "key", "value"), widths, (all_queries, heads, heads), strict=True
    ):
        if not isinstance(width, int):
            raise UnsupportedNodeError(f"a {what} whose last extent depends on the input's shape")
        if width % count:
            raise node.error(f"{what} has last extent {width}, which is not {count} heads")
        found.append(width // count)
    if found[0] != found[1]:
        raise node.error(f"a query has {found[0]} elements, expected {found[1]} as a key has")
    return _Sizes(query.dims[0], heads, all_queries // heads, found[1], found[2])


@onnx_op("LinearAttention", since=27)
def linear_attention(node: Node) -> list[Value]:
    """LinearAttention, unrolled token by token, up to a limit; ONNX defines it by a Scan."""
    node.ignore("chunk_size")  # a hint
    rule = node.str_attr("update_rule", "gated_delta")
    if rule not in _RULES:
        raise node.error(
            f"attribute 'update_rule' is {rule!r}, expected one of {', '.join(_RULES)}"
        )
    sizes = _sizes(node)
    for number, what, is_read in (
        (4, "decay", rule.startswith("gated")),
        (5, "beta", rule.endswith("delta")),
    ):
        found = node.optional(number) if is_read else None
        if is_read and found is None:
            raise node.error(f"operand {number} ({what}) is missing, which {rule!r} needs")
        if found is not None and found.type.rank != 3:
            raise node.error(f"{what} has {found.type.rank} dims, expected 3: [B, T, extent]")
    steps = node.input(0).type.dims[1]
    if not isinstance(steps, int):
        raise UnsupportedNodeError("a number of tokens that depends on the input's shape")
    if not 1 <= steps <= MAX_STEPS:
        raise UnsupportedNodeError(f"{steps} tokens; 1 to {MAX_STEPS} are supported")
    tokens = _Steps(node, sizes)
    past = node.optional(3)
    state = None if past is None else node.cast(past, tokens.dtype)
    read: list[Value] = []
    for step in range(steps):
        state = tokens.updated(state, step)
        read.append(tokens.read(state, step))
    assert state is not None
    output = read[0] if steps == 1 else node.emit("concat", *read, axis=1)
    given = node.input(0).type.dtype
    return [node.cast(output, given), node.cast(state, past.type.dtype if past else given)]
