"""What Python and notebooks ask of a program besides running it: a pickle, its texts, and who else
calls it.

A pickle holds the path of a module file, or the module's bytes, how the program was opened, and the
contents of its state. Whoever opens one trusts it, as any pickle.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from aot.runtime.tensors import TensorInfo

_STATE_NAME = "state"
FEW = 6  # tensors that `repr` lists


class Calling(Protocol):
    """How a model is called that takes and gives more than arrays by name."""

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
        """The arrays of the program's inputs, by name, and what `returned` needs of the call."""

    def returned(self, results: Mapping[str, Any], call: Any) -> Any:
        """The value that the model returns, from the program's outputs by name."""


class Portable:
    """The part of `Program` that pickles it and shows it in a notebook."""

    entry: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    states: tuple[TensorInfo, ...]
    _calling: Any

    def _keep(self, source: str | os.PathLike[str] | bytes, **options: Any) -> None:
        """Keeps what a pickle needs: the path of the module, or its bytes, and the options."""
        is_path = isinstance(source, str | os.PathLike)
        self._source = str(Path(source).absolute()) if is_path else bytes(source)  # type: ignore[arg-type]
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle opens the same module in the same way, with the state that this program has."""
        state = None
        if self.states:
            with tempfile.TemporaryDirectory(prefix="aot-") as folder:
                path = Path(folder) / _STATE_NAME
                self.save_state(path)  # type: ignore[attr-defined]
                state = path.read_bytes()
        options = {**self._options, "calling": self._calling}
        return _restored, (type(self), self._source, options, state)

    def __repr__(self) -> str:
        if not hasattr(self, "states"):
            return "<Program, not opened>"
        sides = (self.inputs, "inputs"), (self.outputs, "outputs")
        taken, given = (
            ", ".join(map(str, each)) if len(each) <= FEW else f"{len(each)} {what}"
            for each, what in sides
        )
        where = f"{self.target} on {self.device}"  # type: ignore[attr-defined]
        return f"<Program {self.entry!r} for {where}: {taken} -> {given}>"

    def _repr_html_(self) -> str:
        from aot.base.html import html_table

        rows = [
            (kind, info.name, info.dtype, f"[{', '.join(map(str, info.dims))}]")
            for kind, infos in (("input", self.inputs), ("output", self.outputs))
            for info in infos
        ]
        where = f"{self.target} on {self.device}"  # type: ignore[attr-defined]
        return html_table(f"{self.entry} for {where}", ("", "name", "dtype", "shape"), rows)


def _restored(kind: type[Any], source: Any, options: Mapping[str, Any], state: bytes | None) -> Any:
    """The program of a pickle.

    Raises:
        RuntimeFailure: the module is not there any more, or does not run on this machine.
    """
    program = kind(source, **options)
    if state is not None:
        with tempfile.TemporaryDirectory(prefix="aot-") as folder:
            path = Path(folder) / _STATE_NAME
            path.write_bytes(state)
            program.load_state(path)
    return program
