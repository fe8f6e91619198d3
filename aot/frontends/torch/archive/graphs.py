"""Converts a graph in the file to a torch.fx.Graph: nodes, their arguments and results.

Follows the rules by which torch writes graphs: a node with several results is followed by a
`getitem` for each, and a graph that a node runs is a module in its own module. Each name is checked
to be one, as torch writes Python code with them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental import symbolic_shapes

from aot.frontends.torch.archive.fields import Field, is_plain
from aot.frontends.torch.archive.payloads import dtype
from aot.frontends.torch.archive.sizes import Sizes
from aot.frontends.torch.archive.targets import target

_POSITIONAL, _KEYWORD = 1, 2
_MOST_SHOWN = 1 << 16  # characters of a stack trace
_MEMORY_FORMATS = ("", "contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
_STRIDED = 7
_NUMBERS = ("as_sym_int", "as_sym_float", "as_sym_bool")
_LISTS = ("as_sym_ints", "as_sym_floats", "as_sym_bools")
_CONSTANTS = ("as_int", "as_float", "as_bool", "as_none", "as_string")


class Graphs:
    """Builds one graph of the file; graphs nested in its nodes get builders of their own.

    Args:
        sizes: of the whole program.

    Attributes:
        graph: as far as it is built.
        module: has the modules of graphs that nodes run.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.graph, self.module = torch.fx.Graph(), torch.nn.Module()
        self._nodes: dict[str, Any] = {}
        self._makes: dict[str, tuple[Callable[[Field], Any], Field]] = {}

    def build(self, field: Field, constant_names: Sequence[str] = ()) -> Any:
        """The graph; its output is a tuple, or a single tensor where the file says so.

        Args:
            constant_names: names of inputs by place, for those that are no values.
        """
        self._declare(field)
        for place, given in enumerate(field["inputs"].items()):
            self._add_input(given, constant_names[place] if place < len(constant_names) else "")
        for node in field["nodes"].items():
            self._add_node(node)
        results = [self._argument(given) for given in field["outputs"].items()]
        single = field.get("is_single_tensor_return")
        if single is not None and single.truth():
            if len(results) != 1 or not isinstance(results[0], torch.fx.Node):
                raise field["outputs"].error("is not the one tensor that the graph returns")
            self.graph.output(results[0]).meta["val"] = results[0].meta["val"]
        else:
            values = (r.meta["val"] if isinstance(r, torch.fx.Node) else r for r in results)
            self.graph.output(tuple(results)).meta["val"] = tuple(values)
        self._bind_unbacked(field)
        return self.graph

    def _declare(self, field: Field) -> None:
        """Records the descriptions of values, which are evaluated when a node defines the value."""
        for key, make in (
            ("tensor_values", self.sizes.tensor),
            ("sym_int_values", self.sizes.integer),
            ("sym_float_values", self.sizes.number),
            ("sym_bool_values", self.sizes.truth),
        ):
            values = field.get(key)
            for name, value in () if values is None else values.entries():
                self._makes[name] = (make, value)

    def _bind_unbacked(self, field: Field) -> None:
        """Records at each node the data-dependent symbols that it defines."""
        for node in self.graph.nodes:
            value = node.meta.get("val")
            bindings = value is not None and symbolic_shapes._free_unbacked_symbols_with_path(
                value, (), shape_env=self.sizes.env, pending=self.sizes.pending, simplify=True
            )
            if bindings:
                node.meta["unbacked_bindings"] = bindings
        if self.sizes.pending:
            names = ", ".join(sorted(map(str, self.sizes.pending))[:5])
            raise field.error(f"has sizes that no node gives: {names}")

    # names

    def _named(self, node: Any, name: str, field: Field) -> Any:
        """Sets a node's name, and its value's description from the file."""
        if name in self._nodes:
            raise field.error(f"is a second value {name!r}")
        make, value = self._makes.get(name, (None, field))
        if make is None:
            raise field.error(f"is {name!r}, which is no value of the graph")
        node.name = name
        node.meta["val"] = make(value)
        self._nodes[name] = node
        return node

    def _value(self, field: Field) -> Any:
        """The node that a field names; an error if it does not come earlier."""
        found = self._nodes.get(field.text())
        if found is None:
            raise field.error(f"is {field.text()[:80]!r}, which no node before gives")
        return found

    # inputs and nodes

    def _add_input(self, given: Field, constant_name: str) -> None:
        kind, value = given.union()
        if kind in _CONSTANTS:
            name = constant_name or f"arg{len(self.graph.nodes)}"
            if kind == "as_string" and not is_plain(value.text()):
                raise value.error("has a quote or a control character, expected a plain text")
            self.graph.placeholder(name).meta["val"] = self._argument(given)
            return
        name = self._result_name(kind, value)
        self._named(self.graph.placeholder(name), name, value)

    def _result_name(self, kind: str, value: Field) -> str:
        """The name of a tensor or number that an input or node defines."""
        if kind == "as_tensor":
            return value["name"].name()
        if kind in _NUMBERS:
            inner_kind, inner = value.union()
            if inner_kind == "as_name":
                return inner.name()
        raise value.error(f"is {kind!r}, which is not supported here")

    def _add_node(self, field: Field) -> None:
        function = target(field["target"])
        meta = _metadata(field)
        inputs = field["inputs"].items()
        if isinstance(function, torch._ops.OpOverload):
            args, kwargs = self._op_arguments(function, inputs, field)
        else:
            args, kwargs = self._plain_arguments(inputs, meta)
        outputs = [output.union() for output in field["outputs"].items()]
        given = field.get("name")
        name = None if given is None else given.name()
        is_one = len(outputs) == 1 and outputs[0][0] in ("as_tensor", *_NUMBERS)
        if is_one and function in _GROUPED:
            single = field.get("is_hop_single_tensor_return")
            is_one = single is None or single.truth()
        if name is None and is_one:
            name = self._result_name(*outputs[0])
        node = self.graph.create_node("call_function", function, args, kwargs, name)
        if is_one:
            self._named(node, self._result_name(*outputs[0]), field)
        elif outputs and outputs[0][0] == "as_none" and len(outputs) == 1:
            node.meta["val"] = None
        elif outputs:
            self._add_items(node, outputs, meta)
        node.meta.update(meta)
        node.meta.setdefault("nn_module_stack", {})
        self._note_checks(node)

    def _note_checks(self, node: Any) -> None:
        """Passes the bounds that a node checks of sizes to torch."""
        if node.target is torch.ops.aten._assert_scalar.default:
            checked = node.args[0].meta.get("val") if isinstance(node.args[0], torch.fx.Node) else 0
            if isinstance(checked, torch.SymBool):
                self.sizes.env.guard_or_defer_runtime_assert(checked.node.expr, "", node)
        elif node.target is torch.ops.aten.sym_constrain_range_for_size.default:
            size = node.args[0].meta.get("val") if isinstance(node.args[0], torch.fx.Node) else 0
            if isinstance(size, torch.SymInt):
                self.sizes.env._constrain_range_for_size(size.node.expr)

    def _add_items(self, node: Any, outputs: Sequence[tuple[str, Field]], meta: Any) -> None:
        """Adds the results of a node with several results, or a list of results."""
        if len(outputs) == 1 and outputs[0][0] == "as_tensors":
            rows = [("as_tensor", item) for item in outputs[0][1].items()]
        else:
            rows = list(outputs)
        node.meta["val"] = tuple(self._items(node, rows, meta))

    def _items(self, node: Any, rows: Sequence[tuple[str, Field]], meta: Any) -> list[Any]:
        found = []
        for place, (kind, value) in enumerate(rows):
            item = self.graph.create_node("call_function", operator.getitem, (node, place))
            if kind == "as_none":
                item.meta["val"] = None
            elif kind == "as_tensors" or kind in _LISTS:
                single = "as_tensor" if kind == "as_tensors" else kind[:-1]
                inner = [(single, one) for one in value.items()]
                item.meta["val"] = self._items(item, inner, meta)
            else:
                self._named(item, self._result_name(kind, value), value)
            item.meta.update(meta)
            found.append(item.meta["val"])
        return found

    # arguments

    def _op_arguments(
        self, function: Any, inputs: Sequence[Field], field: Field
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of an op, in the order of its schema."""
        given: dict[str, tuple[Any, int]] = {}
        for one in inputs:
            kind = one.get("kind")
            place = 0 if kind is None else kind.integer(0, _KEYWORD)
            given[one["name"].text()] = self._argument(one["arg"]), place
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in function._schema.arguments:
            if argument.name not in given:
                if argument.has_default_value():
                    continue
                raise field.error(f"has no argument {argument.name!r} of {function}")
            value, place = given.pop(argument.name)
            by_place = not argument.kwarg_only and not argument.has_default_value()
            if place == _POSITIONAL or (place == 0 and by_place) or argument.name == "from":
                args.append(value)
            else:
                kwargs[argument.name] = value
        if given:
            raise field.error(f"has an argument {next(iter(given))[:80]!r}, not one of {function}")
        return tuple(args), kwargs

    def _plain_arguments(
        self, inputs: Sequence[Field], meta: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a function on sizes or of an op with graphs."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for one in inputs:
            kind = one.get("kind")
            value = self._argument(one["arg"])
            if isinstance(value, torch.fx.Node) and value.op == "get_attr":
                value.meta.update(meta)
            name = one["name"].text()
            if kind is None or kind.integer(0, _KEYWORD) != _KEYWORD or not name:
                args.append(value)
            else:
                kwargs[one["name"].name()] = value
        return tuple(args), kwargs

    def _argument(self, field: Field) -> Any:
        kind, value = field.union()
        read = _READ.get(kind)
        if read is not None:
            return read(value)
        if kind in ("as_tensor", "as_optional_tensor"):
            return self._tensor(kind, value)
        if kind == "as_tensors":
            return [self._value(one["name"]) for one in value.items()]
        if kind == "as_optional_tensors":
            return [self._tensor("as_optional_tensor", one) for one in value.items()]
        if kind == "as_nested_tensors":
            return [[self._value(one["name"]) for one in row.items()] for row in value.items()]
        if kind in _NUMBERS:
            return self._number(value)
        if kind in _LISTS:
            return [self._number(one) for one in value.items()]
        if kind == "as_graph":
            return self._graph(value)
        raise value.error(f"is {kind!r}, an argument that is not supported")

    def _tensor(self, kind: str, value: Field) -> Any:
        if kind == "as_tensor":
            return self._value(value["name"])
        inner_kind, inner = value.union()
        return None if inner_kind == "as_none" else self._value(inner["name"])

    def _number(self, value: Field) -> Any:
        kind, inner = value.union()
        if kind == "as_name":
            return self._value(inner)
        read = _READ.get(kind)
        if read is None or kind not in ("as_int", "as_float", "as_bool"):
            raise inner.error(f"is {kind!r}, expected a number")
        return read(inner)

    def _graph(self, value: Field) -> Any:
        """A graph that a node runs, as a torch.fx.GraphModule."""
        name = value["name"].name()
        if hasattr(self.module, name):
            raise value["name"].error(f"is a second graph {name!r}")
        outer, self.sizes.pending = self.sizes.pending, set()
        inner = Graphs(self.sizes)
        graph = inner.build(value["graph"])
        self.sizes.pending = outer
        self.module.register_module(name, torch.fx.GraphModule(inner.module, graph))
        return self.graph.create_node("get_attr", name, name=name)


_GROUPED = tuple(
    getattr(torch.ops.higher_order, name)
    for name in ("cond", "while_loop", "wrap_with_set_grad_enabled", "wrap_with_autocast")
)


def _memory_format(field: Field) -> Any:
    return getattr(torch, _MEMORY_FORMATS[field.integer(1, len(_MEMORY_FORMATS) - 1)])


def _layout(field: Field) -> Any:
    if field.integer() != _STRIDED:
        raise field.error("is a sparse or packed layout, which is not supported")
    return torch.strided


def _complex(field: Field) -> complex:
    return complex(field["real"].number(), field["imag"].number())


def _list_of(read: Callable[[Field], Any]) -> Callable[[Field], list[Any]]:
    return lambda field: [read(one) for one in field.items()]


# Arguments that are no values of the graph. A program runs on the CPU, wherever it was saved.
_READ: dict[str, Callable[[Field], Any]] = {
    "as_none": lambda field: None,
    "as_int": Field.integer,
    "as_float": Field.number,
    "as_bool": Field.truth,
    "as_string": Field.text,
    "as_complex": _complex,
    "as_scalar_type": dtype,
    "as_memory_format": _memory_format,
    "as_layout": _layout,
    "as_device": lambda field: torch.device("cpu"),
    "as_ints": _list_of(Field.integer),
    "as_floats": _list_of(Field.number),
    "as_bools": _list_of(Field.truth),
    "as_strings": _list_of(Field.text),
    "as_int_lists": _list_of(_list_of(Field.integer)),
    "as_float_lists": _list_of(_list_of(Field.number)),
}


def _metadata(field: Field) -> dict[str, Any]:
    """The metadata of a node's origin: its module path and the user's stack trace."""
    given = field["metadata"]
    found: dict[str, Any] = {}
    trace = given.get("stack_trace")
    if trace is not None:
        found["stack_trace"] = trace.text()[:_MOST_SHOWN]
    function = given.get("torch_fn")
    if function is not None:
        found["torch_fn"] = tuple(function.text().split(";"))
    stack = given.get("nn_module_stack")
    if stack is not None:
        rows = [_stack_entry(row) for row in stack.text().split(";")]
        found["nn_module_stack"] = {key: (path, kind) for key, path, kind in rows}
    return found


def _stack_entry(row: str) -> tuple[str, str, str]:
    """(key, path, class) of a module; the path may have commas in brackets."""
    key, _, rest = row.partition(",")
    path, _, kind = rest.rpartition(",")
    return key, path, kind
