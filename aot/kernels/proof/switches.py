"""The switches of a kernel: dims with value 0 or 1 that select between versions of its grid at run
time.

A GPU's kernel of an open extent may hold several schedules, of which a comparison of `min(x, 1)`
with a number takes one. Such a number is a factor in the extents of the grid: they are simple only
where it is known. Owns which numbers are switches.
"""

from __future__ import annotations

from aot.ir import dims
from aot.ir.dims import Dim, Extremum
from aot.ir.expr import Binary, Const, Size
from aot.kernels.ir.nodes import If, Kernel, walk

MOST = 4  # of a kernel, each of which doubles the walks over it


def switches_of(kernel: Kernel) -> list[Extremum]:
    """All extrema `min(x, 1)` that conditions compare with a number, ordered so that those within
    another's x come first.
    """
    conditions = [stmt.condition for stmt in walk(kernel.body) if isinstance(stmt, If)]
    compared = [c.a for c in conditions if isinstance(c, Binary) and isinstance(c.b, Const)]
    found: dict[Extremum, None] = {}
    for number in compared:
        for atom in dims.atoms(number.dim) if isinstance(number, Size) else ():
            if isinstance(atom, Extremum) and _is_switch(atom):
                found[atom] = None
    return list(found)[:MOST]


def chosen_by(switch: Extremum) -> Dim:
    """The x of a switch `min(x, 1)`."""
    (x,) = (arg for arg in switch.args if arg != 1)
    return x


def _is_switch(atom: Extremum) -> bool:
    return not atom.is_max and len(atom.args) == 2 and 1 in atom.args
