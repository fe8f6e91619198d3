"""Functions for tests of alias analysis: written as text, their values and ops found by name."""

from __future__ import annotations

from aot.analysis.alias.database import AliasDb
from aot.analysis.alias.lint import lint
from aot.frontends.text import import_text
from aot.ir.graph import Function, Module, Op, Value, walk
from aot.ir.verifier import verify


class Case:
    """A function, its database, and its values by the names that the text gives them."""

    def __init__(self, text: str) -> None:
        self.module: Module = import_text(text)
        self.function: Function = next(iter(self.module.functions.values()))
        self.db = AliasDb.of(self.function)

    def __getitem__(self, name: str) -> Value:
        found = [v for v in values_of(self.function) if v.name == name]
        assert len(found) == 1, f"{len(found)} values are named {name}"
        return found[0]

    def op(self, name: str) -> Op:
        """The op that makes value `name`; of an op without results, the one with that name."""
        for op in walk(self.function.block):
            if any(v.name == name for v in op.results) or (not op.results and op.name == name):
                return op
        raise KeyError(name)

    def order(self) -> str:
        """Names of the function's own ops, by their first results, in order."""
        return " ".join(op.results[0].name for op in self.function.block if op.results)

    def check(self) -> None:
        """The function is valid and the database is what one built anew would be."""
        verify(self.function)
        lint(self.db)


def values_of(function: Function) -> list[Value]:
    """All values, block arguments included."""
    found = list(function.inputs)
    for op in walk(function.block):
        found += [v for block in op.blocks for v in block.args]
        found += op.results
    return found
