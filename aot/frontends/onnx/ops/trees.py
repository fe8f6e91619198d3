"""Imports decision tree ensembles (ai.onnx.ml), as tables in which all trees are traversed
together.

A node is a row: the feature that it looks at, the number that it compares that with, and two rows
that may follow. Leaves follow themselves, so that walks of as many steps as the deepest tree has
end in leaves: no branch depends on data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from aot.base.records import dataclass
from aot.frontends.onnx.ops.scores import (
    ML,
    Scores,
    label_of,
    labels_of,
    of_one_score,
    transformed,
)
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir.graph import Value
from aot.ir.types import Array, DType

F32, I32 = DType.F32, DType.I32
MAX_DEPTH = 256  # a few ops for each
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(8)
_MODES = {
    b"BRANCH_LEQ": LEQ,
    b"BRANCH_LT": LT,
    b"BRANCH_GTE": GTE,
    b"BRANCH_GT": GT,
    b"BRANCH_EQ": EQ,
    b"BRANCH_NEQ": NEQ,
    b"LEAF": LEAF,
}


@dataclass
class Forest:
    """The table of all trees' nodes, one row per node.

    Attributes:
        dtype: of the features.
        features, splits, follows: of each row; `follows` has the row where the test holds and the
            row where it does not.
        is_equality: rows that test for equality; the others for "at most".
        takes_nan: rows whose test holds for NaN.
        roots: the first row of each tree.
    """

    dtype: DType = F32
    features: list[int] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    follows: list[tuple[int, int]] = field(default_factory=list)
    is_equality: list[bool] = field(default_factory=list)
    takes_nan: list[bool] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)

    def leaf(self) -> int:
        """Adds a leaf, a row that is its own successor, and returns its index."""
        row = len(self.features)
        self._add(0, np.inf, (row, row), False, False)
        return row

    def room(self) -> int:
        """Reserves a row that `test` fills in later, and returns its index."""
        return self.leaf()

    def _add(
        self, feature: int, split: float, follows: tuple[int, int], equal: bool, nan: bool
    ) -> None:
        self.features.append(feature)
        self.splits.append(split)
        self.follows.append(follows)
        self.is_equality.append(equal)
        self.takes_nan.append(nan)

    def test(
        self, row: int, mode: int, feature: int, split: float, true: int, false: int, nan: bool
    ) -> None:
        """Fills a row with a test of kind `mode`; `nan` is the outcome for NaN."""
        if mode in (GT, GTE, NEQ):
            mode = {GT: LEQ, GTE: LT, NEQ: EQ}[mode]
            true, false, nan = false, true, not nan if mode != EQ else False
        if mode == LT:
            kind = self.dtype.numpy.type
            split = float(np.nextafter(kind(split), kind(-np.inf)))
        self.features[row], self.splits[row] = feature, split
        self.follows[row] = true, false
        self.is_equality[row] = mode == EQ
        self.takes_nan[row] = nan

    def depth(self) -> int:
        """The number of steps to the deepest leaf.

        Raises:
            ValueError: rows follow one another in a circle.
        """
        steps, rows = 0, set(self.roots)
        while True:
            rows = {n for row in rows for n in self.follows[row] if n != row}
            if not rows:
                return steps
            steps += 1
            if steps > len(self.features):
                raise ValueError


def walked(node: Node, x: Value, forest: Forest) -> Value:
    """The leaf that each row of x [batch, features] reaches in each tree: i32[batch, trees]."""
    try:
        depth = forest.depth()
    except ValueError:
        raise node.error("the nodes of a tree follow one another in a circle") from None
    if depth > MAX_DEPTH:
        raise UnsupportedNodeError(f"trees of depth {depth}; {MAX_DEPTH} is supported at most")
    batch = x.type.dims[0]
    shape = (batch, len(forest.roots))
    features = node.constant(np.array(forest.features, np.int32))
    splits = node.constant(np.array(forest.splits, x.type.dtype.numpy))
    follows = node.constant(np.array(forest.follows, np.int32).reshape(-1))
    two, one = node.scalar(2, I32), node.scalar(1, I32)
    at = node.emit("broadcast_to", node.constant(np.array(forest.roots, np.int32)), shape=shape)
    for _ in range(depth):
        feature = node.emit("gather", features, at, axis=0)
        found = node.emit("gather_elements", x, feature, axis=1)
        split = node.emit("gather", splits, at, axis=0)
        holds = node.emit("less_equal", found, split)
        if any(forest.is_equality):
            kinds = node.emit("gather", node.constant(np.array(forest.is_equality)), at, axis=0)
            holds = node.emit("where", kinds, node.emit("equal", found, split), holds)
        if any(forest.takes_nan):
            takes = node.emit("gather", node.constant(np.array(forest.takes_nan)), at, axis=0)
            missing = node.emit("and", node.emit("is_nan", found), takes)
            holds = node.emit("or", holds, missing)
        other = node.emit("sub", one, node.cast(holds, I32))
        place = node.emit("add", node.emit("mul", at, two), other)
        at = node.emit("gather", follows, place, axis=0)
    return at


def _rows(node: Node) -> Value:
    """The operand as floats [batch, features]."""
    x = node.input(0)
    if x.type.rank != 2:
        raise node.error(f"X has rank {x.type.rank}, expected 2")
    return x if x.type.dtype in (F32, DType.F64) else node.cast(x, F32)


def _numbers(node: Node, name: str) -> Array:
    """The floats of an attribute, or of its variant that is a tensor."""
    if node.has(f"{name}_as_tensor"):
        return node.tensor_attr(f"{name}_as_tensor").reshape(-1)
    return np.array(node.floats_attr(name, ()), np.float32)


def _check_features(node: Node, x: Value, forest: Forest) -> None:
    count, most = x.type.dims[1], max(forest.features, default=0)
    if isinstance(count, int) and (most >= count or min(forest.features, default=0) < 0):
        raise node.error(f"a node looks at feature {most}, but X has {count}")


def _parsed(node: Node, dtype: DType) -> tuple[Forest, dict[tuple[int, int], int]]:
    """(forest, row of each (tree, node)) of TreeEnsembleClassifier and TreeEnsembleRegressor."""
    node.ignore("nodes_hitrates", "nodes_hitrates_as_tensor")
    trees, ids = node.ints_attr("nodes_treeids", ()), node.ints_attr("nodes_nodeids", ())
    features, splits = node.ints_attr("nodes_featureids", ()), _numbers(node, "nodes_values")
    modes = list(node.attribute("nodes_modes").strings)
    true, false = node.ints_attr("nodes_truenodeids"), node.ints_attr("nodes_falsenodeids")
    nan = node.ints_attr("nodes_missing_value_tracks_true", ()) or (0,) * len(ids)
    lengths = {len(x) for x in (trees, ids, features, splits, modes, true, false, nan)}
    if lengths != {len(ids)} or not ids:
        raise node.error(f"the attributes of nodes have {sorted(lengths)} elements, expected equal")
    forest = Forest(dtype)
    rows = {key: forest.room() for key in zip(trees, ids, strict=True)}
    for number, key in enumerate(zip(trees, ids, strict=True)):
        if number == 0 or trees[number - 1] != key[0]:
            forest.roots.append(rows[key])
        mode = _MODES.get(modes[number])
        if mode is None:
            name = modes[number].decode("utf-8", "replace")
            raise node.error(f"attribute 'nodes_modes' has {name!r}, which is not known")
        if mode == LEAF:
            continue
        try:
            children = rows[key[0], true[number]], rows[key[0], false[number]]
        except KeyError as error:
            raise node.error(f"tree {key[0]} has no node {error.args[0][1]}") from None
        split = float(splits[number])
        forest.test(rows[key], mode, features[number], split, *children, bool(nan[number]))
    return forest, rows


def _leaf_weights(
    node: Node, what: str, rows: dict[tuple[int, int], int], count: int, columns: int
) -> Array:
    """Leaf weights [rows, columns], from the attributes `{what}_treeids` and so on."""
    trees, ids = node.ints_attr(f"{what}_treeids", ()), node.ints_attr(f"{what}_nodeids", ())
    targets, weights = node.ints_attr(f"{what}_ids", ()), _numbers(node, f"{what}_weights")
    if not len(trees) == len(ids) == len(targets) == len(weights):
        raise node.error(f"the attributes {what}_* have different numbers of elements")
    found = np.zeros((count, columns), np.float64)
    for tree, leaf, target, weight in zip(trees, ids, targets, weights, strict=True):
        if (tree, leaf) not in rows or not 0 <= target < columns:
            raise node.error(f"a weight is of node {leaf} of tree {tree} and target {target}")
        found[rows[tree, leaf], target] += float(weight)
    return found


def _aggregated(node: Node, leaves: Value, weights: Array, how: str, dtype: DType) -> Value:
    """The aggregated outputs of all trees' leaves: [batch, columns]."""
    op = {"SUM": "reduce_sum", "AVERAGE": "reduce_mean", "MIN": "reduce_min", "MAX": "reduce_max"}
    if how not in op:
        raise node.error(f"attribute 'aggregate_function' is {how!r}")
    batch, _ = leaves.type.dims
    columns = weights.shape[1]
    if columns == 1:
        table = node.constant(weights[:, 0].astype(dtype.numpy))
        found = node.emit("gather", table, leaves, axis=0)
    else:
        found = node.emit("gather", node.constant(weights.astype(dtype.numpy)), leaves, axis=0)
    total = node.emit(op[how], found, axes=(1,), keepdims=False)
    return node.reshape(total, (batch, columns))


@onnx_op("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(node: Node) -> Value:
    x = _rows(node)
    forest, rows = _parsed(node, x.type.dtype)
    _check_features(node, x, forest)
    columns = node.int_attr("n_targets", 1)
    weights = _leaf_weights(node, "target", rows, len(forest.features), columns)
    how = node.str_attr("aggregate_function", "SUM")
    total = _aggregated(node, walked(node, x, forest), weights, how, x.type.dtype)
    base = _numbers(node, "base_values")
    if base.size:
        total = node.emit("add", total, node.constant(base.astype(total.type.dtype.numpy)))
    return node.cast(transformed(node, total, node.str_attr("post_transform", "NONE")), F32)


@onnx_op("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(node: Node) -> Sequence[Value]:
    x = _rows(node)
    forest, rows = _parsed(node, x.type.dtype)
    _check_features(node, x, forest)
    labels = labels_of(node, "classlabels_int64s")
    weights = _leaf_weights(node, "class", rows, len(forest.features), len(labels))
    base, ids = _numbers(node, "base_values"), set(node.ints_attr("class_ids", ()))
    is_binary = len(labels) == 2 and len(ids) == 1
    post = node.str_attr("post_transform", "NONE")
    dtype = x.type.dtype
    leaves = walked(node, x, forest)
    if is_binary:
        (column,) = ids
        score = _aggregated(node, leaves, weights[:, column : column + 1], "SUM", dtype)
        if base.size:
            first = base[1] if base.size == 2 else base[0]
            score = node.emit("add", score, node.scalar(float(first), dtype))
        is_share = bool((weights >= 0).all())
        chosen = node.emit("less", node.scalar(0.5 if is_share else 0.0, dtype), score)
        kind = Scores.SHARES if is_share else Scores.OPPOSITES
        label = label_of(node, node.cast(node.reshape(chosen, chosen.type.dims[:1]), I32), labels)
        return [label, node.cast(of_one_score(node, score, post, kind), F32)]
    scores = _aggregated(node, leaves, weights, "SUM", dtype)
    if base.size:
        scores = node.emit("add", scores, node.constant(base.astype(dtype.numpy)))
    best = node.reshape(node.emit("arg_max", scores, axis=1), scores.type.dims[:1])
    return [label_of(node, best, labels), node.cast(transformed(node, scores, post), F32)]


_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_POSTS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


class _Flat:
    """The attributes of TreeEnsemble (opset 5), which numbers nodes and leaves separately."""

    def __init__(self, node: Node, dtype: DType) -> None:
        self.node = node
        node.ignore("nodes_hitrates")
        self.modes = [int(m) for m in node.tensor_attr("nodes_modes").reshape(-1)]
        self.splits = node.tensor_attr("nodes_splits").reshape(-1)
        self.features = node.ints_attr("nodes_featureids")
        self.true, self.false = (
            (node.ints_attr(f"nodes_{s}nodeids"), node.ints_attr(f"nodes_{s}leafs"))
            for s in ("true", "false")
        )
        self.nan = node.ints_attr("nodes_missing_value_tracks_true", ()) or (0,) * len(self.modes)
        self.members = self._members()
        self.forest = Forest(dtype)
        count = len(node.ints_attr("leaf_targetids"))
        self.leaves = [self.forest.leaf() for _ in range(count)]
        self.rows = [self.forest.room() for _ in self.modes]
        for number in range(len(self.modes)):
            self._add(number)
        roots = node.ints_attr("tree_roots")
        is_leaf = [self.true[1][r] and self.false[1][r] for r in roots]
        for root, both in zip(roots, is_leaf, strict=True):
            same = both and self.true[0][root] == self.false[0][root]
            self.forest.roots.append(self.leaves[self.true[0][root]] if same else self.rows[root])

    def _members(self) -> list[list[float]]:
        """The membership sets of nodes that test for them; NaN ends a set in the attribute."""
        if not self.node.has("membership_values"):
            return []
        sets: list[list[float]] = [[]]
        for value in self.node.tensor_attr("membership_values").reshape(-1):
            if np.isnan(value):
                sets.append([])
            else:
                sets[-1].append(float(value))
        return sets

    def _child(self, of: tuple[Sequence[int], Sequence[int]], number: int) -> int:
        rows = self.leaves if of[1][number] else self.rows
        if not 0 <= of[0][number] < len(rows):
            raise self.node.error(f"node {number} is followed by {of[0][number]}")
        return rows[of[0][number]]

    def _add(self, number: int) -> None:
        true, false = self._child(self.true, number), self._child(self.false, number)
        row, mode, feature = self.rows[number], self.modes[number], self.features[number]
        nan, forest = bool(self.nan[number]), self.forest
        if mode != MEMBER:
            if not 0 <= mode < MEMBER:
                raise self.node.error(f"attribute 'nodes_modes' has {mode}, expected 0 to 6")
            forest.test(row, mode, feature, float(self.splits[number]), true, false, nan)
            return
        wanted = self.members[sum(m == MEMBER for m in self.modes[:number])]
        for position, value in enumerate(wanted):
            is_last = position + 1 == len(wanted)
            after = false if is_last else forest.room()
            forest.test(row, EQ, feature, value, true, after, nan)
            row = after


@onnx_op("TreeEnsemble", since=5, domain=ML)
def tree_ensemble(node: Node) -> Value:
    x = _rows(node)
    flat = _Flat(node, x.type.dtype)
    _check_features(node, x, flat.forest)
    columns = node.int_attr("n_targets", 1)
    targets, given = node.ints_attr("leaf_targetids"), node.tensor_attr("leaf_weights").reshape(-1)
    weights = np.zeros((len(flat.forest.features), columns))
    for row, target, weight in zip(flat.leaves, targets, given, strict=True):
        weights[row, target] = float(weight)
    how, post = node.int_attr("aggregate_function", 1), node.int_attr("post_transform", 0)
    if not (0 <= how < len(_AGGREGATES) and 0 <= post < len(_POSTS)):
        raise node.error("attribute 'aggregate_function' or 'post_transform' is not known")
    leaves = walked(node, x, flat.forest)
    total = _aggregated(node, leaves, weights, _AGGREGATES[how], x.type.dtype)
    return transformed(node, total, _POSTS[post])
