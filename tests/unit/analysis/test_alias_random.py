"""Random functions and changes: the database that was updated is the one that is built anew, what
shares memory in a run may alias, and passes keep what memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.analysis.alias.database import AliasDb, count_alias
from aot.analysis.alias.lint import lint
from aot.ir.graph import Block, Module, Op, Value
from aot.ir.interpreter.interpreter import _MemoryFrame, bind_symbols, run
from aot.ir.interpreter.memory import Place, States
from aot.ir.verifier import verify
from aot.options import CompileOptions
from aot.passes.base import PassContext
from aot.passes.order import MODEL_PASSES
from tests.support.alias_answers import may_alias, may_contain_alias
from tests.support.alias_graphs import Changes, Graph

EXAMPLES = settings(max_examples=60, deadline=None)
MANY = settings(max_examples=3000, deadline=None)


def drawn(data: st.DataObject) -> Any:
    return lambda below: data.draw(st.integers(0, below - 1))


def check_updates(data: st.DataObject) -> None:
    choose = drawn(data)
    graph = Graph(choose, 1 + choose(12))
    function = graph.module.main
    verify(graph.module)
    db = AliasDb.of(function)
    lint(db)
    changes = Changes(function, choose)
    for _ in range(1 + choose(12)):
        changes.make()
        verify(function)
        if choose(2):  # several changes are often settled together
            lint(db)
    lint(db)
    assert AliasDb.of(function) is db


@EXAMPLES
@given(st.data())
def test_updated_and_rebuilt_databases_agree(data: st.DataObject) -> None:
    check_updates(data)


@pytest.mark.sweep
@MANY
@given(st.data())
def test_updated_and_rebuilt_databases_agree_on_many(data: st.DataObject) -> None:
    check_updates(data)


# the interpreter as the oracle


class _Recorder(_MemoryFrame):
    """Keeps every place that a value ever had."""

    places: dict[Value, list[Place]]

    def run(self, block: Block, arguments: Sequence[Any]) -> list[Any]:
        for value, place in zip(block.args, arguments, strict=True):
            self.places.setdefault(value, []).append(place)
        return super().run(block, arguments)

    def evaluate(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        results = super().evaluate(op, operands)
        for value, place in zip(op.results, results, strict=True):
            self.places.setdefault(value, []).append(place)
        return results


def inputs_of(module: Module, choose: Any) -> list[Any]:
    """Arrays for the inputs; matrices are sometimes the same memory twice."""
    shared = np.array([[1, 2], [3, 4]], np.float32)
    found: list[Any] = [np.array(bool(choose(2))), np.array(choose(4), np.int64)]
    for number, value in enumerate(module.main.inputs):
        if value.name.startswith("x"):
            is_shared = choose(2)
            found.append(
                shared if is_shared else np.array([[number, -number], [1, -2]], np.float32)
            )
    return found


def cells(places: Sequence[Place]) -> set[tuple[int, int]]:
    return {
        (id(place.buffers[which].array.base), int(index))
        if place.buffers[which].array.base is not None
        else (id(place.buffers[which].array), int(index))
        for place in places
        for which, index in zip(place.which.flat, place.index.flat, strict=True)
    }


def check_sharing(data: st.DataObject) -> None:
    choose = drawn(data)
    module = Graph(choose, 1 + choose(12)).module
    function = module.main
    arrays = inputs_of(module, choose)
    frame = _Recorder(function, bind_symbols(function, [a.shape for a in arrays]), False, module)
    frame.states, frame.places = {}, {}
    with np.errstate(all="ignore"):
        frame.run(function.block, [Place.of(a) for a in arrays])
    db = AliasDb.of(function)
    seen = [(v, cells(places)) for v, places in frame.places.items()]
    for number, (value, mine) in enumerate(seen):
        for other, theirs in seen[:number]:
            if mine & theirs:
                assert may_contain_alias(db, value, other), (value, other)
                is_kept = any(v.op is not None and v.type.rank == 3 for v in (value, other))
                assert is_kept or may_alias(db, value, other), (value, other)


@EXAMPLES
@given(st.data())
def test_what_shares_memory_in_a_run_may_alias(data: st.DataObject) -> None:
    check_sharing(data)


@pytest.mark.sweep
@MANY
@given(st.data())
def test_what_shares_memory_in_many_runs_may_alias(data: st.DataObject) -> None:
    check_sharing(data)


def outcome(module: Module, arrays: Sequence[Any]) -> list[Any]:
    """Results, and what the caller and the next call see: written inputs, states (which are zero
    at first, so that one that is zero need not be there)."""
    unique = {id(a): a.copy() for a in arrays}
    given_arrays = [unique[id(a)] for a in arrays]
    states: States = {}
    results = run(module.main, given_arrays, module=module, states=states)
    kept = [states[name].array for name in sorted(states) if states[name].array.any()]
    results = results[: len(results) - len(module.main.updates)]
    return [a.tolist() for a in (*results, *given_arrays, *kept)]


# passes that know values, on functions in which memory changes


def check_passes(data: st.DataObject) -> None:
    choose = drawn(data)
    module = Graph(choose, 2 + choose(14)).module
    arrays = [a.copy() for a in inputs_of(module, choose)]  # what is written is no other input
    expected = outcome(module, arrays)
    with count_alias() as counts:
        for step in MODEL_PASSES:
            step.run(module, PassContext(CompileOptions()))
            verify(module, during=f"after {step.name}")
            assert outcome(module, arrays) == expected, step.name
            for function in module.functions.values():
                for listener in function.listeners:
                    assert isinstance(listener, AliasDb)
                    lint(listener)
    assert counts.builds <= len(module.functions)


@EXAMPLES
@given(st.data())
def test_passes_keep_what_memory_holds(data: st.DataObject) -> None:
    check_passes(data)


@pytest.mark.sweep
@MANY
@given(st.data())
def test_passes_keep_what_memory_holds_in_many(data: st.DataObject) -> None:
    check_passes(data)
