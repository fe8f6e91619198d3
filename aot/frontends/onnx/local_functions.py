"""A model's own functions: checks them for cycles and growth, and inlines their calls.

Owns the check; ONNX's inliner does the rest, and trusts its input: it recurses without end into a
function that calls itself, and makes as many nodes as it is told to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import inliner

from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx.graphs import subgraphs
from aot.frontends.onnx.schema import find_schema

MAX_NODES = 1_000_000  # a hundred times the largest models' count

_Key = tuple[str, str, str]


def inline_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with calls of its own functions inlined.

    Raises:
        CompileError: functions have one name, call each other in a circle, or make more than
            MAX_NODES nodes.
        UnsupportedError: an op means something else in a function's opset than in the model's.
    """
    if not proto.functions:
        return proto
    functions: dict[_Key, onnx.FunctionProto] = {}
    for function in proto.functions:
        key = _key(function.domain, function.name, function.overload)
        if key in functions:
            raise CompileError(f"the model has two functions {_text_of(key)}")
        functions[key] = function
    sizes = _sizes({key: Counter(_calls(f.node)) for key, f in functions.items()})
    if sum(sizes.get(key, 1) for key in _calls(proto.graph.node)) > MAX_NODES:
        raise CompileError(f"the model's functions make more than {MAX_NODES} nodes")
    aligned = _of_one_opset(proto)
    try:
        return inliner.inline_local_functions(aligned)
    except Exception as error:  # the inliner raises plain C++ exceptions
        raise CompileError(f"its functions can't be inlined: {error}") from None


def _of_one_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its functions converted to the model's own opsets where their ops are the
    same, as the inliner skips functions of other opsets.

    Raises:
        UnsupportedError: some do not mean the same.
    """
    versions = {_domain(o.domain): o.version for o in proto.opset_import}
    own = (o for function in proto.functions for o in function.opset_import)
    if all(versions.get(_domain(o.domain), o.version) == o.version for o in own):
        return proto
    found, changed = onnx.ModelProto(), list[str]()
    found.CopyFrom(proto)
    for function in found.functions:
        for opset in function.opset_import:
            domain = _domain(opset.domain)
            wanted = versions.get(domain, opset.version)
            ops = {op for d, op, _ in _calls(function.node) if d == domain}
            others = [op for op in sorted(ops) if _changes(op, domain, opset.version, wanted)]
            if others:
                name = _text_of(_key(function.domain, function.name, function.overload))
                changed.append(
                    f"function {name} is of opset {opset.version} and the model of {wanted}, where "
                    f"{', '.join(others)} means something else; convert the function"
                )
            opset.version = wanted
    if changed:
        raise UnsupportedError("not supported:", changed)
    return found


def _changes(op: str, domain: str, one: int, other: int) -> bool:
    """Whether an op's definition differs between two versions of its domain."""
    if one == other:
        return False
    schemas = [find_schema(domain, op, version) for version in (one, other)]
    first, second = (None if schema is None else schema.since_version for schema in schemas)
    return first != second


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _key(domain: str, name: str, overload: str) -> _Key:
    return (_domain(domain), name, overload)


def _text_of(key: _Key) -> str:
    return ".".join(part for part in key if part)


def _calls(nodes: Iterable[onnx.NodeProto]) -> Iterator[_Key]:
    """The function or operator that each node calls, including nodes of subgraphs."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield _key(node.domain, node.op_type, node.overload)
        for graph in subgraphs(node):
            stack.extend(graph.node)


def _sizes(calls: Mapping[_Key, Counter[_Key]]) -> dict[_Key, int]:
    """The node count of each function after inlining all its calls; uses an explicit stack, as
    nesting may be deep.

    Raises:
        CompileError: functions call each other in a circle.
    """
    sizes: dict[_Key, int] = {}
    for start in calls:
        path = {start: iter(calls[start])}  # in order of insertion; what each has left to visit
        while path:
            key = next(reversed(path))
            following = next((k for k in path[key] if k in calls and k not in sizes), None)
            if following is None:
                sizes[key] = sum(n * sizes.get(k, 1) for k, n in calls[key].items())
                del path[key]
            elif following in path:
                circle = list(path)[list(path).index(following) :]
                raise CompileError(
                    "the model's functions call each other in a circle: "
                    + ", ".join(map(_text_of, circle[:5]))
                    + (", ..." if len(circle) > 5 else "")
                )
            else:
                path[following] = iter(calls[following])
    return sizes
