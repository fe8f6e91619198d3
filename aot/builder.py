"""Graphs made in Python: the public name of `aot.ir.builder`.

>>> from aot.builder import Builder
>>> b = Builder()
>>> x = b.input("x", "f32[N, 3]")
>>> b.output("y", b.op("relu", x))
>>> module = b.module()
"""

import aot.ops  # noqa: F401 - fills the op table
from aot.ir.builder import Builder, parse_type

__all__ = ["Builder", "parse_type"]
