"""A sweep that carries pending changes on even where nothing is gained by it.

What passes do retreats where a change finds nothing to meet; tests of the ops' rules must not.
"""

from __future__ import annotations

from aot.passes.layout.shape_sweep import Sweep


class Onward(Sweep):
    def _retreat(self) -> None:
        pass
