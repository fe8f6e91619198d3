"""Reads a file of torch.export.save as a torch.export.ExportedProgram, without torch's reader.

Owns the layout of the archive, of today and of torch before 2.8, and the program's signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch._export.verifier import load_verifier
from torch.export import graph_signature as signatures
from torch.export.exported_program import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.utils import _pytree as pytree

from aot.errors import CompileError
from aot.frontends.torch.archive.entries import Entries
from aot.frontends.torch.archive.fields import Field, is_plain, parsed
from aot.frontends.torch.archive.graphs import Graphs
from aot.frontends.torch.archive.payloads import Payloads, pickled_tensors
from aot.frontends.torch.archive.sizes import Sizes
from aot.frontends.torch.archive.trees import tree
from aot.frontends.torch.guards import plain_guards

SCHEMA = 8  # the major version of the layout
_FORMAT, _VERSION = b"pt2", b"0"
_MODELS = "models/"
_MODEL = f"{_MODELS}model.json"  # what torch calls a program that is alone
_BEFORE = "serialized_exported_program.json"
_VERIFIERS = ("TRAINING", "ATEN")  # dialects of torch itself
_ROOT = ""
Tensors = dict[str, torch.Tensor]


def read_program(source: Path | bytes, where: str) -> Any:
    """The torch.export.ExportedProgram in a file; its example inputs have no data.

    Args:
        source: the file's path or bytes.
        where: what messages call it.

    Raises:
        CompileError: it is no such file, is damaged, or has what could run code.
    """
    try:
        with Entries(source, where) as entries:
            name, (weights, constants) = _parts(entries)
            program = parsed(entries.read(name), f"{where}: {name}")
        return _built(program, weights, constants)
    except (CompileError, MemoryError):
        raise
    except RecursionError:
        raise CompileError(f"{where}: is nested too deep") from None
    except Exception as error:  # torch's own checks have no common base
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise CompileError(f"{where}: is no program that torch accepts: {reason}") from error


def _parts(entries: Entries) -> tuple[str, tuple[Tensors, Tensors]]:
    """(entry name of the program, (weights, constants))."""
    if _BEFORE in entries:
        return _BEFORE, (_before(entries, "state_dict"), _before(entries, "constants"))
    if entries.read("archive_format") != _FORMAT or entries.read("archive_version") != _VERSION:
        raise CompileError(f"{entries.where}: is an archive of another version than 0")
    names = [n for n in entries.names() if n.startswith(_MODELS) and n.endswith(".json")]
    found = _MODEL if _MODEL in names else next(iter(names), "")
    if not names or (found != _MODEL and len(names) > 1):
        listed = ", ".join(names[:5]) or "none"
        raise CompileError(f"{entries.where}: has no program {_MODEL!r}; its programs: {listed}")
    model = found.removeprefix(_MODELS).removesuffix(".json")
    return found, (_tensors(entries, "weights", model), _tensors(entries, "constants", model))


def _before(entries: Entries, name: str) -> Tensors:
    """The tensors of an archive written by torch before 2.8."""
    entry = f"serialized_{name}.pt"
    return pickled_tensors(entries.read(entry), f"{entries.where}: {entry}")


def _tensors(entries: Entries, kind: str, model: str) -> Tensors:
    folder = f"data/{kind}/"
    if f"{folder}{model}.pt" in entries:
        data = entries.read(f"{folder}{model}.pt")
        return pickled_tensors(data, f"{entries.where}: {folder}{model}.pt")
    return Payloads(entries, folder).tensors(f"{folder}{model}_{kind}_config.json")


def _built(program: Field, weights: Tensors, constants: Tensors) -> Any:
    major = program["schema_version"]["major"]
    if major.integer() != SCHEMA:
        raise major.error(
            f"is {major.value}, expected {SCHEMA}: save the program with PyTorch 2.13"
        )
    module = program["graph_module"]
    sizes = Sizes(program["range_constraints"])
    inputs = [_input(spec) for spec in module["signature"]["input_specs"].items()]
    outputs = [_output(spec) for spec in module["signature"]["output_specs"].items()]
    builder = Graphs(sizes)
    names = [spec.arg.name for spec in inputs]
    graph = builder.build(module["graph"], names)
    verifiers = [v.text() for v in program["verifiers"].items()]
    call = _call(module["module_call_graph"])
    made = ExportedProgram(
        root=builder.module,
        graph=graph,
        graph_signature=signatures.ExportGraphSignature(inputs, outputs),
        state_dict=weights,
        range_constraints=dict(sizes.range_constraints),
        module_call_graph=[call],
        example_inputs=_examples(call, graph, inputs),
        constants=constants,
        verifiers=[load_verifier(name) for name in verifiers if name in _VERIFIERS] or None,
    )
    guards = program.get("guards_code")
    made._guards_code = [] if guards is None else plain_guards(g.text() for g in guards.items())
    return made


def _examples(call: Any, graph: Any, inputs: Sequence[Any]) -> Any:
    """Example arguments like those of the export, with tensors without data."""
    placeholders = graph.find_nodes(op="placeholder")
    values = [
        node.meta["val"]
        for node, spec in zip(placeholders, inputs, strict=True)
        if spec.kind == signatures.InputKind.USER_INPUT
    ]
    return pytree.tree_unflatten(values, call.signature.in_spec)


# The signature.


def _argument(field: Field) -> Any:
    """The signature argument of a user input or output."""
    kind, value = field.union()
    if kind == "as_tensor":
        return signatures.TensorArgument(value["name"].name())
    if kind in _NUMBERS:
        inner_kind, inner = value.union()
        if inner_kind == "as_name":
            return _NUMBERS[kind](inner.name())
        return signatures.ConstantArgument("", _constant(Field(value.value, kind, field)))
    return signatures.ConstantArgument("", _constant(field))


_NUMBERS = {
    "as_sym_int": signatures.SymIntArgument,
    "as_sym_float": signatures.SymFloatArgument,
    "as_sym_bool": signatures.SymBoolArgument,
}


def _constant(field: Field) -> Any:
    kind, value = field.union()
    match kind:
        case "as_none":
            return None
        case "as_int":
            return value.integer()
        case "as_float":
            return value.number()
        case "as_bool":
            return value.truth()
        case "as_string" if is_plain(value.text()):
            return value.text()
    raise value.error(f"is {kind!r}, expected a constant, or a text without quotes")


def _input(field: Field) -> Any:
    kind, value = field.union()
    kinds = signatures.InputKind
    if kind == "user_input":
        return signatures.InputSpec(kinds.USER_INPUT, _argument(value["arg"]), None)
    if kind == "constant_input":
        argument = signatures.ConstantArgument(value["name"].name(), _constant(value["value"]))
        return signatures.InputSpec(kinds.USER_INPUT, argument, None)
    found = _HELD.get(kind)
    if found is None:
        raise value.error(f"is {kind!r}, an input that is not supported")
    input_kind, key = found
    persistent = value["persistent"].truth() if kind == "buffer" else None
    argument = signatures.TensorArgument(value["arg"]["name"].name())
    return signatures.InputSpec(input_kind, argument, value[key].path(), persistent)


_HELD = {
    "parameter": (signatures.InputKind.PARAMETER, "parameter_name"),
    "buffer": (signatures.InputKind.BUFFER, "buffer_name"),
    "tensor_constant": (signatures.InputKind.CONSTANT_TENSOR, "tensor_constant_name"),
}


def _output(field: Field) -> Any:
    kind, value = field.union()
    if kind == "user_output":
        argument = _argument(value["arg"])
        return signatures.OutputSpec(signatures.OutputKind.USER_OUTPUT, argument, None)
    found = _CHANGED.get(kind)
    if found is None:
        raise value.error(f"is {kind!r}, an output that is not supported")
    output_kind, key = found
    argument = signatures.TensorArgument(value["arg"]["name"].name())
    return signatures.OutputSpec(output_kind, argument, value[key].path())


_CHANGED = {
    "buffer_mutation": (signatures.OutputKind.BUFFER_MUTATION, "buffer_name"),
    "user_input_mutation": (signatures.OutputKind.USER_INPUT_MUTATION, "user_input_name"),
    **(
        {"parameter_mutation": (signatures.OutputKind.PARAMETER_MUTATION, "parameter_name")}
        if hasattr(signatures.OutputKind, "PARAMETER_MUTATION")
        else {}
    ),
}


def _call(field: Field) -> Any:
    """The call specification of the whole module."""
    roots = [entry for entry in field.items() if entry["fqn"].text() == _ROOT]
    if len(roots) != 1:
        raise field.error("does not say how the module is called")
    given = roots[0]["signature"]
    arguments = given.get("forward_arg_names")
    names = None if arguments is None else [a.name() for a in arguments.items()] or None
    in_spec, out_spec = tree(given["in_spec"]), tree(given["out_spec"])
    _check_call(given["in_spec"], in_spec)
    signature = ModuleCallSignature(
        inputs=[], outputs=[], in_spec=in_spec, out_spec=out_spec, forward_arg_names=names
    )
    return ModuleCallEntry(fqn=_ROOT, signature=signature)


def _check_call(field: Field, spec: Any) -> None:
    """Checks that the call specification is a tuple of arguments and a dict of keywords, as torch
    generates a function from these names.
    """
    children = spec.children() if hasattr(spec, "children") else spec.children_specs
    if spec.type is not tuple or [child.type for child in children] != [tuple, dict]:
        raise field.error("is no tuple and dict of arguments")
    for name in children[1].context:
        Field(name, "a keyword", field).name()
