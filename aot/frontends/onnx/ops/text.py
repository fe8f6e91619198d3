"""Imports ONNX's TfIdfVectorizer, on sequences of tokens: counts of n-grams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from aot.frontends.onnx.strings import STRING
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir.graph import Value
from aot.ir.types import DType

Gram = tuple[int, ...]
MAX_SKIPS = 64  # each is ops of its own
_MODES = ("TF", "IDF", "TFIDF")


def _pool(node: Node) -> Gram:
    """The n-grams of the pool one after another: integers, or table indices of strings."""
    if node.element_type(0) == STRING:
        return tuple(int(n) for n in node.strings.numbers(node.strs_attr("pool_strings")))
    return node.ints_attr("pool_int64s")


def _grams(node: Node) -> dict[int, dict[Gram, int]]:
    """The n-grams of the pool that count, by length, each with its index. The later of two equal
    ones counts."""
    pool, starts = _pool(node), node.ints_attr("ngram_counts")
    columns = node.ints_attr("ngram_indexes")
    low, high = node.int_attr("min_gram_length"), node.int_attr("max_gram_length")
    if not 1 <= low <= high or not columns or min(columns) < 0:
        raise node.error("min_gram_length, max_gram_length or ngram_indexes is out of range")
    if list(starts) != sorted(starts) or any(not 0 <= s <= len(pool) for s in starts):
        raise node.error(f"ngram_counts {list(starts)} are no places in a pool of {len(pool)}")
    found: dict[int, dict[Gram, int]] = {}
    seen = 0
    for length, (start, end) in enumerate(zip(starts, (*starts[1:], len(pool)), strict=True), 1):
        count = (end - start) // length
        if seen + count > len(columns):
            raise node.error(f"the pool has more n-grams than ngram_indexes, {len(columns)}")
        for number in range(count):
            at = start + number * length
            if low <= length <= high:
                found.setdefault(length, {})[pool[at : at + length]] = seen + number
        seen += count
    return found


def _occurrences(node: Node, x: Value, grams: Sequence[Gram], skip: int) -> Value | None:
    """The count of each n-gram in each row of x, with `skip` tokens between its tokens; None where
    no row is long enough."""
    length, extent = len(grams[0]), x.type.dims[1]
    if not isinstance(extent, int):
        raise UnsupportedNodeError("the number of tokens in a row depends on the input's shape")
    windows = extent - (length - 1) * (skip + 1)
    if windows <= 0:
        return None
    found: Value | None = None
    for number in range(length):
        first = number * (skip + 1)
        rows = x.type.dims[0]
        tokens = node.emit(
            "slice", x, starts=(0, first), stops=(rows, first + windows), steps=(1, 1)
        )
        wanted = np.array([gram[number] for gram in grams], x.type.dtype.numpy)
        is_token = node.emit(
            "equal", node.reshape(tokens, (rows, windows, 1)), node.constant(wanted)
        )
        found = is_token if found is None else node.emit("and", found, is_token)
    assert found is not None
    return node.emit("reduce_sum", node.cast(found, DType.F32), axes=(1,), keepdims=False)


def _by_column(node: Node, counts: Value, columns: Sequence[int], width: int) -> Value:
    """Counts [rows, n-grams] as [rows, width]; n-grams with the same column are added up."""
    sources: dict[int, list[int]] = {}
    for number, column in enumerate(columns):
        sources.setdefault(column, []).append(number)
    # one zero more, for columns without an n-gram
    padded = node.emit("pad", counts, pads=(0, 0, 0, 1), mode="constant", value=0.0)
    total: Value | None = None
    for turn in range(max(map(len, sources.values()))):
        chosen = [
            sources[c][turn] if len(sources.get(c, ())) > turn else len(columns)
            for c in range(width)
        ]
        part = node.emit("gather", padded, node.constant(np.array(chosen, np.int64)), axis=1)
        total = part if total is None else node.emit("add", total, part)
    assert total is not None
    return total


def _counts(node: Node, x: Value, grams: Mapping[int, Sequence[Gram]]) -> Value | None:
    """The count of each n-gram in each row of x; None if no row is long enough for any."""
    parts: list[Value] = []
    skips = node.int_attr("max_skip_count")
    for length, found in grams.items():
        total: Value | None = None
        # a single token has nothing between its own
        for skip in range(skips + 1 if length > 1 else 1):
            part = _occurrences(node, x, found, skip)
            if part is None:  # and none for more between them
                break
            if skip > MAX_SKIPS:
                raise UnsupportedNodeError(f"more than {MAX_SKIPS} tokens skipped in a row")
            total = part if total is None else node.emit("add", total, part)
        if total is None:
            zero = node.scalar(0.0, DType.F32)
            total = node.emit("broadcast_to", zero, shape=(x.type.dims[0], len(found)))
        parts.append(total)
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else node.emit("concat", *parts, axis=1)


def _weights(node: Node, numbers: Sequence[int]) -> Value | None:
    """The weight of each counted n-gram; None without weights."""
    weights = np.array(node.floats_attr("weights", ()), np.float32)
    if not weights.size:
        return None
    expected = len(node.ints_attr("ngram_indexes"))
    if weights.size != expected:
        raise node.error(f"attribute 'weights' has {weights.size} numbers, expected {expected}")
    return node.constant(weights[list(numbers)])


@onnx_op("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(node: Node) -> Value:
    x, mode = node.input(0), node.str_attr("mode")
    if mode not in _MODES:
        raise node.error(f"attribute 'mode' is {mode!r}, expected one of {', '.join(_MODES)}")
    if x.type.rank > 2:
        raise node.error(f"the tokens have rank {x.type.rank}, expected 0, 1 or 2")
    if node.int_attr("max_skip_count") < 0:
        raise node.error("attribute 'max_skip_count' is negative")
    grams = _grams(node)
    limits = np.iinfo(x.type.dtype.numpy)
    beyond = [t for t in _pool(node) if not limits.min <= t <= limits.max]
    if beyond:
        raise node.error(f"token {beyond[0]} of pool_int64s is no {x.type.dtype}, as X has them")
    places = node.ints_attr("ngram_indexes")
    width = max(places) + 1
    node.check_computed(width, "the result's rows")
    rows = x if x.type.rank == 2 else node.reshape(x, (1, x.type.element_count))
    numbers = [number for found in grams.values() for number in found.values()]
    columns = [places[number] for number in numbers]
    counts = _counts(node, rows, {length: list(found) for length, found in grams.items()})
    weights, zero = _weights(node, numbers), node.scalar(0.0, DType.F32)
    if counts is None:
        result = node.emit("broadcast_to", zero, shape=(rows.type.dims[0], width))
    elif mode == "IDF" and weights is not None:
        if len(set(columns)) < len(columns):
            raise UnsupportedNodeError("several weights of one column in mode IDF")
        weighted = node.emit("where", node.emit("less", zero, counts), weights, zero)
        result = _by_column(node, weighted, columns, width)
    elif mode == "IDF":
        found = node.emit("less", zero, _by_column(node, counts, columns, width))
        result = node.cast(found, DType.F32)
    else:
        if mode == "TFIDF" and weights is not None:
            counts = node.emit("mul", counts, weights)
        result = _by_column(node, counts, columns, width)
    return result if x.type.rank == 2 else node.reshape(result, (width,))
