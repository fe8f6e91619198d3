"""`dataclass` as the standard library has it, with methods that are made when they are first used.

The standard library compiles six functions for each class as it is defined, which is a quarter of
what a small model's compile takes; most of them no compile ever calls. Owns the making of these
methods. What it does not know (slots, an order) is left to the standard library.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, **others):
        """`dataclasses.dataclass`."""

        def wrap(cls):
            if any(others.values()) or _is_special(cls):
                return dataclasses.dataclass(cls, frozen=frozen, eq=eq, **others)
            return _made(cls, frozen, eq)

        return wrap if cls is None else wrap(cls)


_FIELDS = "__dataclass_fields__"
_SPECIAL = ("ClassVar", "InitVar", "KW_ONLY")


class _Params:
    """What the standard library asks of a base class."""

    def __init__(self, frozen: bool, eq: bool) -> None:
        self.init = self.repr = True
        self.frozen, self.eq = frozen, eq
        self.order = self.unsafe_hash = False


def _annotations(cls: type) -> dict[str, Any]:
    """The class's own annotations; `inspect`, which would say them, is slow to import."""
    found: dict[str, Any] = vars(cls).get("__annotations__", {})
    return found


def _is_special(cls: type) -> bool:
    """Whether annotations mean more than a field of a type."""
    types = _annotations(cls).values()
    return any(not isinstance(t, str) or any(word in t for word in _SPECIAL) for t in types)


def _made(cls: type, frozen: bool, eq: bool) -> type:
    """The class with its fields and methods."""
    known: dict[str, dataclasses.Field[Any]] = {}
    for base in cls.__mro__[-1:0:-1]:
        known.update(getattr(base, _FIELDS, {}))
    for name, type in _annotations(cls).items():
        known[name] = _field(cls, name, type)
    made: Any = cls
    setattr(cls, _FIELDS, known)
    made.__dataclass_params__ = _Params(frozen, eq)
    own = cls.__dict__
    fields = list(known.values())
    if "__match_args__" not in own:
        names = tuple(f.name for f in fields if f.init and not f.kw_only)
        setattr(cls, "__match_args__", names)  # noqa: B010
    if "__init__" not in own:
        _later(cls, "__init__", lambda: _init(cls, fields, frozen))
    if "__repr__" not in own:
        made.__repr__ = _repr
    if eq:
        _add_equality(cls, [f.name for f in fields if f.compare], frozen)
    if frozen:
        _freeze(cls, frozenset(known))
    return cls


def _field(cls: type, name: str, type: Any) -> dataclasses.Field[Any]:
    default = getattr(cls, name, dataclasses.MISSING)
    if not isinstance(default, dataclasses.Field):
        found: Any = dataclasses.field(default=default)
    else:
        found = default
        if found.default is dataclasses.MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, found.default)
    if found.default.__class__.__hash__ is None:
        raise ValueError(f"{cls.__name__}.{name}: a default that can change is shared by all")
    found.name, found.type = name, type
    found._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
    found.kw_only = found.kw_only is True
    return found  # type: ignore[no-any-return]


def _later(cls: Any, name: str, make: Callable[[], Any]) -> None:
    """A method that replaces itself by what `make` makes when it is first called."""

    def method(self: Any, *arguments: Any, **others: Any) -> Any:
        if cls.__dict__[name] is method:
            setattr(cls, name, make())
        return cls.__dict__[name](self, *arguments, **others)

    method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
    setattr(cls, name, method)


def _compiled(cls: type, name: str, header: str, body: Sequence[str], known: dict[str, Any]) -> Any:
    lines = "\n".join(f"    {line}" for line in body)
    exec(f"def {header}:\n{lines or '    pass'}", known)
    method = known[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    method.__module__ = cls.__module__
    return method


def _init(cls: type, fields: Sequence[dataclasses.Field[Any]], frozen: bool) -> Any:
    known: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": dataclasses.MISSING}
    plain, named, body = list[str](), list[str](), list[str]()
    for f in fields:
        value = f.name
        if f.default_factory is not dataclasses.MISSING:
            known[f"_make_{f.name}"] = f.default_factory
            text = f"{f.name}=_MISSING"
            value = f"_make_{f.name}()"
            if f.init:
                value = f"{value} if {f.name} is _MISSING else {f.name}"
        elif f.default is not dataclasses.MISSING:
            known[f"_default_{f.name}"] = f.default
            text = f"{f.name}=_default_{f.name}"
        else:
            text = f.name
        if f.init:
            (named if f.kw_only else plain).append(text)
        elif f.default_factory is dataclasses.MISSING:
            continue  # of the class, if it has one
        body.append(f"_set(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(["self", *plain, *(["*", *named] if named else [])])
    return _compiled(cls, "__init__", f"__init__({parameters})", body, known)


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    fields = getattr(self, _FIELDS).values()
    texts = (f"{f.name}={getattr(self, f.name)!r}" for f in fields if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(texts)})"


def _add_equality(cls: Any, names: Sequence[str], frozen: bool) -> None:
    own = cls.__dict__
    has_hash = "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own)

    def values(of: str) -> str:
        return f"({''.join(f'{of}.{name}, ' for name in names)})"

    if "__eq__" not in own:
        body = [
            f"if other.__class__ is self.__class__: return {values('self')} == {values('other')}",
            "return NotImplemented",
        ]
        _later(cls, "__eq__", lambda: _compiled(cls, "__eq__", "__eq__(self, other)", body, {}))
    if has_hash:
        return
    if not frozen:
        cls.__hash__ = None
        return
    body_of_hash = [f"return hash({values('self')})"]
    _later(cls, "__hash__", lambda: _compiled(cls, "__hash__", "__hash__(self)", body_of_hash, {}))


def _freeze(cls: Any, names: frozenset[str]) -> None:
    def assign(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = assign, delete
