"""Lookup operators of ai.onnx.ml, and StringNormalizer of ONNX: labels, categories, strings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot.frontends.onnx.ops.scores import ML
from aot.frontends.onnx.strings import REASON, STRING
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir.graph import Value
from aot.ir.types import Array, DType

F32, I32, I64 = DType.F32, DType.I32, DType.I64


@onnx_op("OneHotEncoder", domain=ML)
def one_hot_encoder(node: Node) -> Value:
    """OneHotEncoder: a column for each category, 1 where the element equals it."""
    node.ignore("zeros")
    x = node.input(0)
    if node.element_type(0) == STRING:
        node.ignore("cats_int64s")
        categories = node.strings.numbers(node.strs_attr("cats_strings"))
    else:
        node.ignore("cats_strings")
        x, categories = node.cast(x, I64), np.array(node.ints_attr("cats_int64s"), np.int64)
    column = node.reshape(x, (*x.type.dims, 1))
    return node.cast(node.emit("equal", column, node.constant(categories)), F32)


@onnx_op("CategoryMapper", domain=ML)
def category_mapper(node: Node) -> Value:
    """CategoryMapper: maps strings to integers, or integers to strings."""
    texts = node.strings.numbers(node.strs_attr("cats_strings"))
    return _between(node, texts, np.array(node.ints_attr("cats_int64s", ()), np.int64))


@onnx_op("LabelEncoder", domain=ML)
def label_encoder_of_classes(node: Node) -> Value:
    """LabelEncoder with classes: maps strings to their indices in a list, or indices to strings."""
    texts = node.strings.numbers(node.strs_attr("classes_strings"))
    return _between(node, texts, np.arange(len(texts)))


def _between(node: Node, texts: Array, integers: Array) -> Value:
    """Maps strings to integers, or integers to strings, by two parallel lists."""
    if len(texts) != len(integers) or not len(texts):
        raise node.error(
            f"{len(texts)} strings and {len(integers)} integers, expected as many, and some"
        )
    if node.element_type(0) == STRING:
        node.ignore("default_string")
        default = np.array(node.int_attr("default_int64", -1))
        return _of_strings(node, node.input(0), texts, integers, default)
    node.ignore("default_int64")
    default = np.array(node.string_attr("default_string", "_Unused"))
    return node.string(_of_numbers(node, node.input(0), integers, texts, default))


def _table_of(node: Node, what: str) -> tuple[Array, bool]:
    """(array, whether they are strings) of a LabelEncoder's keys or values, whatever their element
    type."""
    if node.has(f"{what}_tensor"):
        is_of_strings = node.attribute(f"{what}_tensor").t.data_type == STRING
        return node.tensor_attr(f"{what}_tensor").reshape(-1), is_of_strings
    readers: dict[str, Callable[[str], Array]] = {
        "int64s": lambda name: np.array(node.ints_attr(name), np.int64),
        "floats": lambda name: np.array(node.floats_attr(name), np.float32),
        "strings": lambda name: node.strings.numbers(node.strs_attr(name)),
    }
    for kind, read in readers.items():
        if node.has(f"{what}_{kind}"):
            return read(f"{what}_{kind}"), kind == "strings"
    raise node.error(f"attributes '{what}_*' are missing")


def _default_of(node: Node, values: Array, is_of_strings: bool) -> Array:
    node.ignore("default_string", "default_float", "default_int64", "default_tensor")
    if node.has("default_tensor"):
        found = node.tensor_attr("default_tensor").reshape(())
    elif is_of_strings:
        found = np.array(node.string_attr("default_string", "_Unused"))
    elif values.dtype.kind == "f":
        found = np.array(node.float_attr("default_float", -0.0))
    else:
        found = np.array(node.int_attr("default_int64", -1))
    return found.astype(values.dtype)


@onnx_op("LabelEncoder", since=2, domain=ML)
def label_encoder(node: Node) -> Value:
    """LabelEncoder: maps each element, a key, to its value."""
    (keys, has_strings), (values, gives_strings) = (
        _table_of(node, "keys"),
        _table_of(node, "values"),
    )
    if len(keys) != len(values) or not len(keys):
        raise node.error(f"{len(keys)} keys and {len(values)} values, expected as many, and some")
    if has_strings != (node.element_type(0) == STRING):
        kinds = "strings, but X is not" if has_strings else "not strings, but X is"
        raise node.error(f"the keys are {kinds}")
    default = _default_of(node, values, gives_strings)
    find = _of_strings if has_strings else _of_numbers
    found = find(node, node.input(0), keys, values, default)
    return node.string(found) if gives_strings else found


def _of_strings(node: Node, x: Value, keys: Array, values: Array, default: Array) -> Value:
    """Maps strings to values by their table index; the first of equal keys counts."""
    table = np.full(int(keys.max()) + 2, default, values.dtype)
    table[keys[::-1]] = values[::-1]  # of equal ones numpy takes the last
    last = node.scalar(len(table) - 1, I64)
    is_other = node.emit("less", x, node.scalar(0, I64))
    place = node.emit("where", is_other, last, node.emit("minimum", x, last))
    return node.emit("gather", node.constant(table), place, axis=0)


def _of_numbers(node: Node, x: Value, keys: Array, values: Array, default: Array) -> Value:
    """Maps numbers to values by binary search in the sorted keys."""
    _, first = np.unique(keys, return_index=True)  # of equal keys the first one counts
    known = first[~np.isnan(keys[first])] if keys.dtype.kind == "f" else first
    missing = first[np.isnan(keys[first])] if keys.dtype.kind == "f" else first[:0]
    table = np.append(values[known], default)
    sorted_keys = node.constant(keys[known].astype(x.type.dtype.numpy))
    at = _searched(node, x, sorted_keys, len(known))
    limited = node.emit("minimum", at, node.scalar(max(len(known) - 1, 0), I32))
    is_known = node.emit("equal", node.emit("gather", sorted_keys, limited, axis=0), x)
    place = node.emit("where", is_known, limited, node.scalar(len(known), I32))
    found = node.emit("gather", node.constant(table), place, axis=0)
    if len(missing):
        of_nan = node.constant(values[missing[0]].reshape(()))
        found = node.emit("where", node.emit("is_nan", x), of_nan, found)
    return found


def _searched(node: Node, x: Value, keys: Value, count: int) -> Value:
    """The number of sorted keys below each element, i32, by binary search."""
    at = node.emit("broadcast_to", node.scalar(0, I32), shape=x.type.dims)
    step = 1 << max(count - 1, 0).bit_length()
    while step:
        further = node.emit("add", at, node.scalar(step, I32))
        place = node.emit("sub", further, node.scalar(1, I32))
        inside = node.emit("less_equal", further, node.scalar(count, I32))
        limited = node.emit("minimum", place, node.scalar(count - 1, I32))
        below = node.emit("less", node.emit("gather", keys, limited, axis=0), x)
        at = node.emit("where", node.emit("and", inside, below), further, at)
        step //= 2
    return at


@onnx_op("StringNormalizer")
def string_normalizer(node: Node) -> Value:
    """StringNormalizer: changes case and removes stop words, for strings known at compile time, as
    a program sees only string indices."""
    case, words = node.str_attr("case_change_action", "NONE"), node.strs_attr("stopwords")
    if case not in ("NONE", "LOWER", "UPPER"):
        raise node.error(f"attribute 'case_change_action' is {case!r}, expected LOWER or UPPER")
    is_exact = bool(node.int_attr("is_case_sensitive", 0))
    node.ignore("locale")
    x = node.input(0)
    if x.type.rank not in (1, 2) or (x.type.rank == 2 and x.type.dims[0] != 1):
        raise node.error(f"X is of dims {x.type.dims}, expected [C] or [1, C]")
    known = node.values.known(x)
    if known is None or known.dtype == object:
        if case == "NONE" and not words:
            return node.string(node.emit("cast", x, to=I64))
        raise UnsupportedNodeError(f"operand 0 (X) is not known at compile time: {REASON}")
    stops = set(words if is_exact else map(str.lower, words))
    texts = [node.strings.text(int(n)) for n in known.reshape(-1)]
    kept = [text for text in texts if (text if is_exact else text.lower()) not in stops] or [""]
    changes: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper}
    change = changes.get(case, str)
    shape = (len(kept),) if x.type.rank == 1 else (1, len(kept))
    numbers = node.strings.numbers([change(text) for text in kept])
    return node.string(node.constant(numbers.reshape(shape)))
