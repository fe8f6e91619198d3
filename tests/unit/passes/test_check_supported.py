"""Ops that no program can run, for which golden text would be long."""

from __future__ import annotations

import pytest

from aot.errors import UnsupportedError
from aot.frontends.text import import_text
from aot.ir.graph import Module
from aot.passes.base import PassContext
from aot.passes.check_supported import MOST_OPERANDS, run


def joined(count: int) -> Module:
    parts = ", ".join(["%x"] * count)
    return import_text(
        f'func @main(%x: f32[2]) -> ("y") {{\n  %1 = concat({parts}) {{axis = 0}} : '
        f'f32[{2 * count}] @"join"\n  return(%1)\n}}\n'
    )


def test_an_op_of_thousands_of_operands() -> None:
    run(joined(MOST_OPERANDS), PassContext())
    with pytest.raises(UnsupportedError) as failure:
        run(joined(MOST_OPERANDS + 1), PassContext())
    assert failure.value.items == (
        "concat (node 'join'): it has 4097 operands, expected at most 4096: do it in parts",
    )
