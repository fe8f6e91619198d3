"""apply-tuning: gives executables the schedules that measured fastest.

Requires: executables are final; nothing merges them any more.
Ensures: an executable that the table knows has the table's tiles and algorithm in
    its schedule, if it admits them; any other stays as the plan has it.
Never: measures, reads files, or changes what is computed other than by another algorithm.
"""

from __future__ import annotations

from aot.analysis.cost.candidates import admits, choice_of, runs_of, schedule_with
from aot.ir.graph import Module
from aot.passes.base import Pass, PassContext


def run(module: Module, context: PassContext) -> None:
    target, tuning = context.target, context.tuning
    if target is None or tuning is None or not tuning.choices:
        return
    has_winograd = context.options.winograd
    runs = runs_of(module)
    for function in module.executables:
        found = tuning.find(function, runs.get(function.name, ()), target)
        if found is None:
            continue
        context.count("apply-tuning", "known")
        if found == choice_of(function, target):
            continue
        if admits(function, found, target, has_winograd=has_winograd):
            function.schedule = schedule_with(function, found, target)
            context.count("apply-tuning", "changed")


APPLY_TUNING = Pass("apply-tuning", run, __doc__)
