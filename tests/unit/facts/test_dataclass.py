"""Classes that the compiler's `dataclass` makes beside those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from aot.facts.dataclass import dataclass

Make = Callable[..., Any]


def classes(dataclass: Make) -> dict[str, type]:
    """The same classes, made by either."""

    @dataclass(frozen=True)
    class Point:
        x: int
        y: int = 2
        names: tuple[str, ...] = field(default=(), repr=False)
        seen: list[int] = field(default_factory=list, compare=False)
        last: int = field(default=7, kw_only=True)

        @property
        def sum(self) -> int:
            return self.x + self.y

    @dataclass(frozen=True)
    class Deep(Point):
        z: int = 5
        y: int = 9

    @dataclass
    class Open:
        a: int
        b: dict[str, int] = field(default_factory=dict)
        c: int = field(init=False)
        d: int = field(default=4, init=False)

        def __post_init__(self) -> None:
            self.c = self.a + 1

    @dataclass(eq=False)
    class Identity:
        a: int = 0

    @dataclass(frozen=True)
    class Own:
        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and other.a % 2 == self.a % 2

        def __hash__(self) -> int:
            return self.a % 2

        def __repr__(self) -> str:
            return "own"

    @dataclass(frozen=True, slots=True)
    class Slotted:
        a: int
        b: int = 1

    @dataclass(frozen=True)
    class Empty:
        pass

    return {c.__name__: c for c in (Point, Deep, Open, Identity, Own, Slotted, Empty)}


OURS, THEIRS = classes(dataclass), classes(dataclasses.dataclass)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Point", (1,), {}),
    ("Point", (1, 3), {"names": ("a",), "last": 2}),
    ("Point", (1, 3, (), [4]), {}),
    ("Point", (), {}),
    ("Point", (1, 2, (), [], 7), {}),
    ("Point", (1,), {"w": 2}),
    ("Deep", (1,), {}),
    ("Deep", (1, 2), {"z": 3}),
    ("Open", (1,), {}),
    ("Open", (1, {"a": 2}), {}),
    ("Open", (1,), {"c": 2}),
    ("Identity", (), {}),
    ("Own", (3,), {}),
    ("Slotted", (1,), {}),
    ("Empty", (), {}),
]


def outcome(made: Callable[[], Any]) -> Any:
    """What comes of a call, as both say it."""
    try:
        return made()
    except (TypeError, AttributeError, ValueError) as error:
        return type(error), str(error).replace(f"{__name__}.", "")


@pytest.mark.parametrize(("name", "arguments", "named"), CALLS)
def test_instances(name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    def facts(known: dict[str, type]) -> Any:
        one, other = (known[name](*arguments, **named) for _ in range(2))
        values = [getattr(one, f.name) for f in dataclasses.fields(one)]
        equal = one == other, one != other, one == 3, {one, other} == {other} if one == other else 0
        again = dataclasses.replace(copy.deepcopy(one)) if name != "Open" else copy.copy(one)
        return repr(one), values, equal, repr(again), dataclasses.asdict(one), vars(one).keys()

    if name == "Slotted":
        assert repr(OURS[name](1)) == repr(THEIRS[name](1))
        return
    if name == "Open":
        assert outcome(lambda: hash(OURS[name](1))) == outcome(lambda: hash(THEIRS[name](1)))
        one, other = (
            outcome(lambda k=k: repr(k[name](*arguments, **named))) for k in (OURS, THEIRS)
        )
        assert one == other
        return
    assert outcome(lambda: facts(OURS)) == outcome(lambda: facts(THEIRS))


@pytest.mark.parametrize("name", OURS)
def test_classes(name: str) -> None:
    ours, theirs = OURS[name], THEIRS[name]
    assert [f.name for f in dataclasses.fields(ours)] == [
        f.name for f in dataclasses.fields(theirs)
    ]  # type: ignore[arg-type]
    assert ours.__match_args__ == theirs.__match_args__  # type: ignore[attr-defined]
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)


def test_nothing_is_assigned_to_what_is_frozen() -> None:
    for known in (OURS, THEIRS):
        point = known["Deep"](1)
        for change in (lambda p: setattr(p, "x", 3), lambda p: delattr(p, "z")):
            with pytest.raises(dataclasses.FrozenInstanceError):
                change(point)
        with pytest.raises(dataclasses.FrozenInstanceError):
            point.other = 3


def test_a_default_that_can_change() -> None:
    with pytest.raises(ValueError):

        @dataclass
        class Wrong:
            a: list[int] = []  # noqa: RUF012


@dataclass(frozen=True)
class Named:
    """At the top of a module, so that it can be pickled."""

    a: int
    b: tuple[int, ...] = ()


def test_methods_are_made_once() -> None:
    before = Named.__init__
    one = Named(1)
    assert Named.__init__ is not before
    after = Named.__init__
    assert pickle.loads(pickle.dumps(one)) == Named(1) == copy.copy(one)
    assert Named.__init__ is after
    match one:
        case Named(a, b):
            assert (a, b) == (1, ())
    assert {one: 3}[Named(1, ())] == 3
