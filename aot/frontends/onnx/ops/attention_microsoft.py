"""ONNX Runtime's attention over heads: Attention, QAttention and MultiHeadAttention, with their
masks, packed operands and pasts. GroupQueryAttention is in group_attention.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.frontends.lib.attention import attention, head_depth, merged_heads, split_heads
from aot.frontends.onnx.microsoft import MICROSOFT
from aot.frontends.onnx.ops.quantized import F32, check_scales, integer_product
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType

I32 = DType.I32


def part(node: Node, x: Value, axis: int, start: Dim, stop: Dim) -> Value:
    """The slice of x from start to stop along an axis."""
    starts, stops = [0] * x.type.rank, list(x.type.dims)
    if start == 0 and stop == x.type.dims[axis]:
        return x
    begins: list[Dim] = [*starts]
    begins[axis], stops[axis] = start, stop
    return node.emit("slice", x, starts=tuple(begins), stops=tuple(stops), steps=(1,) * x.type.rank)


def row(node: Node, x: Value, axis: int, number: int) -> Value:
    """x at one position of an axis, without that axis."""
    taken = part(node, x, axis, number, number + 1)
    return node.reshape(taken, (*x.type.dims[:axis], *x.type.dims[axis + 1 :]))


def _heads_of(node: Node, operand: int, count: int, what: str) -> Value:
    """An operand [batch, length, heads * depth] (or with heads and depth separate) as [batch,
    heads, length, depth]."""
    x = node.input(operand)
    if x.type.rank == 4:
        return x
    if x.type.rank != 3:
        raise node.error(f"{what} has rank {x.type.rank}, expected 3 or 4")
    return split_heads(node, x, count, what)


def heads_attr(node: Node, name: str = "num_heads") -> int:
    """The value of an attribute with a number of heads, which must be at least 1."""
    count = node.int_attr(name)
    if count < 1:
        raise node.error(f"attribute {name!r} is {count}, expected 1 or more")
    return count


def refuse_operands(node: Node, **names: int) -> None:
    """Raises an UnsupportedNodeError if one of these optional operands is present."""
    for name, number in names.items():
        if node.optional(number) is not None:
            raise UnsupportedNodeError(f"operand {number} ({name}) is not supported")


# masks: what is added to the scores [batch, heads, queries, keys]


class _Scores:
    """An attention node's score matrix: its extents, and the value added to the scores of masked
    keys.
    """

    def __init__(self, node: Node, q: Value, keys: Dim, past: Dim) -> None:
        self.node = node
        self.batch, _, self.queries, _ = q.type.dims
        self.keys, self.past = keys, past
        self.dtype = q.type.dtype
        self.filter = node.float_attr("mask_filter_value", -10000.0)

    def unless(self, is_read: Value) -> Value:
        """0 where a key is visible, else the mask's filter value."""
        node = self.node
        zero = node.scalar(0.0, self.dtype)
        return node.emit("where", is_read, zero, node.scalar(self.filter, self.dtype))

    def of_mask(self, mask: Value, what: str) -> Value:
        """A mask of ones and zeros, or of lengths."""
        node, rank = self.node, mask.type.rank
        if rank == 1:
            return self.unless(self._within(mask, what))
        read = node.emit("less", node.scalar(0, mask.type.dtype), mask)
        extents = mask.type.dims
        if rank == 2:
            return self.unless(node.reshape(read, (extents[0], 1, 1, extents[1])))
        if rank == 3:
            return self.unless(node.reshape(read, (extents[0], 1, *extents[1:])))
        if rank == 4:
            first = dims.add(self.keys, dims.multiply(self.queries, -1))
            read = part(node, part(node, read, 2, first, self.keys), 3, 0, self.keys)
            return self.unless(read)
        raise node.error(f"{what} has rank {rank}, expected 1 to 4")

    def _within(self, lengths: Value, what: str) -> Value:
        """A mask of keys before each row's end, and after its start where starts follow the
        ends."""
        node = self.node
        count = lengths.type.dims[0]
        places = node.emit("range", size=self.keys, start=0, step=1, dtype=I32)

        def rows(first: Dim) -> Value:
            taken = part(node, lengths, 0, first, dims.add(first, self.batch))
            return node.reshape(taken, (self.batch, 1, 1, 1))

        read = node.emit("less", places, rows(0))
        if count == self.batch:
            return read
        if count == dims.multiply(self.batch, 2):
            return node.emit("and", read, node.emit("less_equal", rows(self.batch), places))
        if count != dims.add(dims.multiply(self.batch, 3), 2):
            raise UnsupportedNodeError(
                f"{what} has {count} elements for a batch of {self.batch}, expected as many, "
                "twice as many, or three times as many and 2"
            )
        return read


def _summed(node: Node, *terms: Value | None) -> Value | None:
    found = [term for term in terms if term is not None]
    if not found:
        return None
    total = found[0]
    for term in found[1:]:
        total = node.emit("add", total, term)
    return total


def _attended(
    node: Node, q: Value, k: Value, v: Value, past: Dim, mask: int | None, bias: int | None
) -> Value:
    """ONNX Runtime's attention, [batch, queries, heads * depth], with operands `mask` and `bias`
    added to the scores.
    """
    scores = _Scores(node, q, k.type.dims[2], past)
    terms: list[Value | None] = []
    if mask is not None and node.optional(mask) is not None:
        terms.append(scores.of_mask(node.input(mask), f"operand {mask}"))
    if bias is not None and node.optional(bias) is not None:
        terms.append(node.input(bias))
    scale = node.float_attr("scale", 0.0) or head_depth(q) ** -0.5
    is_causal = bool(node.int_attr("unidirectional", 0))
    added = _summed(node, *terms)
    ahead = 0 if is_causal else None
    y = attention(node, q, k, v, added, scale=scale, past=past, ahead=ahead)
    return merged_heads(node, y)


# Attention and QAttention: one product for q, k and v


def _split_columns(node: Node, x: Value, widths: Sequence[int], heads: int) -> list[Value]:
    """The parts of x [batch, length, sum of widths], each as [batch, heads, length, depth]."""
    found, start = [], 0
    for width in widths:
        taken = part(node, x, 2, start, start + width)
        found.append(split_heads(node, taken, heads, "the product of the weights"))
        start += width
    return found


def _widths(node: Node, columns: Dim) -> tuple[int, ...]:
    given = node.ints_attr("qkv_hidden_sizes", ())
    if given:
        if len(given) != 3 or sum(given) != columns:
            raise node.error(
                f"attribute 'qkv_hidden_sizes' is {list(given)}, but the weights have {columns} "
                "columns"
            )
        return given
    if not isinstance(columns, int) or columns % 3:
        raise node.error(f"the weights have {columns} columns, expected a multiple of 3")
    return (columns // 3,) * 3


def _with_past(node: Node, k: Value, v: Value, past: int) -> tuple[Value, Value, Dim]:
    """(keys, values, past length): k and v appended to the rows of an operand [2, batch, heads,
    length, depth]."""
    before = node.optional(past)
    if before is None:
        return k, v, 0
    k = node.emit("concat", row(node, before, 0, 0), k, axis=2)
    v = node.emit("concat", row(node, before, 0, 1), v, axis=2)
    return k, v, before.type.dims[3]


def _present(node: Node, k: Value, v: Value) -> Value | None:
    if not node.wants(1):
        return None
    rows = [node.reshape(x, (1, *x.type.dims)) for x in (k, v)]
    return node.emit("concat", *rows, axis=0)


def _self_attention(
    node: Node, product: Value, past: int, mask: int, bias: int | None
) -> list[Value | None]:
    if node.int_attr("do_rotary", 0):
        raise UnsupportedNodeError("attribute 'do_rotary' is not supported here")
    if node.int_attr("past_present_share_buffer", 0):
        raise UnsupportedNodeError("attribute 'past_present_share_buffer' is not supported")
    node.ignore("rotary_embedding_dim")
    widths = _widths(node, product.type.dims[-1])
    q, k, v = _split_columns(node, product, widths, heads_attr(node))
    k, v, length = _with_past(node, k, v, past)
    return [_attended(node, q, k, v, length, mask, bias), _present(node, k, v)]


@onnx_op("Attention", domain=MICROSOFT)
def attention_of_weights(node: Node) -> list[Value | None]:
    refuse_operands(node, past_sequence_length=6)
    if node.input(0).type.rank != 3:
        raise node.error(f"input has rank {node.input(0).type.rank}, expected 3")
    product = node.emit("matmul", node.input(0), node.input(1))
    bias = node.optional(2)
    if bias is not None:
        product = node.emit("add", product, bias)
    return _self_attention(node, product, 4, 3, 5)


@onnx_op("QAttention", domain=MICROSOFT)
def quantized_attention(node: Node) -> list[Value | None]:
    check_scales(node, input=3, weight=4)
    zeros = node.optional(6), node.optional(7)
    total = integer_product(node, node.input(0), node.input(1), zeros)

    def scale(number: int) -> Value:
        value = node.input(number)
        return node.reshape(value, ()) if value.type.element_count == 1 else value

    factor = node.emit("mul", scale(3), scale(4))
    product = node.emit("mul", node.cast(node.cast(total, F32), factor.type.dtype), factor)
    product = node.emit("add", product, node.input(2))
    return _self_attention(node, product, 8, 5, None)


# MultiHeadAttention: q, k and v are given, or two or three of them in one operand


def _unpacked(node: Node, operand: int, count: int) -> list[Value]:
    """The parts of an operand [batch, length, heads, parts, depth], each as heads."""
    x = node.input(operand)
    if x.type.dims[3] != count:
        raise node.error(
            f"operand {operand} has extent {x.type.dims[3]} at dim 3, expected {count}"
        )
    return [node.emit("transpose", row(node, x, 3, n), perm=(0, 2, 1, 3)) for n in range(count)]


def _with_bias(node: Node, parts: Sequence[Value], are_added: Sequence[bool]) -> list[Value]:
    """q, k and v plus their parts of the bias, except those with separate heads, which already
    include it."""
    bias = node.optional(3)
    if bias is None:
        return list(parts)
    found, start = [], 0
    for x, is_added in zip(parts, are_added, strict=True):
        heads, depth = x.type.dims[1], x.type.dims[3]
        width = dims.multiply(heads, depth)
        if not isinstance(width, int) or not isinstance(heads, int):
            raise UnsupportedNodeError("a bias of heads whose extents are not known")
        if is_added:
            vector = part(node, bias, 0, start, start + width)
            x = node.emit("add", x, node.reshape(vector, (heads, 1, depth)))
        found.append(x)
        start += width
    return found


def _query_key_value(node: Node) -> list[Value]:
    heads = heads_attr(node)
    query = node.input(0)
    if query.type.rank == 5:
        return _with_bias(node, _unpacked(node, 0, 3), (True,) * 3)
    q = _heads_of(node, 0, heads, "query")
    if node.optional(1) is None:
        raise node.error("operand 1 (key) is missing, and the query is not packed")
    if node.input(1).type.rank == 5:
        k, v = _unpacked(node, 1, 2)
        return _with_bias(node, (q, k, v), (True,) * 3)
    k, v = _heads_of(node, 1, heads, "key"), _heads_of(node, 2, heads, "value")
    are_flat = node.input(1).type.rank == 3
    return _with_bias(node, (q, k, v), (True, are_flat, are_flat))


@onnx_op("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(node: Node) -> list[Value | None]:
    refuse_operands(node, past_sequence_length=8, cache_indirection=9)
    node.refuse_output(3, "qk")
    q, k, v = _query_key_value(node)
    past: Dim = 0
    if node.optional(6) is not None:
        before = node.input(6)
        past = before.type.dims[2]
        k = node.emit("concat", before, k, axis=2)
        v = node.emit("concat", node.input(7), v, axis=2)
    return [_attended(node, q, k, v, past, 4, 5), k, v]
