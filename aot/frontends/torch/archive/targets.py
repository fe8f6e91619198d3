"""The functions that a file may refer to: PyTorch ops that compute tensors, and operators on sizes.

What is found by a name is traced, so that none may touch files, print or run code. Custom ops are
none of these, but for those that the table of ops has.
"""

from __future__ import annotations

import importlib
import math
import operator
import re
from typing import Any

import torch

from aot.frontends.torch.archive.fields import Field
from aot.frontends.torch.table import is_kept

_OPEN = frozenset({"aten", "prims", "quantized_decomposed"})
_REGISTERS = {"quantized_decomposed": "torch.ao.quantization.fx._decomposed"}
_FILE_ARGUMENT = "filename"
_REFUSED = frozenset({"_print", "from_file"})
_CONTROL = frozenset({"cond", "while_loop", "wrap_with_set_grad_enabled", "wrap_with_autocast"})
_OP = re.compile(r"torch\.ops\.(\w+)\.(\w+)(?:\.(\w+))?")

_OPERATORS = ("eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "mul", "add", "sub", "floordiv")
_MORE_OPERATORS = ("mod", "pow", "truediv", "and_", "or_")
_ON_SIZES = ("sym_not", "sym_int", "sym_float", "sym_ite", "sym_max", "sym_min", "_sym_sqrt")
SIZE_FUNCTIONS: dict[str, Any] = {
    **{f"_operator.{name}": getattr(operator, name) for name in (*_OPERATORS, *_MORE_OPERATORS)},
    **{f"torch.{name}": getattr(torch, name) for name in _ON_SIZES if hasattr(torch, name)},
    "math.trunc": math.trunc,
}


def target(field: Field) -> Any:
    """The function that a node calls: an OpOverload, a higher-order op, or a function on sizes.

    Raises:
        CompileError: there is none of that name, or a file may not name it.
    """
    name = field.text()
    if name in SIZE_FUNCTIONS:
        return SIZE_FUNCTIONS[name]
    found = _OP.fullmatch(name)
    if found is None:
        raise _refused(field)
    space, op, overload = found.groups()
    if space == "higher_order":
        if overload is not None or op not in _CONTROL:
            raise _refused(field)
        return getattr(torch.ops.higher_order, op)
    if overload is None or not _is_open(space, op, overload):
        raise _refused(field)
    if space in _REGISTERS:
        importlib.import_module(_REGISTERS[space])
    packet = getattr(getattr(torch.ops, space), op, None)
    made = getattr(packet, overload, None)
    if not isinstance(made, torch._ops.OpOverload) or not _is_dispatched(made):
        raise field.error(f"is {name!r}, which this PyTorch, {torch.__version__}, does not have")
    if any(a.name == _FILE_ARGUMENT for a in made._schema.arguments):
        raise _refused(field)
    return made


def _is_open(space: str, op: str, overload: str) -> bool:
    return op not in _REFUSED and (space in _OPEN or is_kept(f"{space}.{op}.{overload}"))


def _is_dispatched(op: Any) -> bool:
    """Whether an op has kernels; TorchScript's functions, such as aten::save, have none."""
    return bool(torch._C._dispatch_has_kernel(op.name()))


def _refused(field: Field) -> Exception:
    return field.error(
        f"is {field.text()[:120]!r}, a function that a file may not call: give the "
        "torch.export.ExportedProgram itself to aot.compile"
    )
