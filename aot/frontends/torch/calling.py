"""The calling convention of an exported module: maps arguments to named inputs, and named outputs
to what the module returns.

Imports torch, so that it is imported for programs that are torch's only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from aot.base.records import dataclass
from aot.errors import RuntimeFailure
from aot.frontends.torch.importer import NEXT
from aot.frontends.torch.program import (
    array_of,
    is_value,
    output_names,
    tensor_of,
    user_inputs,
    user_outputs,
)

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Constant:
    """A leaf that is not a tensor, and is the same in every call."""

    value: Any


@dataclass(frozen=True)
class Named:
    """A leaf that is an input or output of the program.

    Attributes:
        is_number: the module has a number, not a tensor, there.
    """

    name: str
    is_number: bool = False


Leaf = Constant | Named


@dataclass(frozen=True)
class Calling:
    """The module's call signature; see `aot.runtime.protocols.Calling`.

    Attributes:
        arguments: names of the module's parameters, in order.
        inputs, outputs: the leaves of the two trees.
        mutated: inputs that the module writes -> the outputs that they are afterwards.
    """

    arguments: Sequence[str]
    in_spec: Any
    out_spec: Any
    inputs: Sequence[Leaf]
    outputs: Sequence[Leaf]
    mutated: Mapping[str, str]

    @staticmethod
    def of(program: Any) -> Calling:
        """The call signature of a torch.export.ExportedProgram."""
        signature = program.module_call_graph[0].signature
        names = output_names(program)
        mutated = {
            s.target: f"{s.target}{NEXT}"
            for s in program.graph_signature.output_specs
            if s.kind.name == "USER_INPUT_MUTATION"
        }
        return Calling(
            list((signature and signature.forward_arg_names) or ()),
            program.call_spec.in_spec,
            program.call_spec.out_spec,
            [_leaf(s, s.arg.name) for s in user_inputs(program)],
            [_leaf(s, name) for s, name in zip(user_outputs(program), names, strict=True)],
            mutated,
        )

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Arrays, Any]:
        """(arrays of the program's inputs by name, data of the call that `returned` needs).

        Raises:
            RuntimeFailure: the arguments are not those that the module was exported with.
        """
        leaves = self._leaves(args, kwargs)
        arrays: dict[str, Any] = {}
        for given, wanted in zip(leaves, self.inputs, strict=True):
            if isinstance(wanted, Named):
                arrays[wanted.name] = _array(given)
            elif isinstance(given, torch.Tensor) or given != wanted.value:
                raise RuntimeFailure(
                    f"an argument is {_short(given)}, but the module was compiled for "
                    f"{_short(wanted.value)} there",
                    "argument",
                )
        return arrays, leaves

    def returned(self, results: Arrays, call: Any) -> Any:
        """The module's return value, from a run's results: torch tensors, or arrays if the call had
        only arrays. Results for inputs that are written are copied into the caller's tensors.
        """
        given = {
            w.name: leaf for w, leaf in zip(self.inputs, call, strict=True) if isinstance(w, Named)
        }
        is_numpy = bool(given) and not any(isinstance(v, torch.Tensor) for v in given.values())
        for name, output in self.mutated.items():
            if output in results and name in given:
                _write(given[name], results[output])
        leaves = [
            leaf.value if isinstance(leaf, Constant) else _result(leaf, results, is_numpy)
            for leaf in self.outputs
        ]
        return pytree.tree_unflatten(leaves, self.out_spec)

    def _leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of the arguments, which may be positional or keywords."""
        places, names = (self.in_spec.child(n) for n in range(2))
        given, keywords = list(args), dict(kwargs)
        free = iter(self.arguments[len(given) : places.num_children])
        for name in free:
            if name not in keywords:
                break
            given.append(keywords.pop(name))
        wanted = list(names.context)
        for name in self.arguments[places.num_children :]:
            if len(given) > places.num_children and name in wanted and name not in keywords:
                keywords[name] = given.pop(places.num_children)
        if len(given) != places.num_children or set(keywords) != set(wanted):
            raise RuntimeFailure(
                f"the module takes {self._signature()}, found {len(args)} arguments"
                + (f" and {', '.join(kwargs)}" if kwargs else ""),
                "argument",
            )
        ordered = {name: keywords[name] for name in wanted}
        leaves, spec = pytree.tree_flatten((tuple(given), ordered))
        if len(leaves) != len(self.inputs) or spec != self.in_spec:
            raise RuntimeFailure(
                f"the arguments are nested otherwise than when the module was exported: {spec}, "
                f"expected {self.in_spec}",
                "argument",
            )
        return list(leaves)

    def _signature(self) -> str:
        count = self.in_spec.child(0).num_children
        names = self.arguments or [f"argument {i}" for i in range(count)]
        return ", ".join(names) or "no arguments"


def _leaf(spec: Any, name: str) -> Leaf:
    if not is_value(spec):
        return Constant(getattr(spec.arg, "value", None))
    is_number = type(spec.arg).__name__ != "TensorArgument"
    return Named(name, is_number)


def _array(value: Any) -> Any:
    """An array that shares the tensor's memory; other values unchanged."""
    return array_of(value) if isinstance(value, torch.Tensor) else value


def _result(leaf: Named, results: Arrays, is_numpy: bool) -> Any:
    array = results.get(leaf.name)
    if array is None or is_numpy:
        return array
    if leaf.is_number:
        return array.item()
    return tensor_of(array)


def _write(target: Any, array: Any) -> None:
    if isinstance(target, torch.Tensor) and array_of(target).ctypes.data != target.data_ptr():
        with torch.no_grad():
            target.copy_(tensor_of(array))


def _short(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else repr(value)
