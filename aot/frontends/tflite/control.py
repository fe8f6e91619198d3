"""TFLite's control flow as ops with blocks, and its variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from aot.base.records import dataclass
from aot.frontends.tflite.table import CUSTOM, TABLE, Node, UnsupportedNodeError, with_blocks
from aot.ir.builtin import YIELD
from aot.ir.graph import Block, ConstantData, Value
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType, TensorType
from aot.ops import lookup


class NotImportedError(Exception):
    """A subgraph can't be imported; the importer has recorded the reasons."""


@dataclass
class Variable:
    """A variable of the model, to which a resource tensor refers.

    Attributes:
        initial: what the model assigns once before all else; None of zeros.
        value: what it holds at this place of the function; None where nobody has asked yet.
        held: the input that it is tied to.
        is_set: the input that says whether the program has assigned it.
        is_named: signatures that know it by its name share it.
        is_assigned: the program changes it.
    """

    name: str
    initial: ConstantData | None = None
    value: Value | None = None
    held: Value | None = None
    is_set: Value | None = None
    is_named: bool = False
    is_assigned: bool = False


class GraphImporter(Protocol):
    """The part of the importer that control flow uses."""

    variables: dict[str, Variable]
    depth: int

    def item(self, scope: Any, number: int) -> Any:
        """The value or variable that tensor `number` is."""

    def state(self, variable: Variable, type: TensorType) -> Value:
        """Turns a variable into a state, and returns its value at the function's start."""

    def subgraph(self, index: int, given: Sequence[Any], rewriter: Rewriter) -> list[Any]:
        """The results of a graph."""


Results = Sequence[Value | Variable | None]


def _given(importer: GraphImporter, scope: Any, n: Node, start: int = 0) -> list[Value]:
    """The operands of control flow from `start` on; none may be a variable.

    Raises:
        UnsupportedNodeError: one is a variable.
    """
    found = [importer.item(scope, number) for number in n.operator.inputs[start:]]
    if any(isinstance(v, Variable) for v in found):
        raise UnsupportedNodeError("variables in branches and loops are not supported")
    if any(v is None for v in found):
        raise n.error("an operand is missing")
    return found


def _tensors(found: Sequence[Any]) -> list[Value]:
    values = [v for v in found if isinstance(v, Value)]
    if len(values) != len(found):
        raise UnsupportedNodeError("a result of its graph is no tensor")
    return values


def _if(importer: GraphImporter, scope: Any, n: Node) -> Results:
    condition, *given = _given(importer, scope, n)
    graphs = [n.option("then_subgraph_index", 0), n.option("else_subgraph_index", 0)]
    known = n.known(0)
    if known is not None and known.size == 1:
        return importer.subgraph(graphs[0 if known.reshape(()) else 1], given, n.rewriter)
    blocks, types = [], []
    for graph in graphs:
        block = Block()
        inside = Rewriter(n.rewriter.function, block)
        results = _tensors(importer.subgraph(graph, given, inside))
        inside.create(YIELD, results, {}, n.label)
        types.append([v.type for v in results])
        blocks.append(block)
    if types[0] != types[1]:
        raise UnsupportedNodeError("its branches give tensors of different shapes")
    return with_blocks(n, "if", [n.reshape(condition, ())], *blocks)


def _while(importer: GraphImporter, scope: Any, n: Node) -> Results:
    """A loop whose condition is computed once before it, and then at the end of each iteration."""
    starts = _given(importer, scope, n)
    condition, body = n.option("cond_subgraph_index", 0), n.option("body_subgraph_index", 0)

    def truth(given: Sequence[Value], rewriter: Rewriter) -> Value:
        (found,) = _tensors(importer.subgraph(condition, given, rewriter))[:1]
        if found.type.dtype is not DType.BOOL or found.type.element_count != 1:
            raise n.error(f"its condition is {found.type}, expected one truth")
        shape = {"shape": ()}
        return (
            found
            if found.type.rank == 0
            else rewriter.create(lookup("reshape"), [found], shape, n.label).result
        )

    first = truth(starts, n.rewriter)
    block = Block([TensorType(DType.I64, ()), *(v.type for v in starts)])
    inside = Rewriter(n.rewriter.function, block)
    values = _tensors(importer.subgraph(body, block.args[1:], inside))
    for number, (value, start) in enumerate(zip(values, starts, strict=False)):
        if value.type != start.type:
            raise UnsupportedNodeError(
                f"value {number} that it carries is {start.type} at first and {value.type} later"
            )
    if len(values) != len(starts):
        raise n.error(f"its body gives {len(values)} values, expected {len(starts)}")
    inside.create(YIELD, [truth(values, inside), *values], {}, n.label)
    return with_blocks(n, "loop", [None, first, *starts], block)


def _composite(importer: GraphImporter, scope: Any, n: Node) -> Results:
    """An operator defined by a graph of the model, imported inline."""
    index = n.option("decomposition_subgraph_index", -1)
    return importer.subgraph(index, _given(importer, scope, n), n.rewriter)


# variables


def _call_once(importer: GraphImporter, scope: Any, n: Node) -> Results:
    """CALL_ONCE: imports the graph that runs before the first call; what it assigns to variables
    becomes their initial values.
    """
    index = n.option("init_subgraph_index", 0)
    before = {v.name: v.value for v in importer.variables.values()}
    importer.subgraph(index, [], n.rewriter)
    for variable in importer.variables.values():
        value = variable.value
        if value is before.get(variable.name) or value is None:
            continue
        if value.op is None or value.op.name != "constant":
            raise UnsupportedNodeError(f"the first value of {variable.name!r} is computed")
        data = value.op.attrs["value"]
        assert isinstance(data, ConstantData)
        variable.initial, variable.value = data, None
    return []


def _handle(importer: GraphImporter, scope: Any, n: Node) -> Results:
    name = "/".join(
        part for part in (n.option("container", ""), n.option("shared_name", "")) if part
    )
    name = name or n.label
    return [importer.variables.setdefault(name, Variable(name, is_named=True))]


def _variable(importer: GraphImporter, scope: Any, n: Node) -> Variable:
    found = importer.item(scope, n.operator.inputs[0])
    if not isinstance(found, Variable):
        raise n.error("its operand is no variable")
    return found


def _read(importer: GraphImporter, scope: Any, n: Node) -> Results:
    variable = _variable(importer, scope, n)
    if variable.value is None:
        if variable.initial is not None:
            type = variable.initial.type
        elif any(extent < 0 for extent in n.output().dims):
            raise UnsupportedNodeError(f"variable {variable.name!r} has no shape")
        else:
            type = TensorType(n.output().dtype, n.output().dims)
        variable.value = importer.state(variable, type)
    return [variable.value]


def _assign(importer: GraphImporter, scope: Any, n: Node) -> Results:
    variable = _variable(importer, scope, n)
    value = n.input(1)
    if importer.depth == 0 and variable.held is None:
        importer.state(variable, value.type)
    elif variable.held is not None and variable.held.type != value.type:
        raise UnsupportedNodeError(
            f"variable {variable.name!r} is {variable.held.type} and is assigned {value.type}"
        )
    variable.value = value
    variable.is_assigned |= importer.depth == 0
    return []


CONTROL: Mapping[str, Callable[[Any, Any, Node], Results]] = {
    "ASSIGN_VARIABLE": _assign,
    "CALL_ONCE": _call_once,
    "IF": _if,
    "READ_VARIABLE": _read,
    "STABLEHLO_COMPOSITE": _composite,
    "VAR_HANDLE": _handle,
    "WHILE": _while,
}


def supported_ops() -> list[str]:
    """The operators that can be imported, sorted, custom ones last."""
    return [*sorted({*TABLE, *CONTROL}), *sorted(CUSTOM)]
