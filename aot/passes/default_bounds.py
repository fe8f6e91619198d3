"""default-bounds: sets limits, by a rule, for computed extents that nothing else limits.

Requires: dead ops are gone, and what the user knows of extents is bound.
Ensures: unless `max_default` is 0, every extent that a value gives is limited: where nothing else
    says how large it can be, to `max_default` times the largest extent of the model's inputs. A
    warning names the node and the limit.
Never: changes a limit that is there.
"""

from __future__ import annotations

import warnings

from aot.errors import BoundWarning
from aot.ir import dims
from aot.ir.data_dims import is_capacity, limit, unlimited
from aot.ir.dims import Dim
from aot.ir.graph import Function, Module
from aot.ir.rewriter import Rewriter
from aot.passes.base import Pass, PassContext
from aot.passes.bind import substitute_symbols

MOST_COMPARED = 32  # extents of inputs; of more, their sum is the largest


def run(module: Module, context: PassContext) -> None:
    factor = context.options.max_default
    for function in module.entry_points if factor else ():
        _bound(function, dims.multiply(_largest_extent(function), factor))


def _largest_extent(function: Function) -> Dim:
    """The largest extent of all inputs, at least 1."""
    extents = dict.fromkeys(dim for value in function.inputs for dim in value.type.dims)
    if len(extents) > MOST_COMPARED:
        return dims.add(sum(extents, 0), 1)
    return dims.maximum(1, *extents)


def _bound(function: Function, most: Dim) -> None:
    told: dict[str, None] = {}
    while found := unlimited(function):
        capacities: dict[str, Dim] = {}
        for name, op in found.items():
            node = op.origin or name
            told[node] = None
            if is_capacity(op):
                capacities[name] = most
                Rewriter(function).erase(op)
                continue
            reason = (
                f"{node}: nothing in the model limits the extent that it computes, and "
                f"--max {node!r}=N is another limit"
            )
            made = limit(dims.symbol(name), most, reason)
            assert made is not None  # or it would be limited
            function.assumptions[made] = None
        if capacities:
            substitute_symbols(function, capacities)
    for node in told:
        warnings.warn(
            BoundWarning(
                f"{node}: nothing in the model limits the extent that it computes: the limit is "
                f"{most} (--max-default); --max {node!r}=N sets another"
            ),
            stacklevel=2,
        )


DEFAULT_BOUNDS = Pass("default-bounds", run, __doc__)
