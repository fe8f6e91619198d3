"""`aot.base.records.dataclass` beside `dataclasses.dataclass`: classes that behave the same."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar

import pytest

from aot.base import records


def _classes(dataclass: Any) -> dict[str, Any]:
    """Classes of each sort that there is in the compiler, by one of the decorators."""

    @dataclass(frozen=True)
    class Plain:
        a: int
        b: str = "b"
        c: tuple[int, ...] = field(default=(), repr=False)

    @dataclass(frozen=True)
    class Derived(Plain):
        """With a field more, and one less in comparisons."""

        kind: ClassVar[str] = "derived"
        d: list[int] = field(default_factory=list, compare=False)

        @cached_property
        def doubled(self) -> int:
            return 2 * self.a

    @dataclass
    class Changeable:
        a: int
        b: list[int] = field(default_factory=list, init=False)
        c: int = field(default=3, kw_only=True)
        d: int = field(default=4, init=False)

    @dataclass(frozen=True, eq=False)
    class Identity:
        a: int

    @dataclass(frozen=True)
    class Checked:
        a: int
        b: int = 0

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("negative")
            object.__setattr__(self, "b", self.a + 1)

    @dataclass(frozen=True)
    class Own:
        a: int

        def __init__(self, a: int) -> None:
            object.__setattr__(self, "a", a + 100)

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    @dataclass(frozen=True)
    class Equal:  # noqa: PLW1641 (the decorator makes its hash)
        a: int

        def __eq__(self, other: object) -> bool:
            return True

    @dataclass(frozen=True)
    class Empty:
        pass

    @dataclass(order=True)
    class Ordered:
        a: int

    @dataclass(frozen=True, slots=True)
    class Slotted:
        a: int

    @dataclass
    class Holder:
        a: Any = None

    class Bare(Plain):
        pass

    return {name: value for name, value in locals().items() if name != "dataclass"}


def _told(act: Callable[[], Any]) -> str:
    try:
        return repr(act()).replace("_classes.<locals>.", "")
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("_classes.<locals>.", "")


CALLS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "by place": lambda c: c["Plain"](1, "x", (2,)),
    "by name": lambda c: c["Plain"](b="x", a=1),
    "too few": lambda c: c["Plain"](),
    "too many": lambda c: c["Plain"](1, 2, 3, 4),
    "unknown name": lambda c: c["Plain"](1, z=2),
    "derived": lambda c: c["Derived"](1, d=[1]),
    "class variables": lambda c: c["Derived"].kind,
    "made for each": lambda c: c["Derived"](1).d is c["Derived"](1).d,
    "cached": lambda c: c["Derived"](4).doubled,
    "not called": lambda c: c["Bare"](1, "y"),
    "equal": lambda c: c["Plain"](1) == c["Plain"](1, "b", ()),
    "unequal": lambda c: c["Plain"](1) == c["Plain"](2),
    "of another class": lambda c: c["Plain"](1) == c["Derived"](1),
    "of the derived class": lambda c: c["Bare"](1) == c["Plain"](1),
    "not compared": lambda c: c["Derived"](1, d=[1]) == c["Derived"](1, d=[2]),
    "hash": lambda c: hash(c["Plain"](1)) == hash(c["Plain"](1)) == hash((1, "b", ())),
    "hash of what is not hashed": lambda c: hash(c["Derived"](1, d=[])) == hash((1, "b", ())),
    "no hash": lambda c: hash(c["Changeable"](1)),
    "hash of an equality": lambda c: hash(c["Equal"](3)) == hash((3,)),
    "assigned": lambda c: setattr(c["Plain"](1), "a", 2),
    "assigned, unknown": lambda c: setattr(c["Plain"](1), "z", 2),
    "deleted": lambda c: delattr(c["Plain"](1), "a"),
    "changed": lambda c: [setattr(x := c["Changeable"](1), "a", 5), x.b.append(1), x],
    "named only": lambda c: c["Changeable"](1, c=9),
    "named only, by place": lambda c: c["Changeable"](1, 9),
    "not given": lambda c: c["Changeable"](1, d=9),
    "identity": lambda c: c["Identity"](1) == c["Identity"](1),
    "identity's hash": lambda c: hash(x := c["Identity"](1)) == object.__hash__(x),
    "checked": lambda c: c["Checked"](3),
    "refused": lambda c: c["Checked"](-1),
    "own": lambda c: [c["Own"](1).a, c["Own"](1), c["Own"](1) == 3, hash(c["Own"](1))],
    "own equality": lambda c: c["Equal"](1) == c["Equal"](2),
    "empty": lambda c: [c["Empty"](), c["Empty"]() == c["Empty"](), hash(c["Empty"]())],
    "ordered": lambda c: sorted([c["Ordered"](2), c["Ordered"](1)]),
    "slotted": lambda c: [c["Slotted"](1), hasattr(c["Slotted"](1), "__dict__")],
    "itself": lambda c: [setattr(x := c["Holder"](), "a", [x]), x],
    "replaced": lambda c: dataclasses.replace(c["Plain"](1), b="z"),
    "replaced and checked": lambda c: dataclasses.replace(c["Checked"](1), a=-1),
    "fields": lambda c: [(f.name, f.compare, f.repr) for f in dataclasses.fields(c["Derived"])],
    "as a dict": lambda c: dataclasses.asdict(c["Derived"](1)),
    "copied": lambda c: copy.deepcopy(c["Derived"](1, d=[1])),
    "matched": lambda c: c["Derived"].__match_args__,
    "names": lambda c: [c["Plain"](1).__init__.__qualname__, c["Plain"].__eq__.__name__],
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_do_what_they_do_of_dataclasses(call: str) -> None:
    """On new classes, so that each call is the first, and again."""
    theirs, ours = _classes(dataclasses.dataclass), _classes(records.dataclass)
    expected = _told(lambda: CALLS[call](theirs))
    assert _told(lambda: CALLS[call](ours)) == expected
    assert _told(lambda: CALLS[call](ours)) == expected


@records.dataclass(frozen=True)
class _Kept:
    a: int


def test_objects_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(_Kept(3))) == _Kept(3)


def test_methods_are_made_once_and_leave_what_was_put_in_their_place() -> None:
    plain = _classes(records.dataclass)["Plain"]
    first, calls = plain.__init__, []

    def counted(self: Any, *args: Any) -> None:
        calls.append(args)
        first(self, *args)

    plain(1)
    assert plain.__init__ is not first  # made
    plain.__init__ = counted
    assert [plain(2).a, plain(3).a] == [2, 3]
    assert calls == [(2,), (3,)]
    plain = _classes(records.dataclass)["Plain"]
    first = plain.__init__
    plain.__init__ = counted
    assert [plain(4).a, plain(5).a] == [4, 5]
    assert plain.__init__ is counted
