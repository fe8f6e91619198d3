"""Small graphs around an attention, each with the shapes of its inputs: one dispatch all of them,
where no other number is given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot.ir.builder import Builder
from aot.ir.graph import Value

Graph = Callable[[Builder], int]


def _split(b: Builder, name: str, length: str, heads: int, depth: int) -> Value:
    x = b.input(name, f"f32[N, {length}, {heads * depth}]")
    split = b.op("reshape", x, shape=("N", length, heads, depth))
    turned: Value = b.op("transpose", split, perm=(0, 2, 1, 3))
    return turned


def moved_heads(b: Builder) -> int:
    """As transformers have it: heads are moved by transposes on all sides, a mask is added."""
    q, k, v = _split(b, "q", "S", 3, 8), _split(b, "k", "T", 3, 8), _split(b, "v", "T", 3, 8)
    mask = b.input("mask", "f32[N, 1, 1, T]")
    y = b.op("attention", q, k, v, mask, scale=0.25)
    b.output("y", b.op("transpose", y, perm=(0, 2, 1, 3)))
    return 1


def made_masks(b: Builder) -> int:
    """Masks that are computed where scores are, keys that come transposed, and an epilogue."""
    q, keys = b.input("q", "f32[1, S, 5]"), b.input("keys", "f32[1, 5, T]")
    v, mask = b.input("v", "f32[1, T, 7]"), b.input("mask", "f32[S, T]")
    k = b.op("transpose", keys, perm=(0, 2, 1))
    bias = b.op("mul", mask, b.constant(np.float32(0.5)))
    keep = b.op("less", mask, b.constant(np.float32(0.75)))
    y = b.op("attention", q, k, v, bias, keep, scale=0.5, fill=-2.0)
    b.output("y", b.op("relu", b.op("sub", y, b.input("shift", "f32[1, S, 7]"))))
    return 1


def grouped_decoding(b: Builder) -> int:
    """A new token or two after P others, in which four heads share keys and values."""
    q = b.input("q", "f32[N, 4, S, 6]")
    k, v = b.input("k", "f32[N, 1, P + S, 6]"), b.input("v", "f32[N, 1, P + S, 6]")
    b.input("past", "f32[P]")
    b.output("y", b.op("attention", q, k, v, scale=0.4, offset=k.type.dims[2] - q.type.dims[2]))
    return 1


def sum_of_used(b: Builder) -> int:
    """What others use too is no part of it."""
    q, k, v = (b.input(name, "f32[2, 9, 4]") for name in "qkv")
    turned = b.op("transpose", k, perm=(0, 2, 1))
    y = b.op("attention", q, b.op("transpose", turned, perm=(0, 2, 1)), v)
    b.output("y", b.op("add", y, b.op("exp", y)))
    b.output("turned", turned)
    return 2


GRAPHS: dict[str, tuple[Graph, list[tuple[int, ...]]]] = {
    "attention_moved_heads": (moved_heads, [(1, 37, 24), (1, 11, 24), (1, 11, 24), (1, 1, 1, 11)]),
    "attention_made_masks": (made_masks, [(1, 9, 5), (1, 5, 70), (1, 70, 7), (9, 70), (1, 9, 7)]),
    "attention_grouped": (
        grouped_decoding,
        [(2, 4, 2, 6), (2, 1, 7, 6), (2, 1, 7, 6), (5,)],
    ),
    "attention_sum_of_used": (sum_of_used, [(2, 9, 4)] * 3),
}
