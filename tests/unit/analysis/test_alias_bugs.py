"""Bugs that others' alias databases had: each is a test that ours does not.

The references are issues and pull requests of PyTorch (#) and of its fork csarofeen/pytorch.
"""

from __future__ import annotations

import pytest

from aot.analysis.alias.database import AliasDb, count_alias
from aot.analysis.alias.lint import lint
from aot.builder import Builder
from aot.ir.builtin import YIELD
from aot.ir.clone import clone_op
from aot.ir.graph import Block, Function, Op
from aot.ir.rewriter import Rewriter
from aot.ops.control import ASSIGN, CALL
from aot.ops.elementwise import NEG
from aot.ops.movement import RESHAPE
from aot.ops.structure import REGION
from tests.support.alias_answers import locations, may_alias, may_contain_alias
from tests.support.alias_cases import Case, values_of

CHAIN = """
func @f(%x: f32[2], %y: f32[2]) -> ("d") {
  %a = neg(%x) : f32[2]
  %b = neg(%x) : f32[2]
  %v = reshape(%a) {shape = [1, 2]} : f32[1, 2]
  %w = reshape(%v) {shape = [2]} : f32[2]
  %u = assign(%w, %y) : f32[2]
  %d = neg(%u) : f32[2]
  return(%d)
}
"""


def test_25425_answers_follow_the_graph() -> None:
    """Cached locations went stale when what a value pointed to changed, also at a distance."""
    c = Case(CHAIN)
    assert may_alias(c.db, c["w"], c["a"]) and not may_alias(c.db, c["w"], c["b"])
    assert may_alias(c.db, c["u"], c["a"])
    Rewriter(c.function).set_operand(c.op("v"), 0, c["b"])
    assert may_alias(c.db, c["w"], c["b"]) and not may_alias(c.db, c["w"], c["a"])
    assert may_alias(c.db, c["u"], c["b"]) and not may_alias(c.db, c["u"], c["a"])
    Rewriter(c.function).set_operand(c.op("v"), 0, c["x"])
    assert may_alias(c.db, c["u"], c["y"]), "x and y are outside, and so is u now"
    c.check()


def test_18146_16041_writes_to_wildcards() -> None:
    """Writes through what is unknown were missed: by the writer, and by who asks for the value."""
    c = Case("""
    func @f(%x: f32[2], %y: f32[2]) -> ("x") {
      %a = neg(%x) : f32[2]
      %b = neg(%x) : f32[2]
      %got = call(%a) {function = @g} : f32[2]
      %w = assign(%got, %b) : f32[2]
      return(%x)
    }
    func @g(%v: f32[2]) -> ("v") { return(%v) }
    """)
    call, w = c.op("got"), c.op("w")
    assert set(c.db.writers(c["x"])) == {call, w}
    assert set(c.db.writers(c["a"])) == {call, w}
    assert not c.db.has_writers(c["b"])
    assert c.db.writes_to_alias(w, [c["y"]]) and c.db.writes_to_alias(call, [c["got"]])


def test_35301_what_is_written_follows_what_values_are() -> None:
    """A lazy cache of writes was not told when the written value came to be another one."""
    c = Case(CHAIN)
    assert c.db.has_writers(c["a"]) and not c.db.has_writers(c["b"])
    Rewriter(c.function).set_operand(c.op("v"), 0, c["b"])
    assert c.db.has_writers(c["b"]) and not c.db.has_writers(c["a"])
    Rewriter(c.function).set_operand(c.op("u"), 0, c["a"])
    assert c.db.has_writers(c["a"]) and not c.db.has_writers(c["b"])
    c.check()


def test_44238_numbers_are_never_given_again() -> None:
    """A map by address took a new value for a destroyed one that had lived there."""
    c = Case(CHAIN)
    numbers = set(c.db.facts.numbers.values())
    for _ in range(50):
        made = Rewriter(c.function).at(c.op("d")).create(NEG, [c["x"]])
        number, (location,) = c.db.facts.numbers[made.result], locations(c.db, made.result)
        assert number not in numbers
        assert all(location not in locations(c.db, v) for v in values_of(c.function)[:-2])
        numbers.add(number)
        Rewriter(c.function).erase(made)
        del made
    c.check()


@pytest.mark.parametrize("name", ["d", "r"])
def test_37106_1338_deleted_values_leave_nothing(name: str) -> None:
    """There was no way to delete: dead values littered the graph, and writers stayed writers."""
    c = Case("""
    func @f(%x: f32[2], %n: i64[]) -> ("x") {
      %a = neg(%x) : f32[2]
      %d = assign(%a, %x) : f32[2]
      %r = loop(%n, _, %x) : f32[2] ^(%i: i64[], %v: f32[2]) {
        %on = constant {value = bool[] <true>} : bool[]
        %w = assign(%a, %v) : f32[2]
        yield(%on, %w)
      }
      return(%x)
    }
    """)
    assert len(list(c.db.writers(c["a"]))) == 2
    inside = len(values_of(c.function))
    Rewriter(c.function).erase(c.op(name))
    assert len(c.db.facts.numbers) == len(values_of(c.function)) < inside
    assert len(list(c.db.writers(c["a"]))) == 1
    c.check()
    for other in {"d", "r"} - {name}:
        Rewriter(c.function).erase(c.op(other))
    assert not c.db.has_writes
    c.check()


def fuse_one(function: Function, op: Op) -> Op:
    """A region of `op` alone takes its place, as the pass `fuse` does it."""
    inputs = [v for v in op.operands if v is not None]
    block = Block([v.type for v in inputs])
    into = Rewriter(function, block)
    into.insert(Op(op.record, block.args, op.attrs, [v.type for v in op.results]))
    assert block.first is not None
    into.insert(Op(YIELD, block.first.results, {}, []))
    region = Op(REGION, inputs, {}, [v.type for v in op.results], [block])
    Rewriter(function).at(op).insert(region)
    Rewriter(function).replace_op(op, region.results)
    return region


def fuse_again(function: Function, region: Op) -> Op:
    """A copy takes the place of a region."""
    made = clone_op(region, {}, Rewriter(function).at(region))
    Rewriter(function).replace_op(region, made.results)
    return made


def test_43743_fusion_updates_the_database() -> None:
    """A fuser that did not tell the database was wrong from its second group on."""
    c = Case(CHAIN)
    region = fuse_one(c.function, c.op("a"))
    assert c.db.has_writers(region.result) and may_alias(c.db, region.result, c["w"])
    c.check()
    inner = region.blocks[0].first
    assert inner is not None and c.db.has_writers(inner.result)
    written = fuse_one(c.function, c.op("u"))
    assert c.db.writes_to_alias(written, [region.result])
    c.check()


def test_43743_the_pass_updates_it() -> None:
    from aot.passes.fusion.fuse import fuse

    b = Builder()
    x = b.input("x", "f32[4, 8]")
    for _ in range(5):
        y = b.op("softmax", b.op("relu", b.op("add", x, 1.0)), axis=1)
        x = b.op("reshape", b.op("mul", y, x), shape=(4, 8))
    b.output("y", x)
    function = b.module().main
    with count_alias() as counts:
        db = AliasDb.of(function)
        assert may_alias(db, x, y) is False  # a question that makes it follow all changes
        fuse(function)
        lint(db)
    assert counts.builds == 1 and counts.updates > 0
    assert any(op.record is REGION for op in function.block)


def test_65122_65178_containers_cost_what_they_hold() -> None:
    """Without a cache of what is contained start-up was quadratic; with one it went stale."""
    work = []
    for count in (200, 400):
        b = Builder()
        x = b.input("x", "f32[2]")
        value = b.op("neg", x)
        for _ in range(count):
            value = b.op("get", b.op("tuple", value, value), b.constant(0))
        b.output("y", value)
        function = b.module().main
        db = AliasDb.build(function)
        assert len(locations(db, value)) == 1
        first = function.block.first
        assert first is not None
        Rewriter(function).replace(first.result, x)
        assert may_alias(db, value, x)
        work.append(db.facts.graph.work)
        lint(db)
    assert work[1] <= 2.2 * work[0]


def test_65178_a_wildcard_reaches_what_is_contained() -> None:
    c = Case("""
    func @f(%x: f32[2], %i: i64[]) -> ("x") {
      %a = neg(%x) : f32[2]
      %t = tuple(%a) : f32[1, 2]
      %e = get(%t, %i) : f32[2]
      return(%x)
    }
    """)
    assert not may_contain_alias(c.db, c["t"], c["x"])
    from aot.ir.graph import FunctionRef

    attrs = {"function": FunctionRef("g")}
    call = Op(CALL, [c["t"]], attrs, [c["a"].type])
    Rewriter(c.function).at(c.function.block.terminator).insert(call)
    assert c.db.has_writers(c["a"]), "through the tuple"
    assert may_alias(c.db, call.result, c["a"]) and may_alias(c.db, call.result, c["x"])
    lint(c.db)


def in_place_chain(count: int) -> Function:
    """One memory, written `count` times."""
    b = Builder()
    x = b.op("neg", b.input("x", "f32[2]"))
    for _ in range(count):
        x = b.op("assign", b.op("reshape", x, shape=(2,)), b.op("neg", x))
    b.output("y", x)
    return b.module().main


def test_42141_rewriting_one_by_one_does_not_rebuild() -> None:
    """Rebuilding in a loop over ops was quadratic; so is following a chain at every step."""
    work = []
    for count in (100, 200):
        function = in_place_chain(count)
        root = function.block.first
        with count_alias() as counts:
            db = AliasDb.of(function)
            for op in list(function.block):
                if op.record is NEG:
                    region = fuse_one(function, op)
                    assert not may_alias(db, region.result, function.inputs[0])
                    # the chain's memory itself, time and again
                    root = fuse_again(function, region if op is root else root)
                    assert db.has_writers(root.result)
            lint(db)
        assert counts.builds == 1
        work.append(db.facts.graph.work)
    assert work[1] <= 2.2 * work[0]


def test_35421_writes_are_removed_one_by_one() -> None:
    """A pass that turns writes into values needs the database to be right after each of them."""
    function = in_place_chain(6)
    db = AliasDb.of(function)
    writers = [op for op in function.block if op.record is ASSIGN]
    for left, op in reversed(list(enumerate(writers))):
        assert op.operands[1] is not None
        Rewriter(function).replace_op(op, [op.operands[1]])
        lint(db)
        assert len(db.facts.writes) == left
    assert not db.has_writes
    assert not any(db.has_writers(v) for v in values_of(function))


def test_18491_what_is_computed_twice_may_differ() -> None:
    """CSE without alias information made one of two reads with a write between them."""
    from aot.options import CompileOptions
    from aot.passes.base import PassContext
    from aot.passes.simplify.cse import CSE

    c = Case("""
    func @f(%x: f32[2], %y: f32[2], %k: i64[2]) -> ("a", "b", "c", "d") {
      %a = neg(%x) : f32[2]
      %i = add(%k, %k) : i64[2]
      %one = fill {shape = [2], value = f32[] <1.0>} : f32[2]
      %u = assign(%x, %y) : f32[2]
      %b = neg(%x) : f32[2]
      %j = add(%k, %k) : i64[2]
      %two = fill {shape = [2], value = f32[] <1.0>} : f32[2]
      %v = assign(%one, %y) : f32[2]
      %w = reshape(%one) {shape = [1, 2]} : f32[1, 2]
      %z = reshape(%one) {shape = [1, 2]} : f32[1, 2]
      %c = add(%two, %v) : f32[2]
      %s = add(%w, %z) : f32[1, 2]
      %d = add(%i, %j) : i64[2]
      return(%a, %b, %c, %d)
    }
    """)
    CSE.run(c.module, PassContext(CompileOptions()))
    names = [op.results[0].name for op in c.function.block if op.results]
    assert names == ["a", "i", "one", "u", "b", "two", "v", "w", "c", "s", "d"]
    c.check()


def test_folding_and_rules_leave_written_memory() -> None:
    """As CSE, so others that take values for what never changes."""
    import numpy as np

    from aot.frontends.text import import_text
    from aot.ir.interpreter.interpreter import run
    from aot.options import CompileOptions
    from aot.passes.base import PassContext
    from aot.passes.simplify.canonicalize import CANONICALIZE
    from aot.passes.simplify.fold_constants import FOLD_CONSTANTS

    text = """
    func @f(%x: f32[2]) -> ("r", "same", "free") {
      %zeros = fill {shape = [2], value = f32[] <0.0>} : f32[2]
      %copy = add(%x, %x) : f32[2]
      %w = assign(%zeros, %x) : f32[2]
      %u = assign(%copy, %x) : f32[2]
      %n = neg(%w) : f32[2]
      %m = neg(%n) : f32[2]
      %more = assign(%copy, %n) : f32[2]
      %m2 = neg(%n) : f32[2]
      %free = neg(%m2) : f32[2]
      return(%w, %m, %free)
    }
    """
    module = import_text(text)
    function = next(iter(module.functions.values()))
    x = np.array([1, 2], np.float32)
    expected = [a.tolist() for a in run(function, [x.copy()])]
    for step in (FOLD_CONSTANTS, CANONICALIZE):
        step.run(module, PassContext(CompileOptions()))
        assert [a.tolist() for a in run(function, [x.copy()])] == expected
    db = AliasDb.of(function)
    lint(db)
    assert any(op.name == "fill" for op in function.block), "it is written: no constant"


def test_a_loop_that_may_not_run() -> None:
    """What a loop gives where it runs zero times, and what comes round, were not propagated."""
    c = Case("""
    func @f(%n: i64[], %x: f32[2]) -> ("x") {
      %a = neg(%x) : f32[2]
      %b = neg(%x) : f32[2]
      %r, %s = loop(%n, _, %a, %b) : f32[2], f32[2] ^(%i: i64[], %v: f32[2], %w: f32[2]) {
        %on = constant {value = bool[] <true>} : bool[]
        %fresh = neg(%v) : f32[2]
        yield(%on, %w, %fresh)
      }
      return(%x)
    }
    """)
    assert may_alias(c.db, c["r"], c["a"]) and may_alias(c.db, c["r"], c["b"])
    assert may_alias(c.db, c["v"], c["fresh"]), "two runs on"
    Rewriter(c.function).set_operand(c.op("r"), 2, c["b"])
    assert not may_alias(c.db, c["r"], c["a"]), "nothing in the loop supports it but itself"
    c.check()


def test_replacing_after_copying_keeps_other_owners() -> None:
    """A replaced value that others had been copied from lost them."""
    c = Case(CHAIN)
    block = Block([c["a"].type, c["a"].type])
    first, second = block.args
    c.db.copy(c["a"], first)
    c.db.copy(first, second)
    assert may_alias(c.db, first, c["w"]) and may_alias(c.db, second, c["a"])
    fresh = Rewriter(c.function).at(c.op("v")).create(NEG, [c["y"]])
    a = c["a"]
    Rewriter(c.function).replace(a, fresh.result)
    assert may_alias(c.db, fresh.result, c["w"]) and not may_alias(c.db, a, c["w"])
    assert may_alias(c.db, first, a) and may_alias(c.db, second, first)
    c.check()


def test_fusing_explicitly_is_what_a_rewriter_tells() -> None:
    c = Case(CHAIN)
    function, op = c.function, c.op("a")
    block = Block([c["x"].type])
    c.db.copy(c["x"], block.args[0])
    into = Rewriter(function, block)
    inner = into.insert(Op(NEG, block.args, {}, [c["x"].type]))
    into.insert(Op(YIELD, inner.results, {}, []))
    region = Op(REGION, [c["x"]], {}, [c["x"].type], [block])
    Rewriter(function).at(op).insert(region)
    epoch, location = c.db.epoch, locations(c.db, c["a"])
    c.db.fuse([op], region, [(op.result, region.result)])
    assert c.db.epoch > epoch and locations(c.db, region.result) == location
    for user, index in list(op.result.uses):
        Rewriter(function).set_operand(user, index, region.result)
    Rewriter(function).erase(op)
    assert locations(c.db, region.result) == location == locations(c.db, c["w"])
    c.check()


def test_views_made_while_rewriting() -> None:
    c = Case(CHAIN)
    made = Rewriter(c.function).at(c.op("d")).create(RESHAPE, [c["u"]], {"shape": (2,)})
    assert c.db.has_writers(made.result) and may_alias(c.db, made.result, c["a"])
    Rewriter(c.function).set_operand(c.op("d"), 0, made.result)
    c.check()


def test_lint_finds_what_differs() -> None:
    from aot.errors import InternalError

    c = Case(CHAIN)
    facts = c.db.facts
    wrong = facts.graph.answers[2 * facts.numbers[c["b"]]]
    facts.graph.answers[2 * facts.numbers[c["w"]]] = wrong
    with pytest.raises(InternalError, match="may be .*, rebuilt it may be"):
        lint(c.db)
    c = Case(CHAIN)
    assert c.db.facts.numbers
    c.function.listeners.clear()
    Rewriter(c.function).at(c.op("d")).create(NEG, [c["x"]])
    with pytest.raises(InternalError, match="is missing"):
        lint(c.db)
