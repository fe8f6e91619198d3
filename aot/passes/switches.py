"""The environment switches for debugging, all of them. Nothing else reads the environment.

AOT_PRINT=after:NAME      print the IR after pass NAME (several: after:cse,after:dce)
AOT_PRINT=changed         print the IR after each pass that changed it
AOT_VERIFY=each           check every invariant of the IR after each pass
AOT_STOP_AFTER=NAME       end the pipeline after pass NAME
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from aot.errors import CompileError


@dataclass(frozen=True)
class Switches:
    """Attributes:
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
    """The switches that the environment sets.

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
