"""The switches for debugging passes, from the environment and from `--disable`.

AOT_PRINT=after:NAME      print the IR after pass NAME (several: after:cse,after:dce)
AOT_PRINT=changed         print the IR after each pass that changed it
AOT_VERIFY=each           check every invariant of the IR after each pass
AOT_STOP_AFTER=NAME       end the pipeline after pass NAME
aotc compile --disable NAME   do without a pass or a feature, to compare (DISABLEABLE)

`docs/use/environment.md` has all variables of the environment, of other parts and of the runtime
too. Imports no pass, so that the options of a compile can name them cheaply.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from aot.base.records import dataclass
from aot.errors import CompileError

# Passes that may be left out, which the runner of passes does, and what becomes of a model then.
PASSES: Mapping[str, str] = {
    "defer-transposes": "transposes stay where the model has them",
    "cse": "ops that compute the same are computed each for itself",
    "algebra": "scales stay beside the weights, and norms, gelu and attention decomposed: no rule "
    "that rounds otherwise runs",
    "split-recurrences": "recurrent layers multiply their input step by step",
    "merge-siblings": "contractions that read the same operand stay apart",
    "assign-layouts": "values keep the layouts of the model",
    "rematerialize-iota": "positions and masks are computed once and stored",
    "tabulate": "activations between numbers of 8 bits are computed, not looked up",
    "join-regions": "small dispatches that follow each other stay apart",
    "despecialise": "executables that differ in extents only stay apart",
}
# What is no pass, or a part of one; who does it asks `CompileOptions.is_enabled`.
FEATURES: Mapping[str, str] = {
    "fusion": "each op is a dispatch of its own",
    "alias-concat": "concats and slices are copied",
    "lazy-shapes": "users of a changed value are updated at once; the module is the same",
    "blocked-weights": "weights of floats' products that are stored quantised become floats",
    "integer-contractions": "contractions of quantised models compute in floats",
    "proofs": "kernels are not proved to stay inside their memory",
    "share-constants": "each constant is stored where it was found, equal or not",
}
DISABLEABLE: Mapping[str, str] = {**FEATURES, **PASSES}


@dataclass(frozen=True)
class Switches:
    """The debugging switches of a compile.

    Attributes:
        print_after: passes after which the IR is printed.
        is_printing_changes: print it after each pass that changed it.
        is_verifying_each: verify it after each pass.
        stop_after: the last pass that runs; "" for all.
    """

    print_after: frozenset[str] = frozenset()
    is_printing_changes: bool = False
    is_verifying_each: bool = False
    stop_after: str = ""


def from_environment(environment: Mapping[str, str] | None = None) -> Switches:
    """The debugging switches that environment variables set.

    Raises:
        CompileError: a switch has a value that means nothing.
    """
    found = os.environ if environment is None else environment
    after: set[str] = set()
    is_printing_changes = False
    for item in filter(None, found.get("AOT_PRINT", "").split(",")):
        kind, _, name = item.partition(":")
        if item == "changed":
            is_printing_changes = True
        elif kind == "after" and name:
            after.add(name)
        else:
            raise CompileError(f"AOT_PRINT is {item!r}, expected 'after:NAME' or 'changed'")
    verify = found.get("AOT_VERIFY", "")
    if verify not in ("", "each"):
        raise CompileError(f"AOT_VERIFY is {verify!r}, expected 'each'")
    return Switches(
        frozenset(after), is_printing_changes, verify == "each", found.get("AOT_STOP_AFTER", "")
    )
