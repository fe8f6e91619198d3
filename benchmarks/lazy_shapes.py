"""Shape-rule calls and seconds of the same rewrites, told lazily and eagerly.

    python benchmarks/lazy_shapes.py chain [--ops 100000] [--eager-ops 3000]
    python benchmarks/lazy_shapes.py models MODEL.onnx...

Both modes end in the same program, which is checked. What rewriting itself asks of shape rules is
the same in both and left out. docs/internals/lazy-shapes.md has the figures and what they mean.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from aot.analysis.memory.views import canonical
from aot.builder import Builder
from aot.ir.builtin import PENDING
from aot.ir.clone import clone_module
from aot.ir.compare import modules_equal
from aot.ir.graph import Module, Op, Value
from aot.ir.index_map import transposed
from aot.ir.record import Kind, count_shape_rules
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType, Layout, TensorType
from aot.ops.elementwise import CAST
from aot.ops.movement import TRANSPOSE
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.layout.eager_shapes import follow_eagerly, following
from aot.passes.layout.resolve_shapes import carry_out
from aot.passes.layout.shape_sweep import Sweep
from aot.switches import Switches

Rewrite = Callable[[Module], int]
"""Makes pending changes in a module; gives how many."""


@dataclass(frozen=True)
class Cost:
    """What telling users of some rewrites took, resolving included.

    Attributes:
        reached: ops that resolving decided about: what lazy would ask if it asked every one.
    """

    calls: int
    seconds: float
    rewrites: int
    reached: int


# rewrites; none asks a shape rule


def _after(op: Op, function_rewriter: Rewriter, made: Op) -> Value:
    at = function_rewriter if op.next is None else function_rewriter.at(op.next)
    return at.insert(made).result


def turn(module: Module, value: Value, perm: Sequence[int]) -> None:
    """Computes `value` in another order of dims."""
    assert value.op is not None
    type = value.type.with_dims(tuple(value.type.dims[p] for p in perm))
    made = Op(TRANSPOSE, [value], {"perm": tuple(perm)}, [type])
    fresh = _after(value.op, Rewriter(module.main), made)
    back = transposed(tuple(int(n) for n in np.argsort(perm)))
    Rewriter(module.main).replace_lazily(value, fresh, back)


def narrow(module: Module) -> int:
    """Stores every f32 value that is computed in f16, from the first to the last."""
    count = 0
    for op in list(module.main.block):
        if op.record.compute is None or len(op.results) != 1:
            continue
        value = op.result
        if value.type.dtype is not DType.F32:
            continue
        made = Op(
            CAST, [value], {"to": DType.F16, "clamps": True}, [value.type.with_dtype(DType.F16)]
        )
        Rewriter(module.main).replace_lazily(value, _after(op, Rewriter(module.main), made))
        count += 1
    return count


def channels_last(module: Module) -> int:
    """Lets convolutions, poolings and products write channels-last, from the first to the last."""
    count = 0
    for op in list(module.main.block):
        if op.record.kind not in (Kind.CONTRACTION, Kind.REDUCTION) or len(op.results) != 1:
            continue
        type = op.result.type
        if type.rank < 3:
            continue
        order = (0, *range(2, type.rank), 1)
        relaid = canonical(TensorType(type.dtype, type.dims, Layout(order=order)))
        if relaid == type:
            continue
        made = Op(op.record, op.operands, op.attrs, [relaid], (), op.origin)
        fresh = Rewriter(module.main).at(op).insert(made).result
        Rewriter(module.main).replace_lazily(op.result, fresh)
        Rewriter(module.main).erase(op)
        count += 1
    return count


def turned(module: Module) -> int:
    """Computes every contraction's result with its dims turned, from the last to the first, as a
    pass does that goes from users to producers."""
    count = 0
    for op in reversed(list(module.main.block)):
        if op.record.kind is Kind.CONTRACTION and op.result.type.rank >= 3:
            rank = op.result.type.rank
            turn(module, op.result, (0, *range(2, rank), 1))
            count += 1
    return count


# measuring


def measure(module: Module, rewrite: Rewrite, *, is_eager: bool) -> Cost:
    """Rewrites and resolves in place."""
    start = time.perf_counter()
    if is_eager:
        follow_eagerly(module)
    with count_shape_rules() as rules:
        count = rewrite(module)
        follower = following(module.main)
        sweep = Sweep(module.main).run() if follower is None else follower.finish()
        carry_out(sweep)
    seconds = time.perf_counter() - start
    reached = [
        op for op in sweep.decisions if op.record is not PENDING and not op.record.is_terminator
    ]
    return Cost(rules.calls, seconds, count, len(reached))


def compare(module: Module, rewrite: Rewrite) -> tuple[Cost, Cost]:
    """Lazily and eagerly, on copies; the programs must be the same."""
    lazy, eager = clone_module(module), clone_module(module)
    costs = measure(lazy, rewrite, is_eager=False), measure(eager, rewrite, is_eager=True)
    if not modules_equal(lazy, eager):
        raise SystemExit("lazy and eager programs differ")
    return costs


def chain(ops: int, rewrites: int) -> tuple[Module, Rewrite]:
    """A chain of elementwise ops, and so many changes of the order of dims along it, each another
    one than those around it, from the last to the first."""
    b = Builder()
    value = b.input("x", "f32[2, 3, 4]")
    for number in range(ops):
        value = b.op(("relu", "neg", "abs")[number % 3], value)
    b.output("y", value)
    perms = ((2, 0, 1), (1, 2, 0))

    def rewrite(module: Module) -> int:
        line = list(module.main.block)[:-1]
        chosen = line[:: max(1, ops // rewrites)][:rewrites]
        for number, op in enumerate(reversed(chosen)):
            turn(module, op.result, perms[number % 2])
        return len(chosen)

    return b.module(), rewrite


def prepared(path: str) -> Module:
    """A model as it is before targets: imported, folded, in canonical form."""
    from aot.driver.pipeline import read_model
    from aot.passes.order import MODEL_PASSES

    options = CompileOptions()
    module = read_model(path, options)
    names = ("bind", "fold-constants", "canonicalize", "cse", "dce")
    passes = [p for p in MODEL_PASSES if p.name in names]
    run_passes(module, passes, PassContext(options, switches=Switches()))
    return module


BULK: dict[str, Rewrite] = {
    "layouts: channels-last": channels_last,
    "dtypes: stored as f16": narrow,
    "dims: results turned": turned,
}


def fitted_slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The power with which ys grow with xs."""
    return float(np.polyfit(np.log(xs), np.log(np.maximum(ys, 1e-9)), 1)[0])


def run_chain(largest: int, largest_eager: int, print: Callable[[str], None]) -> None:
    """k rewrites on n ops, k = n / 10."""
    sizes = [n for n in (100, 300, 1000, 3000, 10_000, 30_000, 100_000) if n <= largest]
    print("|  ops | rewrites | lazy calls | lazy s | eager calls | eager s |")
    print("|---|---|---|---|---|---|")
    lazy: list[Cost] = []
    eager: list[Cost] = []
    for ops in sizes:
        module, rewrite = chain(ops, ops // 10)
        if ops <= largest_eager:
            one, other = compare(module, rewrite)
            eager.append(other)
            beside = f"{other.calls} | {other.seconds:.2f}"
        else:
            one = measure(module, rewrite, is_eager=False)
            beside = "- | -"
        lazy.append(one)
        print(f"| {ops} | {one.rewrites} | {one.calls} | {one.seconds:.2f} | {beside} |")
    for name, costs in (("lazy", lazy), ("eager", eager)):
        if len(costs) > 1:
            calls = fitted_slope(sizes[: len(costs)], [c.calls for c in costs])
            seconds = fitted_slope(sizes[: len(costs)], [c.seconds for c in costs])
            print(f"{name}: calls grow as n^{calls:.2f}, seconds as n^{seconds:.2f}")


def run_models(paths: Sequence[str], print: Callable[[str], None]) -> None:
    print("| model | ops | changes | count | reached | lazy calls | eager calls | lazy, eager s |")
    print("|---|---|---|---|---|---|---|---|")
    for path in paths:
        module = prepared(path)
        for name, rewrite in BULK.items():
            lazy, eager = compare(module, rewrite)
            print(
                f"| {Path(path).stem} | {len(module.main.block)} | {name} | {lazy.rewrites} | "
                f"{lazy.reached} | {lazy.calls} | {eager.calls} | "
                f"{lazy.seconds:.2f}, {eager.seconds:.2f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("chain", "models"))
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--ops", type=int, default=100_000)
    parser.add_argument("--eager-ops", type=int, default=3000)
    given = parser.parse_args()
    if given.what == "chain":
        run_chain(given.ops, given.eager_ops, print)
    else:
        run_models(given.paths, print)


if __name__ == "__main__":
    main()
