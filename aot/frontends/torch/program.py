"""Facts about an exported program: dtypes, names of inputs, outputs and dims, labels of nodes.

Knows torch's objects by their attributes; imports torch in no place.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import PurePath
from typing import Any

import numpy as np

from aot.base.records import dataclass
from aot.frontends.lib.builder import UnsupportedNodeError
from aot.frontends.torch.dims import Sizes
from aot.ir.bounds import WantedDim, assumptions_of
from aot.ir.dims import is_symbol_name, symbol
from aot.ir.graph import Assumption
from aot.ir.types import DType, TensorType

DTYPES = {
    "torch.float32": DType.F32,
    "torch.bfloat16": DType.BF16,
    "torch.float16": DType.F16,
    "torch.float64": DType.F64,
    "torch.int8": DType.I8,
    "torch.int16": DType.I16,
    "torch.int32": DType.I32,
    "torch.int64": DType.I64,
    "torch.uint8": DType.U8,
    "torch.uint16": DType.U16,
    "torch.uint32": DType.U32,
    "torch.uint64": DType.U64,
    "torch.bool": DType.BOOL,
}
BFLOAT16 = "torch.bfloat16"
LEAST_CHECKED = 2  # torch lets dims be 0 and 1 whatever their lower bound, if that is at most 2
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True)
class Exported:
    """An exported program, with facts that only the exporter knows.

    Attributes:
        program: a torch.export.ExportedProgram.
        dim_names: (number of an input among all leaves, axis) -> the name of its dim.
        guards: what torch has taken for granted of shapes, as Python expressions.
        where: what messages call it.
        file_bytes: length of the file that it was read from; None if it is from none.
        is_decomposed: its graph is functional and in the table's ops, as far as torch can.
    """

    program: Any
    dim_names: Mapping[tuple[int, int], str] = field(default_factory=dict)
    guards: Sequence[str] = ()
    where: str = "model"
    file_bytes: int | None = None
    is_decomposed: bool = False


def dtype_of(dtype: Any) -> DType:
    """The DType of a torch.dtype.

    Raises:
        UnsupportedNodeError: there is none.
    """
    found = DTYPES.get(str(dtype))
    if found is None:
        name = str(dtype).removeprefix("torch.")
        raise UnsupportedNodeError(f"element type {name} is not supported")
    return found


def type_of(tensor: Any, sizes: Sizes) -> TensorType:
    """The type of a tensor, such as a fake one.

    Raises:
        UnsupportedNodeError: its element type or a size is not supported.
    """
    return TensorType(dtype_of(tensor.dtype), tuple(sizes.dim(n) for n in tensor.shape))


def array_of(tensor: Any) -> Any:
    """A numpy array of a tensor's elements, sharing its memory where possible."""
    known = tensor.detach().cpu().resolve_conj().resolve_neg()
    if str(tensor.dtype) != BFLOAT16:
        return known.numpy()
    import torch

    return known.view(torch.int16).numpy().view(DType.BF16.numpy)


def tensor_of(array: Any) -> Any:
    """A torch tensor that shares an array's memory."""
    import torch

    if array.dtype != DType.BF16.numpy:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def is_symbolic(value: Any) -> bool:
    """Whether a value is a torch.SymInt, SymFloat or SymBool."""
    return type(value).__name__ in ("SymInt", "SymFloat", "SymBool")


def user_inputs(program: Any) -> list[Any]:
    """The specifications of the caller's inputs, in the order of the tree's leaves."""
    return [s for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]


def user_outputs(program: Any) -> list[Any]:
    """The specifications of the module's returned values, in the order of the tree's leaves."""
    return [s for s in program.graph_signature.output_specs if s.kind.name == "USER_OUTPUT"]


def is_value(spec: Any) -> bool:
    """Whether an input or output is a tensor or a shape-dependent number, not a constant."""
    return hasattr(spec.arg, "name") and not hasattr(spec.arg, "value")


def output_names(program: Any) -> list[str]:
    """The names of the returned leaves: dict keys and attributes, or numbers where there are
    none."""
    from torch.utils import _pytree as pytree

    count = len(user_outputs(program))
    tree = pytree.tree_unflatten(list(range(count)), program.call_spec.out_spec)
    paths, _ = pytree.tree_flatten_with_path(tree)
    names = [_path_name([_key_text(key) for key in path]) for path, _ in paths]
    if len(names) != count:  # a class that was not registered in this process
        names = [f"output_{n}" for n in range(count)]
    return unique(names, taken=())


def _key_text(key: Any) -> str:
    for name in ("key", "name", "idx"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


def _path_name(keys: Sequence[str]) -> str:
    if not keys:
        return "output"
    return ("output_" if keys[0].isdecimal() else "") + ".".join(keys)


def unique(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The names made unique, by appended numbers, among themselves and `taken`."""
    found: list[str] = []
    seen = set(taken)
    for name in names:
        fresh, number = name, 1
        while fresh in seen:
            number += 1
            fresh = f"{name}_{number}"
        seen.add(fresh)
        found.append(fresh)
    return found


def label_of(node: Any) -> str:
    """A node's label: its module path, and its name in the graph."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((p for p, _ in reversed(list(stack.values())) if p), "")
    return f"{path}/{node.name}" if path else str(node.name)


def place_of(node: Any) -> str:
    """The user's source line of a node, as `model.py:12`: the innermost frame outside of torch and
    `aot`; "" if not known.

    The innermost frame counts that is neither torch's nor ours.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    names = ("torch", "aot")
    own = tuple(str(PurePath(sys.modules[name].__file__ or "").parent) for name in names)
    for path, line in reversed(frames):
        if not path.startswith(own):
            return f"{PurePath(path).name}:{line}"
    return ""


def dim_sizes(exported: Exported, placeholders: Mapping[str, Any]) -> Sizes:
    """The conversion of sizes to dims: symbols get the names that the user gave dims, or are named
    after the first input and axis with them."""
    names: dict[str, str] = {}
    plain: dict[str, str] = {}
    for number, spec in enumerate(user_inputs(exported.program)):
        if not is_value(spec):
            continue
        tensor = placeholders[spec.arg.name].meta["val"]
        for axis, size in enumerate(getattr(tensor, "shape", ())):
            if not is_symbolic(size) or len(found := size.node.expr.free_symbols) != 1:
                continue
            (torch_name,) = map(str, found)
            if (name := exported.dim_names.get((number, axis))) is not None:
                names.setdefault(torch_name, name)
            fresh = re.sub(r"[^A-Za-z0-9_]", "_", f"{spec.arg.name}_d{axis}")
            if not size.node.expr.is_Symbol:
                fresh += "_unit"
            plain.setdefault(torch_name, fresh if is_symbol_name(fresh) else f"_{fresh}")
    for torch_name, name in plain.items():
        if torch_name not in names:
            names[torch_name] = unique([name], list(names.values()))[0]
    return Sizes(names)


def range_assumptions(program: Any, sizes: Sizes) -> Iterator[Assumption]:
    """Assumptions for the bounds of dims that the user gave or that the model's code implies.

    As in torch, a lower bound of 2 or less is none."""
    for name, dim in sorted((str(s), r) for s, r in program.range_constraints.items()):
        if name not in sizes.names:
            continue
        low = int(dim.lower) if dim.lower.is_Integer else 0
        high = int(dim.upper) if dim.upper.is_Integer else None
        wanted = WantedDim(None, low if low > LEAST_CHECKED else 0, high)
        ours = sizes.names[name]
        yield from assumptions_of(symbol(ours), wanted, f"dim {ours}")
