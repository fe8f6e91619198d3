"""The engines that a compiled module is compared with, and the default engine of each model format.

An oracle of a format has not read our importers: ONNX Runtime, LiteRT, PyTorch, llama.cpp. The
reference interpreter runs what our importer made of a model, so that it agrees with an importer's
faults. Owns the table of engines; runs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from aot.base.records import dataclass
from aot.frontends import registry
from aot.frontends.registry import Frontend
from aot.runtime.loader import Program
from aot.tools.engine_errors import check_format
from aot.tools.litert_engine import open_litert
from aot.tools.llama_engine import open_llama
from aot.tools.onnx_engine import draws_numbers, open_onnxruntime
from aot.tools.reference_engine import open_reference
from aot.tools.torch_engine import open_torch

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[Arrays], dict[str, NDArray[Any]]]
"""One call: arrays by the names of inputs, to arrays by the names of outputs."""
MOST_CONTEXT = 4096  # tokens of a language model whose states do not grow


@dataclass(frozen=True)
class Oracle:
    """An engine to compare with.

    Attributes:
        name: what a user calls it.
        title: what its makers call it.
        format: the only format that it reads; None for any that we import.
        module: what Python imports; "" where that is ours.
        package: what pip installs.
        open: what runs a model file, told of the program that was compiled.
        refuses: why a model can't be compared with it; "" where it can.
    """

    name: str
    title: str
    format: Frontend | None
    module: str
    package: str
    open: Callable[[Path, Program], Run]
    refuses: Callable[[Path], str] = lambda model: ""

    @property
    def is_installed(self) -> bool:
        """Whether the engine can be imported."""
        return not self.module or find_spec(self.module) is not None

    @property
    def version(self) -> str:
        """The version of the engine's Python package; "" where there is none."""
        try:
            return version(self.package) if self.package else ""
        except PackageNotFoundError:
            return ""

    def opened(self, model: Path, program: Program) -> Run:
        """Opens a model file in the engine; returns a function from inputs to outputs by name.

        Raises:
            CompileError: the model is of another format, or the engine is not installed or can't
                read it.
        """
        if self.format is not None:
            check_format(self.name, model, self.format)
        return self.open(model, program)


def _draws(model: Path) -> str:
    op = draws_numbers(model)
    return f"its {op} draws numbers, and each engine draws its own" if op else ""


def _open_llama(model: Path, program: Program) -> Run:
    growing = [
        high or MOST_CONTEXT
        for state in program.states
        for dim, (_, high) in zip(state.dims, state.bounds, strict=True)
        if isinstance(dim, str)
    ]
    is_one = any(output.dims[-2:-1] == (1,) for output in program.outputs)
    return open_llama(model, max(growing, default=MOST_CONTEXT), all_logits=not is_one)


REFERENCE = Oracle(
    *("reference", "the reference interpreter of aotc", None, "", ""),
    open=lambda model, program: open_reference(model),
)
ORACLES = {
    oracle.name: oracle
    for oracle in (
        REFERENCE,
        Oracle(
            *("onnxruntime", "ONNX Runtime", registry.ONNX, "onnxruntime", "onnxruntime"),
            open=lambda model, program: open_onnxruntime(model),
            refuses=_draws,
        ),
        Oracle(
            *("litert", "LiteRT", registry.TFLITE, "ai_edge_litert", "ai-edge-litert"),
            open=lambda model, program: open_litert(model),
        ),
        Oracle(
            *("torch", "PyTorch", registry.TORCH, "torch", "torch"),
            open=lambda model, program: open_torch(model),
        ),
        Oracle(
            *("llama.cpp", "llama.cpp", registry.GGUF, "llama_cpp", "llama-cpp-python"),
            open=_open_llama,
        ),
    )
}


@dataclass(frozen=True)
class Choice:
    """The engine that a model is compared with by default.

    Attributes:
        why: why that is the reference interpreter although the model's format has an engine; "" for
            that engine itself, and for a format that is ours.
    """

    oracle: Oracle
    why: str = ""


def usual(model: Path) -> Choice:
    """The engine of a model's format, or the reference interpreter if there is none."""
    found = registry.find(model)
    for oracle in ORACLES.values():
        if oracle.format is not found:
            continue
        if not oracle.is_installed:
            return Choice(
                REFERENCE,
                f"{oracle.title} is not installed, which would see it: pip install "
                f"{oracle.package}",
            )
        why = oracle.refuses(model)
        return Choice(REFERENCE, why) if why else Choice(oracle)
    return Choice(REFERENCE)
