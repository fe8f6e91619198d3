"""A `dataclass` decorator like `dataclasses.dataclass`, whose generated methods are compiled
lazily.

Owns no meaning of its own. `dataclasses` compiles up to six methods of a class while its module is
imported; for the compiler's classes that would be a quarter of the time of a small model's compile,
and most of the methods are never called. Here a class has stand-ins until then. A class derived
from one is made by this decorator too; `InitVar` is the one thing that there is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field
from functools import cache
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 (a name for others)
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, **others):
        """A lazy `dataclasses.dataclass`: a generated method is compiled at its first call. With
        options other than `frozen` and `eq`, it compiles all of them at once.
        """

        def decorate(cls):
            if others:
                return dataclasses.dataclass(frozen=frozen, eq=eq, **others)(cls)
            return _with_stand_ins(cls, frozen, eq)

        return decorate if cls is None else decorate(cls)


def _with_stand_ins(cls: type, frozen: bool, eq: bool) -> type:
    own = vars(cls)
    # Python puts a None where a class defines equality and no hash.
    has_hash = "__hash__" in own and (own["__hash__"] is not None or "__eq__" not in own)
    if not cls.__doc__:
        cls.__doc__ = cls.__name__  # else `dataclasses` writes a signature, which takes long
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    _stand_in(cls, "__init__", lambda: _init(cls, frozen))
    if "__repr__" not in own:
        cls.__repr__ = _repr  # type: ignore[assignment, method-assign]
    if eq:
        _stand_in(cls, "__eq__", lambda: _eq(cls))
        if not has_hash and frozen:
            _stand_in(cls, "__hash__", lambda: _hash(cls))
        elif not has_hash:
            cls.__hash__ = None  # type: ignore[assignment]
    if frozen:
        cls.__setattr__ = _setattr  # type: ignore[assignment]
        cls.__delattr__ = _delattr  # type: ignore[assignment]
    return cls


def _stand_in(cls: type, name: str, make: Callable[[], Callable[..., Any]]) -> None:
    """Gives the class a method that compiles itself by `make` at its first call, unless the class
    has its own.
    """
    if name in vars(cls) and vars(cls)[name] is not None:
        return

    @cache
    def made() -> Any:
        method = make()
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        method.__module__ = cls.__module__
        if vars(cls)[name] is first:
            setattr(cls, name, method)
        return method

    def first(self: Any, *args: Any, **options: Any) -> Any:
        return made()(self, *args, **options)

    first.__name__ = name
    setattr(cls, name, first)


def _compiled(name: str, parameters: Iterable[str], lines: Iterable[str], **scope: Any) -> Any:
    body = "\n ".join(lines)
    exec(f"def {name}({', '.join(parameters)}):\n {body}", scope)
    return scope[name]


def _init(cls: type, frozen: bool) -> Any:
    scope: dict[str, Any] = {"_missing": MISSING, "_set": object.__setattr__}
    places, names = ["self"], ["*"]
    lines = []
    for number, f in enumerate(dataclasses.fields(cls)):
        value, parameters = f.name, names if f.kw_only is True else places
        if f.default_factory is not MISSING:
            scope[f"_make{number}"] = f.default_factory
            value = f"_make{number}()"
            if f.init:
                parameters.append(f"{f.name}=_missing")
                value = f"{value} if {f.name} is _missing else {f.name}"
        elif f.init and f.default is not MISSING:
            scope[f"_default{number}"] = f.default
            parameters.append(f"{f.name}=_default{number}")
        elif f.init:
            parameters.append(f.name)
        else:
            continue  # the class has its default, if any
        lines.append(f"_set(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    if len(names) > 1:
        places += names
    return _compiled("__init__", places, lines or ["pass"], **scope)


def _values(of: str, fields: Iterable[Field[Any]]) -> str:
    return f"({''.join(f'{of}.{f.name},' for f in fields)})"


def _eq(cls: type) -> Any:
    compared = [f for f in dataclasses.fields(cls) if f.compare]
    lines = (
        "if other.__class__ is not self.__class__: return NotImplemented",
        f"return {_values('self', compared)} == {_values('other', compared)}",
    )
    return _compiled("__eq__", ("self", "other"), lines)


def _hash(cls: type) -> Any:
    hashed = [f for f in dataclasses.fields(cls) if (f.compare if f.hash is None else f.hash)]
    return _compiled("__hash__", ("self",), (f"return hash({_values('self', hashed)})",))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _setattr(self: Any, name: str, value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
