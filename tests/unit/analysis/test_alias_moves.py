"""Which moves the alias database permits, and that moving does what asking promised."""

from __future__ import annotations

import pytest

from aot.analysis.alias.moves import could_move_after, could_move_before, move_after, move_before
from tests.support.alias_cases import Case

MOVES = {"before": move_before, "after": move_after}
QUESTIONS = {"before": could_move_before, "after": could_move_after}

# topological moves: nothing writes

TOPOLOGY = """
func @f(%t: bool[]) -> ("k", "o", "r") {
  %a = fill {shape = [2], value = f32[] <1.0>} : f32[2]
  %b = neg(%a) : f32[2]
  %c = fill {shape = [2], value = f32[] <2.0>} : f32[2]
  %d = add(%a, %b) : f32[2]
  %e = add(%c, %b) : f32[2]
  %f = neg(%e) : f32[2]
  %g = neg(%e) : f32[2]
  %h = neg(%g) : f32[2]
  %i = neg(%g) : f32[2]
  %j = neg(%i) : f32[2]
  %k = neg(%i) : f32[2]
  %l = neg(%a) : f32[2]
  %m = if(%t) : f32[2] ^() {
    %inner = neg(%l) : f32[2]
    yield(%inner)
  } ^() {
    %zero = fill {shape = [2], value = f32[] <0.0>} : f32[2]
    yield(%zero)
  }
  %n = neg(%m) : f32[2]
  %o = neg(%n) : f32[2]
  %p = fill {shape = [2], value = f32[] <3.0>} : f32[2]
  %q = fill {shape = [2], value = f32[] <4.0>} : f32[2]
  %r = neg(%q) : f32[2]
  %s = neg(%q) : f32[2]
  return(%k, %o, %r)
}
"""
ORDER = "a b c d e f g h i j k l m n o p q r s"


@pytest.mark.parametrize(
    ("op", "side", "point", "order"),
    [
        pytest.param("q", "before", "s", "a b c d e f g h i j k l m n o p q s r", id="SplitsDeps"),
        pytest.param(
            "c", "after", "a", "a c b d e f g h i j k l m n o p q r s", id="MoveAfterBackwardSimple"
        ),
        pytest.param("d", "after", "a", None, id="MoveAfterBackwardInvalid"),
        pytest.param("f", "after", "e", ORDER, id="MoveAfterNoOp"),
        pytest.param(
            "e",
            "after",
            "c",
            "a b c e d f g h i j k l m n o p q r s",
            id="MoveAfterBackwardMultipleDeps",
        ),
        pytest.param(
            "k",
            "after",
            "f",
            "a b c d e g i f k h j l m n o p q r s",
            id="MoveAfterBackwardNonZeroWorkingSet",
        ),
        pytest.param(
            "c", "after", "d", "a b d c e f g h i j k l m n o p q r s", id="MoveAfterForwardSimple"
        ),
        pytest.param(
            "g",
            "after",
            "l",
            "a b c d e f l g h i j k m n o p q r s",
            id="MoveAfterForwardNonZeroWorkingSet",
        ),
        pytest.param(
            "b",
            "before",
            "d",
            "a c b d e f g h i j k l m n o p q r s",
            id="MoveBeforeForwardSimple",
        ),
        pytest.param(
            "c",
            "before",
            "a",
            "c a b d e f g h i j k l m n o p q r s",
            id="MoveBeforeBackwardSimple",
        ),
        pytest.param("a", "before", "b", ORDER, id="MoveBeforeNoOp"),
        pytest.param(
            "g",
            "before",
            "m",
            "a b c d e f l g m h i j k n o p q r s",
            id="MoveBeforeForwardWithDeps",
        ),
        pytest.param(
            "l",
            "before",
            "f",
            "a b c d e l f g h i j k m n o p q r s",
            id="MoveBeforeBackwardWithDeps",
        ),
        pytest.param("l", "after", "m", None, id="DepsDisallowMove-into-block"),
        pytest.param("m", "before", "l", None, id="DepsDisallowMove-out-of-block"),
        pytest.param("n", "after", "l", None, id="DepsDisallowMove-back"),
        pytest.param("l", "before", "n", None, id="DepsDisallowMove-forth"),
        # after o is not before p: o may go after p, and then n stands before p
        pytest.param("n", "after", "o", None, id="MoveAfterBeforeWithDeps-after"),
        pytest.param(
            "n",
            "before",
            "p",
            "a b c d e f g h i j k l m n p o q r s",
            id="MoveAfterBeforeWithDeps-before",
        ),
    ],
)
def test_topological_moves(op: str, side: str, point: str, order: str | None) -> None:
    case = Case(TOPOLOGY)
    assert case.order() == ORDER
    one, other = case.op(op), case.op(point)
    may = QUESTIONS[side](case.db, one, other)
    assert case.order() == ORDER, "asking moves nothing"
    assert MOVES[side](case.db, one, other) is may is (order is not None)
    assert case.order() == (order or ORDER)
    case.check()


def test_ends_and_other_blocks() -> None:
    case = Case(TOPOLOGY)
    end, inner = case.function.block.terminator, case.op("inner")
    assert not could_move_after(case.db, case.op("s"), end)
    assert could_move_before(case.db, case.op("d"), end)
    assert not could_move_before(case.db, end, case.op("s"))
    assert not could_move_before(case.db, inner, case.op("l"))
    assert not could_move_after(case.db, case.op("a"), inner)
    assert could_move_after(case.db, case.op("a"), case.op("a"))
    assert move_before(case.db, case.op("d"), end)
    assert case.order().endswith("s d")


# writes


def permitted(case: Case, op: str, side: str, point: str) -> bool:
    return QUESTIONS[side](case.db, case.op(op), case.op(point))


def test_aliasing_mutation_blocks_moves() -> None:
    case = Case("""
    func @f(%a: f32[2], %b: f32[2]) -> ("d") {
      %addsB = add(%b, %b) : f32[2]
      %c = add(%a, %b) : f32[2]
      %aMut = assign(%a, %b) : f32[2]
      %d = add(%c, %c) : f32[2]
      return(%d)
    }
    """)
    assert not permitted(case, "c", "after", "aMut"), "it reads what is written"
    assert permitted(case, "d", "after", "c")
    assert not permitted(case, "addsB", "after", "aMut"), "a and b are both the caller's"
    assert permitted(case, "addsB", "after", "c")


def test_aliasing_mutation_blocks_moves_2() -> None:
    case = Case("""
    func @f(%a: f32[2], %b: f32[2]) -> ("addsA", "e") {
      %fresh = add(%b, %b) : f32[2]
      %addsA = add(%a, %b) : f32[2]
      %freshMut = assign(%fresh, %b) : f32[2]
      %view = reshape(%fresh) {shape = [1, 2]} : f32[1, 2]
      %e = neg(%view) : f32[1, 2]
      return(%addsA, %e)
    }
    """)
    assert permitted(case, "freshMut", "before", "addsA"), "what is fresh is nobody's input"
    assert not permitted(case, "e", "before", "freshMut"), "the view shows what is written"
    assert permitted(case, "view", "before", "freshMut"), "a view reads nothing"
    assert move_before(case.db, case.op("view"), case.op("addsA"))
    assert not permitted(case, "e", "before", "freshMut")
    case.check()


def test_side_effects_block_moves() -> None:
    def text(between: str) -> str:
        return f"""
        func @f(%a: f32[2]) -> ("a") {{
          %one = call(%a, %a) {{function = @g}} : f32[2]
          {between}
          %two = call(%a) {{function = @h}} : f32[2]
          return(%a)
        }}
        func @g(%a: f32[2], %b: f32[2]) -> ("a") {{ return(%a) }}
        func @h(%a: f32[2]) -> ("a") {{ return(%a) }}
        """

    case = Case(text(""))
    assert not permitted(case, "one", "after", "two")
    assert not permitted(case, "two", "before", "one")
    assert permitted(case, "one", "before", "two"), "it stands there"
    assert permitted(case, "two", "after", "one")
    case = Case(text("%free = fill {shape = [2], value = f32[] <1.0>} : f32[2]"))
    assert not permitted(case, "one", "after", "two")
    assert not permitted(case, "two", "before", "one")
    assert permitted(case, "one", "before", "two"), "the free one moves out of the way"
    assert permitted(case, "free", "after", "two")
    assert permitted(case, "free", "before", "one")


def test_moving_across_inner_blocks() -> None:
    case = Case("""
    func @f(%t: bool[], %a: f32[2], %b: f32[2]) -> ("d", "e", "z") {
      %x = add(%b, %b) : f32[2]
      %y = neg(%x) : f32[2]
      %d = add(%a, %b) : f32[2]
      %z = if(%t) : f32[2] ^() {
        %w = assign(%a, %b) : f32[2]
        %v = neg(%y) : f32[2]
        yield(%v)
      } ^() {
        yield(%y)
      }
      %e = neg(%x) : f32[2]
      return(%d, %e, %z)
    }
    """)
    assert not permitted(case, "d", "after", "z"), "the block writes what it reads"
    assert permitted(case, "e", "before", "z"), "the block writes no such memory"
    assert permitted(case, "z", "after", "e")
    assert not permitted(case, "y", "after", "z"), "the block uses it"
    assert permitted(case, "v", "before", "w") and permitted(case, "w", "after", "v")


def test_reads_and_writes_of_states() -> None:
    case = Case("""
    func @f(%x: f32[2]) -> ("r", "s") {
      %one = state {variable = "one", dtype = f32, shape = [2]} : f32[2]
      %two = state {variable = "two", dtype = f32, shape = [2]} : f32[2]
      %again = state {variable = "one", dtype = f32, shape = [2]} : f32[2]
      %r = neg(%one) : f32[2]
      %s = neg(%two) : f32[2]
      %w = assign(%again, %x) : f32[2]
      return(%r, %s)
    }
    """)
    assert not permitted(case, "r", "after", "w")
    assert permitted(case, "s", "after", "w")
    assert permitted(case, "one", "after", "s"), "r, which reads it, goes along"
    assert not permitted(case, "one", "after", "w"), "r can't go along"
    assert permitted(case, "two", "before", "one")


def test_moves_keep_several_deps_in_order() -> None:
    case = Case("""
    func @f(%x: f32[2]) -> ("y", "q") {
      %m = neg(%x) : f32[2]
      %w1 = assign(%m, %x) : f32[2]
      %w2 = assign(%m, %w1) : f32[2]
      %y = neg(%m) : f32[2]
      %q = neg(%x) : f32[2]
      return(%y, %q)
    }
    """)
    assert move_after(case.db, case.op("w1"), case.op("q"))
    assert case.order() == "m q w1 w2 y"
    case.check()
    assert move_before(case.db, case.op("w2"), case.op("q"))
    assert case.order() == "m w1 w2 q y"
    case.check()


def test_writes_keep_their_order_and_reads_do_not() -> None:
    case = Case("""
    func @f(%x: f32[2], %y: f32[2]) -> ("m") {
      %m = neg(%x) : f32[2]
      %view = reshape(%m) {shape = [2]} : f32[2]
      %w1 = assign(%m, %x) : f32[2]
      %w2 = assign(%view, %y) : f32[2]
      %r1 = neg(%m) : f32[2]
      %r2 = neg(%view) : f32[2]
      return(%m)
    }
    """)
    assert not permitted(case, "w1", "after", "w2"), "the last write is the one that stays"
    assert not permitted(case, "w2", "before", "w1")
    assert permitted(case, "r1", "after", "r2") and permitted(case, "r2", "before", "r1")
    assert not permitted(case, "r2", "before", "w1")
