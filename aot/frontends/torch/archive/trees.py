"""Parses the nesting of arguments and results, which torch writes as JSON in a string.

Knows Python's own containers, and named tuples and dataclasses that this process has registered
with torch. Never imports what the file names.
"""

from __future__ import annotations

import builtins
from collections import OrderedDict, defaultdict, deque
from dataclasses import is_dataclass
from typing import Any

from torch.utils import _pytree as pytree

from aot.frontends.torch.archive.fields import Field, is_plain, parsed

_VERSION = 1
_ROWS: dict[str, type] = {"builtins.tuple": tuple, "builtins.list": list}
_MAPPINGS: dict[str, type] = {"builtins.dict": dict, "collections.OrderedDict": OrderedDict}
_FACTORIES = ("list", "dict", "tuple", "set", "int", "float", "str")  # of default dicts


def tree(field: Field) -> Any:
    """The torch TreeSpec in a field, parsed from text.

    Raises:
        CompileError: the text is wrong, or has a container that is not known here.
    """
    whole = parsed(field.text().encode("utf-8", "replace"), field.place)
    items = whole.items()
    if len(items) != 2 or items[0].value != _VERSION:
        raise whole.error(f"is no nesting of version {_VERSION}")
    return _built(items[1])


def _built(field: Field) -> Any:
    inner = [_built(child) for child in field["children_spec"].items()]
    kind = field.get("type")
    if kind is None:
        if inner:
            raise field.error("has items, but no type")
        return pytree.tree_flatten(0)[1]
    name = kind.text()
    if name in _ROWS:
        return pytree.TreeSpec(_ROWS[name], None, inner)
    if name == "collections.deque":
        return pytree.TreeSpec(deque, None, inner)
    if name in _MAPPINGS:
        keys = _keys(_context(field), len(inner))
        return pytree.TreeSpec(_MAPPINGS[name], keys, inner)
    if name == "collections.defaultdict":
        context = field["context"]
        keys = _keys(context["dict_context"], len(inner))
        return pytree.TreeSpec(defaultdict, [_factory(context), keys], inner)
    if name == "collections.namedtuple":
        made = _registered(field["context"])
        if not issubclass(made, tuple) or len(getattr(made, "_fields", ())) != len(inner):
            raise field.error(f"is no named tuple of {len(inner)}")
        return pytree.TreeSpec(_NAMED_TUPLE, made, inner)
    made = _registered(kind)
    node = pytree.SUPPORTED_SERIALIZED_TYPES[made]
    if not is_dataclass(made) or node.from_dumpable_context is not None:
        raise kind.error(f"is {name!r}, which is no container that can be read from a file")
    names = [[n.name() for n in row.items()] for row in _context(field).items()]
    if len(names) != 2 or len(names[0]) != len(inner):
        raise field.error(f"has not the names of {len(inner)} fields")
    return pytree.TreeSpec(made, names, inner)


_NAMED_TUPLE = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE["collections.namedtuple"]


def _context(field: Field) -> Field:
    """The context of a container: a JSON field, parsed from text."""
    context = field["context"]
    return parsed(context.text().encode("utf-8", "replace"), context.place)


def _keys(field: Field, count: int) -> list[Any]:
    keys = [item.value for item in field.items()]
    if len(keys) != count or len(set(map(repr, keys))) != count:
        raise field.error(f"are not the {count} keys of its items")
    for key in keys:
        is_text = isinstance(key, str) and is_plain(key)
        if not is_text and not isinstance(key, (int, float)):
            raise field.error("has a key that is neither a plain text nor a number")
    return keys


def _factory(context: Field) -> Any:
    module, name = context["default_factory_module"].text(), context["default_factory_name"].text()
    if module != "builtins" or name not in _FACTORIES:
        raise context.error(f"makes {module}.{name}, expected a container or number of Python")
    return getattr(builtins, name)


def _registered(field: Field) -> type:
    """The class that this process has registered under a name."""
    found = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(field.text())
    if not isinstance(found, type):
        raise field.error(
            f"is {field.text()!r}, a class that is not registered here: give the "
            "torch.export.ExportedProgram itself to aot.compile where the class is known"
        )
    return found
