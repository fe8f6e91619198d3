"""Shapes of recurrent layers during torch's export: without them torch unrolls the steps to find
the shapes, which fixes the number of steps.

The only file that replaces a part of torch, for as long as an export takes; where torch has moved
that part, nothing is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


def _output(x: Any, state: Any, is_bidirectional: bool) -> Any:
    """An empty tensor shaped like a recurrent layer's output: hidden size times
    directions, last.
    """
    size = state.shape[2] * (2 if is_bidirectional else 1)
    return x.new_empty((*x.shape[:-1], size))


def _lstm(x: Any, states: Sequence[Any], weights: Any, *options: Any) -> Any:
    is_bidirectional = options[-2]
    return (_output(x, states[0], is_bidirectional), *(s.new_empty(s.shape) for s in states))


def _single(x: Any, state: Any, weights: Any, *options: Any) -> Any:
    return _output(x, state, options[-2]), state.new_empty(state.shape)


_SHAPES: dict[str, Callable[..., Any]] = {
    "lstm": _lstm,
    "gru": _single,
    "rnn_tanh": _single,
    "rnn_relu": _single,
}


@contextmanager
def known_shapes() -> Iterator[None]:
    """A context in which torch takes the shapes of recurrent layers from this module."""
    try:
        from torch._decomp import decomposition_table
    except ImportError:
        yield
        return
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    kept: list[tuple[Any, Any, Any]] = []
    for name, build in _SHAPES.items():
        op = getattr(torch.ops.aten, name).input
        for table, entry in ((decomposition_table, op), (getattr(op, "py_kernels", {}), key)):
            if entry in table:
                kept.append((table, entry, table[entry]))
                table[entry] = build
    try:
        yield
    finally:
        for table, entry, usual in kept:
            table[entry] = usual
