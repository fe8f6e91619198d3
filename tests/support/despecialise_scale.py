"""Modules of many regions, for the work of outlining and despecialising them.

python tests/support/despecialise_scale.py [DISPATCHES]     prints seconds, for several numbers of
                                                    different executables among them
"""

from __future__ import annotations

import gc
import sys
import time
from itertools import pairwise
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aot.ir.builtin import RETURN, YIELD
from aot.ir.graph import Attr, Block, Function, Module, Op, Value
from aot.ir.record import lookup
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType, Layout, TensorType
from aot.ops.structure import REGION
from aot.passes.fusion.outline import outline
from aot.passes.specialise.despecialise import despecialise
from aot.target import selection as targets

TARGET = targets.load("x86-64-v4")
PANELS = Layout(((0, 16),), (0, 2, 3, 1, 4))


def regions(count: int, different: int) -> Module:
    """`count` regions, each a convolution and its activation, of as many kinds as `different`."""
    kinds = [_types(n % different) for n in range(count)]
    body = Block([type for types in kinds for type in types[:2]])
    function = Function("main", body, [f"y{n}" for n in range(count)])
    into = Rewriter(function, body)
    given = zip(body.args[::2], body.args[1::2], kinds, strict=True)
    results = [_region(into, [x, w], types) for x, w, types in given]
    into.insert(Op(RETURN, results, {}, []))
    return Module([function])


def _types(kind: int) -> tuple[TensorType, TensorType, TensorType]:
    """Operand, packed weights and result; each number has others."""
    width, columns, channels = kind % 61 + 2, 16 * (kind % 17 + 1), 8 * (kind % 97 + 1)
    last = Layout((), (0, 2, 3, 1))
    return (
        TensorType(DType.F32, (1, channels, width, width), last),
        TensorType(DType.F32, (columns, channels, 1, 1), PANELS),
        TensorType(DType.F32, (1, columns, width, width), last),
    )


def _region(into: Rewriter, given: list[Value], types: tuple[TensorType, ...]) -> Value:
    *operands, made = types
    block = Block(operands)
    inside = Rewriter(into.function, block)
    attrs: dict[str, Attr] = {
        "strides": (1, 1),
        "dilations": (1, 1),
        "pads": (0, 0, 0, 0),
        "group": 1,
        "algorithm": "direct",
    }
    conv = inside.insert(Op(lookup("conv"), [*block.args, None], attrs, [made])).result
    relu = inside.insert(Op(lookup("relu"), [conv], {}, [made])).result
    inside.insert(Op(YIELD, [relu], {}, []))
    return into.insert(Op(REGION, given, {"ties": (-1,)}, [made], [block])).result


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    for different in (1, 50, 500, count // 2, count):
        module = regions(count, different)
        gc.collect()
        times = [time.process_time()]
        met, equal = outline(module)
        times.append(time.process_time())
        despecialise(module, TARGET, 0.05)
        times.append(time.process_time())
        first, second = (b - a for a, b in pairwise(times))
        sys.stdout.write(
            f"{met} dispatches: {equal:6} different, {len(module.executables):4} kept"
            f"  outline {first:.2f} s, despecialise {second:.2f} s\n"
        )


if __name__ == "__main__":
    main()
