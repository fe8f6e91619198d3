"""What the alias database answers: writes, containers, outside memory, blocks, loops."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aot.analysis.alias.database import AliasDb, count_alias
from aot.analysis.alias.lint import lint
from aot.errors import InternalError
from tests.support.alias_answers import may_alias, may_contain_alias
from tests.support.alias_cases import Case
from tests.support.paths import ROOT

CALLEE = """
func @g(%v: f32[2]) -> ("v") { return(%v) }
"""


def case(inputs: str, body: str, results: str = "%x", extra: str = "") -> Case:
    names = ", ".join(f'"r{n}"' for n in range(len(results.split(","))))
    return Case(f"func @f({inputs}) -> ({names}) {{\n{body}\nreturn({results})\n}}\n{extra}")


XY = "%x: f32[2], %y: f32[2]"


# write tracking


def test_writes_reach_aliases() -> None:
    c = case(
        XY,
        """
        %pure = add(%y, %y) : f32[2]
        %written = assign(%x, %y) : f32[2]
        %view = reshape(%x) {shape = [1, 2]} : f32[1, 2]
        """,
    )
    db, x, y, view = c.db, c["x"], c["y"], c["view"]
    assert may_alias(db, view, x) and may_alias(db, x, y)
    assert not db.writes_to_alias(c.op("pure"), [x])
    assert not db.writes_to_alias(c.op("pure"), [y])
    assert db.writes_to_alias(c.op("written"), [x])
    assert db.writes_to_alias(c.op("written"), [x, y])
    assert db.writes_to_alias(c.op("written"), [view])
    assert list(db.writers(view)) == [c.op("written")]


def test_writes_in_blocks() -> None:
    c = case(
        "%t: bool[], %x: f32[2]",
        """
        %quiet = if(%t) : f32[2] ^() { yield(%x) } ^() { %n = neg(%x) : f32[2] yield(%n) }
        %loud = if(%t) : f32[2] ^() {
          %w = assign(%x, %quiet) : f32[2]
          yield(%w)
        } ^() { yield(%x) }
        """,
    )
    assert c.db.writes_to_alias(c.op("loud"), [c["x"]])
    assert not c.db.writes_to_alias(c.op("quiet"), [c["x"]])
    assert c.db.has_writers(c["quiet"]), "it may be x"


def test_has_writers() -> None:
    c = case(
        XY,
        """
        %one = constant {value = f32[2] <1.0, 2.0>} : f32[2]
        %copy = neg(%one) : f32[2]
        %w = assign(%x, %one) : f32[2]
        """,
    )
    assert c.db.has_writers(c["x"])
    assert c.db.has_writers(c["y"]), "inputs may be the same memory"
    assert not c.db.has_writers(c["one"]), "nobody writes a constant"
    assert not c.db.has_writers(c["copy"])
    assert c.db.has_writers(c.op("w")) and not c.db.has_writers(c.op("copy"))


def test_what_is_absent_has_no_writers() -> None:
    c = case(
        "%n: i64[], %x: f32[2]",
        """
        %y = loop(_, _, %x) {trips = 3} : f32[2] ^(%i: i64[], %v: f32[2]) {
          %on = constant {value = bool[] <true>} : bool[]
          %w = assign(%v, %v) : f32[2]
          yield(%on, %w)
        }
        """,
    )
    absent = c.op("y").operands[0]
    assert absent is None
    assert not c.db.has_writers(absent)
    assert c.db.has_writers(c.op("y"))


# containers


def test_may_contain_alias() -> None:
    c = case(
        "%x: f32[2], %k: i64[]",
        """
        %a = neg(%x) : f32[2]
        %b = neg(%x) : f32[2]
        %t = tuple(%a, %b) : f32[2, 2]
        %other = neg(%x) : f32[2]
        %e = get(%t, %k) : f32[2]
        """,
    )
    db = c.db
    assert not may_alias(db, c["t"], c["a"]), "a tuple has no memory of its own"
    assert may_contain_alias(db, c["t"], c["a"]) and may_contain_alias(db, c["b"], c["t"])
    assert not may_contain_alias(db, c["t"], c["other"])
    assert may_alias(db, c["e"], c["a"]) and may_alias(db, c["e"], c["b"])
    assert not may_alias(db, c["e"], c["other"])
    assert not may_alias(db, c["a"], c["b"])


def test_numbers_do_not_alias_containers() -> None:
    c = case(
        "%x: f32[2], %k: i64[]",
        "%t = tuple(%x, %x) : f32[2, 2]\n%n = shape_of(%x) : i64[1]",
    )
    for number in ("k", "n"):
        assert not may_contain_alias(c.db, c[number], c["t"])


def test_inputs_can_alias_results() -> None:
    c = case(XY, "%t = tuple(%x) : f32[1, 2]", "%t")
    (result,) = c.function.results
    assert may_contain_alias(c.db, result, c["x"])
    assert may_contain_alias(c.db, result, c["y"]), "x and y may be the same memory"


def test_nested_tuples() -> None:
    c = case(
        "%x: f32[2], %k: i64[]",
        """
        %a = neg(%x) : f32[2]
        %b = neg(%x) : f32[2]
        %inner = tuple(%a, %b) : f32[2, 2]
        %single = tuple(%inner) : f32[1, 2, 2]
        %out = get(%single, %k) : f32[2, 2]
        %e = get(%out, %k) : f32[2]
        %far = neg(%b) : f32[2]
        """,
    )
    for name in ("inner", "single", "out"):
        assert may_contain_alias(c.db, c[name], c["a"]), name
        assert not may_contain_alias(c.db, c[name], c["far"]), name
    assert may_alias(c.db, c["e"], c["b"]) and not may_alias(c.db, c["e"], c["x"])


def test_separate_tuples_share_what_they_share() -> None:
    c = case(
        "%x: f32[2], %k: i64[]",
        """
        %a = neg(%x) : f32[2]
        %b = neg(%x) : f32[2]
        %c = neg(%x) : f32[2]
        %ab = tuple(%a, %b) : f32[2, 2]
        %bc = tuple(%b, %c) : f32[2, 2]
        %cc = tuple(%c, %c) : f32[2, 2]
        """,
    )
    assert may_contain_alias(c.db, c["ab"], c["bc"]) and not may_alias(c.db, c["ab"], c["bc"])
    assert not may_contain_alias(c.db, c["ab"], c["cc"])


def test_a_tuple_that_is_chosen_keeps_what_either_keeps() -> None:
    c = case(
        "%t: bool[], %x: f32[2], %k: i64[]",
        """
        %a = neg(%x) : f32[2]
        %b = neg(%x) : f32[2]
        %one = tuple(%a) : f32[1, 2]
        %chosen = if(%t) : f32[1, 2] ^() { yield(%one) } ^() {
          %two = tuple(%b) : f32[1, 2]
          yield(%two)
        }
        %e = get(%chosen, %k) : f32[2]
        """,
    )
    assert may_alias(c.db, c["e"], c["a"]) and may_alias(c.db, c["e"], c["b"])
    assert not may_contain_alias(c.db, c["chosen"], c["x"])


def test_conservative_ops_write_what_containers_keep() -> None:
    c = case(
        "%x: f32[2]",
        """
        %a = neg(%x) : f32[2]
        %b = neg(%x) : f32[2]
        %t = tuple(%a) : f32[1, 2]
        %u = call(%t) {function = @h} : f32[1, 2]
        """,
        "%b",
        'func @h(%t: f32[1, 2]) -> ("t") { return(%t) }',
    )
    call = c.op("u")
    assert c.db.writes_to_alias(call, [c["a"]]) and c.db.has_writers(c["a"])
    assert c.db.writes_to_alias(call, [c["t"]])
    assert not c.db.has_writers(c["b"])
    assert may_contain_alias(c.db, c["u"], c["a"])


@pytest.mark.parametrize("is_nested", [False, True])
def test_contained_writes_conflict_with_reads(is_nested: bool) -> None:
    wrap = (
        "%t = tuple(%s) : f32[1, 1, 2]"
        if is_nested
        else "%t = reshape(%s) {shape = [1, 2]} : f32[1, 2]"
    )
    unwrap = (
        "%o = get(%t, %k) : f32[1, 2]"
        if is_nested
        else "%o = reshape(%t) {shape = [1, 2]} : f32[1, 2]"
    )
    c = case(
        "%x: f32[2], %k: i64[]",
        f"""
        %a = neg(%x) : f32[2]
        %b = neg(%x) : f32[2]
        %s = tuple(%a) : f32[1, 2]
        {wrap}
        %readsA = neg(%a) : f32[2]
        %readsB = neg(%b) : f32[2]
        {unwrap}
        %e = get(%o, %k) : f32[2]
        %w = assign(%e, %b) : f32[2]
        %readsT = neg(%s) : f32[1, 2]
        """,
    )
    write = c.db.effects(c.op("w"))
    assert write.conflicts(c.db.effects(c.op("readsA"))), "w writes what the tuple keeps"
    assert not write.conflicts(c.db.effects(c.op("readsB")))
    assert write.conflicts(c.db.effects(c.op("readsT")))


# outside memory


def test_outside_memory() -> None:
    c = case(
        "%a: f32[2], %b: f32[2], %k: i64[2]",
        """
        %fresh = neg(%a) : f32[2]
        %got = call(%fresh) {function = @g} : f32[2]
        """,
        "%got",
        CALLEE,
    )
    db = c.db
    assert may_alias(db, c["a"], c["b"])
    assert may_alias(db, c["got"], c["a"]), "a call may give what is outside"
    assert may_alias(db, c["got"], c["fresh"]), "or what it was given"
    assert not may_alias(db, c["fresh"], c["a"])
    assert db.has_writers(c["a"]) and db.has_writers(c["k"]), "a call may write all that is outside"


def test_types_isolate_outside_memory() -> None:
    c = case(
        "%a: f32[2], %k: i64[2]",
        """
        %w = assign(%a, %a) : f32[2]
        """,
        "%k",
    )
    assert not may_alias(c.db, c["a"], c["k"])
    assert c.db.has_writers(c["a"]) and not c.db.has_writers(c["k"])


def test_containers_of_outside_memory_keep_their_types_apart() -> None:
    c = case(
        "%a: f32[2], %k: i64[2], %i: i64[]",
        """
        %ta = tuple(%a, %a) : f32[2, 2]
        %tk = tuple(%k, %k) : i64[2, 2]
        %w = assign(%k, %k) : i64[2]
        """,
        "%i",
    )
    assert not may_contain_alias(c.db, c["ta"], c["tk"])
    assert c.db.has_writers(c["tk"]) and not c.db.has_writers(c["ta"])


# states


def test_states_are_memory_of_their_own() -> None:
    c = case(
        "%x: f32[2]",
        """
        %one = state {variable = "one", dtype = f32, shape = [2]} : f32[2]
        %two = state {variable = "two", dtype = f32, shape = [2]} : f32[2]
        %again = state {variable = "one", dtype = f32, shape = [1, 2]} : f32[1, 2]
        %w = assign(%again, %again) : f32[1, 2]
        """,
    )
    assert may_alias(c.db, c["one"], c["again"]) and c.db.has_writers(c["one"])
    assert not may_alias(c.db, c["one"], c["two"]) and not c.db.has_writers(c["two"])
    assert not may_alias(c.db, c["one"], c["x"])


def test_calls_reach_states() -> None:
    c = case(
        "%x: f32[2]",
        """
        %got = call(%x) {function = @g} : f32[2]
        %one = state {variable = "one", dtype = f32, shape = [2]} : f32[2]
        """,
        "%got",
        CALLEE,
    )
    assert c.db.has_writers(c["one"])
    assert may_alias(c.db, c["got"], c["one"])


# blocks and loops


def test_branches_are_united() -> None:
    c = case(
        "%t: bool[], %x: f32[2]",
        """
        %a = neg(%x) : f32[2]
        %b = neg(%x) : f32[2]
        %y, %z = if(%t) : f32[2], f32[2] ^() { yield(%a, %a) } ^() {
          %n = neg(%b) : f32[2]
          yield(%b, %n)
        }
        """,
    )
    db = c.db
    assert may_alias(db, c["y"], c["a"]) and may_alias(db, c["y"], c["b"])
    assert may_alias(db, c["z"], c["a"]) and may_alias(db, c["z"], c["n"])
    assert not may_alias(db, c["z"], c["b"]) and not may_alias(db, c["y"], c["n"])


def loop(carried: str, body: str, yields: str, count: int = 2, trips: str = "") -> str:
    """A loop on x and y, with results r0, r1 and arguments v0, v1."""
    names = ", ".join(f"%r{n}" for n in range(count))
    types = ", ".join(["f32[2]"] * count)
    args = ", ".join(f"%v{n}: f32[2]" for n in range(2))
    return f"""
    {names} = loop(%n, _, {carried}){trips} : {types} ^(%i: i64[], {args}) {{
      %on = constant {{value = bool[] <true>}} : bool[]
      {body}
      yield(%on, {yields})
    }}
    """


FRESH_AB = "%a = neg(%x) : f32[2]\n%b = neg(%x) : f32[2]\n"


def test_a_loop_that_runs_zero_times_gives_its_operands() -> None:
    c = case(
        "%n: i64[], %x: f32[2]",
        FRESH_AB + loop("%a, %b", "%p = neg(%v0) : f32[2]\n%q = neg(%v1) : f32[2]", "%p, %q"),
    )
    assert may_alias(c.db, c["r0"], c["a"]), "zero runs"
    assert may_alias(c.db, c["r0"], c["p"]) and may_alias(c.db, c["v0"], c["p"])
    assert not may_alias(c.db, c["r0"], c["b"]) and not may_alias(c.db, c["r0"], c["q"])


def test_loops_that_swap_carry_aliases_over_runs() -> None:
    c = case("%n: i64[], %x: f32[2]", FRESH_AB + loop("%a, %b", "", "%v1, %v0"), results="%x")
    for result in ("r0", "r1", "v0", "v1"):
        assert may_alias(c.db, c[result], c["a"]) and may_alias(c.db, c[result], c["b"]), result


def test_what_a_later_run_yields_is_an_earlier_ones_argument() -> None:
    c = case(
        "%n: i64[], %x: f32[2]",
        FRESH_AB
        + loop(
            "%a, %b",
            "%w = assign(%v0, %x) : f32[2]\n%view = reshape(%v1) {shape = [2]} : f32[2]",
            "%view, %x",
        ),
    )
    # run 1 writes a, run 2 writes b, run 3 writes x
    assert all(c.db.has_writers(c[name]) for name in ("a", "b", "x"))
    assert c.db.writes_to_alias(c.op("r0"), [c["x"]])


def test_stacked_results_are_copies() -> None:
    text = loop("%a, %b", "", "%v0, %v1, %v0", 3, " {trips = 4}")
    c = case(
        "%n: i64[], %x: f32[2]",
        FRESH_AB + text.replace(": f32[2], f32[2], f32[2] ^", ": f32[2], f32[2], f32[4, 2] ^"),
    )
    assert not may_alias(c.db, c["r2"], c["a"]) and may_alias(c.db, c["r0"], c["a"])


def test_regions_see_their_operands_memory() -> None:
    c = case(
        "%x: f32[2]",
        """
        %a = neg(%x) : f32[2]
        %r = region(%a, %x) {ties = [0]} : f32[2] ^(%p: f32[2], %q: f32[2]) {
          %s = add(%p, %q) : f32[2]
          yield(%s)
        }
        %z = region(%a, %x) : f32[2] ^(%k: f32[2], %l: f32[2]) {
          %w = assign(%k, %l) : f32[2]
          yield(%w)
        }
        """,
    )
    assert not may_alias(c.db, c["r"], c["a"]), "a tie is no alias: a is dead where it is taken"
    assert may_alias(c.db, c["p"], c["a"]) and may_alias(c.db, c["z"], c["a"])
    assert list(c.db.writers(c["a"])) == [c.op("w")]
    assert c.db.writes_to_alias(c.op("z"), [c["a"]])


# building


def test_a_function_has_one_database() -> None:
    with count_alias() as counts:
        c = case(XY, "%a = neg(%x) : f32[2]")
        assert AliasDb.of(c.function) is c.db
        assert (counts.builds, counts.updates) == (1, 0)


def test_values_of_others_are_refused() -> None:
    c, other = (case(XY, "%a = neg(%x) : f32[2]") for _ in "ab")
    with pytest.raises(InternalError, match="is no value of function 'f', or was deleted"):
        may_alias(c.db, c["a"], other["a"])


# views by their types


def test_what_types_make_a_view_may_alias_and_still_reads() -> None:
    c = case(
        "%x: f32[4, 2]",
        """
        %a = neg(%x) : f32[4, 2]
        %rows = slice(%a) {starts = [1, 0], stops = [3, 2], steps = [1, 1]} : f32[2, 2]
        %cols = slice(%a) {starts = [0, 1], stops = [4, 2], steps = [1, 1]} : f32[4, 1]
        %w = assign(%a, %x) : f32[4, 2]
        """,
    )
    assert may_alias(c.db, c["rows"], c["a"]), "rows of a dense tensor lie in it as they are"
    assert not may_alias(c.db, c["cols"], c["a"])
    # by their meaning both are copies
    write = c.db.effects(c.op("w"))
    assert write.conflicts(c.db.effects(c.op("rows")))
    assert write.conflicts(c.db.effects(c.op("cols")))


def test_a_type_that_changes_makes_or_ends_a_view() -> None:
    from aot.ir.rewriter import Rewriter
    from aot.ir.types import Layout, TensorType

    c = case(
        "%x: f32[4, 2]",
        """
        %a = neg(%x) : f32[4, 2]
        %t = transpose(%a) {perm = [1, 0]} : f32[2, 4]
        %b = neg(%t) : f32[2, 4]
        """,
    )
    assert not may_alias(c.db, c["t"], c["a"])
    dense = c["t"].type
    Rewriter(c.function).set_type(c["t"], TensorType(dense.dtype, dense.dims, Layout(order=(1, 0))))
    assert may_alias(c.db, c["t"], c["a"]) and not may_alias(c.db, c["b"], c["a"])
    c.check()
    Rewriter(c.function).set_type(c["a"], TensorType(dense.dtype, (4, 2), Layout(order=(1, 0))))
    assert not may_alias(c.db, c["t"], c["a"])
    lint(c.db)


def _golden_functions() -> list[Any]:
    """Functions in all golden files of passes, before and after."""
    from aot.errors import CompileError
    from aot.ir.text.parser import parse_module
    from tests.support.golden import SEPARATOR, cases

    found = []
    for path in cases("passes"):
        for number, text in enumerate(path.read_text(encoding="utf-8").split(SEPARATOR)):
            try:
                functions = parse_module(text).functions.values()
            except CompileError:
                continue  # what a pass refused, or a blob that is left out
            found += [pytest.param(f, id=f"{path.stem}-{number}-{f.name}") for f in functions]
    return found


@pytest.mark.parametrize("function", _golden_functions())
def test_storage_and_the_database_agree_on_views(function: Any) -> None:
    from aot.analysis.memory.storage import root_of
    from aot.ops.selection import CONCAT_ALIAS
    from tests.support.alias_cases import values_of

    db = AliasDb.of(function)
    for value in values_of(function):
        root, _ = root_of(value)
        assert may_contain_alias(db, value, root)
        if value.op is not None and value.op.record is CONCAT_ALIAS:
            assert all(may_alias(db, value, part) for part in value.op.operands)
    for one in function.block:
        for value in one.results:
            # memory of its own is nobody else's; a reshape counts as a view even where layouts
            # make it a copy, and blocks and callees may hand out anything
            if (
                one.record.results_from == "rule"
                and one.record.view_of is None
                and root_of(value)[0] is value
            ):
                assert not any(may_alias(db, v, value) for v in function.inputs)
    lint(db)


def test_passes_ask_what_the_page_teaches() -> None:
    page = (ROOT / "docs" / "internals" / "aliasing.md").read_text(encoding="utf-8")
    taught = set(re.findall(r"\bdb\.(\w+)\(", page))
    assert len(taught) >= 5
    passes = [p.read_text(encoding="utf-8") for p in (ROOT / "aot" / "passes").rglob("*.py")]
    passes.append((ROOT / "aot" / "analysis" / "alias" / "write_order.py").read_text("utf-8"))
    asked = {name for source in passes for name in re.findall(r"\bdb\.(\w+)\(", source)}
    assert taught - asked == set()
