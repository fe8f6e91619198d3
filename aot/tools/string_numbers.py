"""Maps strings to numbers and back within one call of a function, for engines that run our
graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from aot.ir.graph import Function
from aot.runtime.tensors import number_of, to_numbers, to_strings


class StringNumbers:
    """The numbers of the strings in one call: those of the function's table, and new ones for other
    strings."""

    def __init__(self, function: Function) -> None:
        strings = function.strings
        self.table = () if strings is None else strings.table
        self.names = () if strings is None else strings.names
        self.results = function.result_names
        self._known = number_of(self.table)
        self._others: dict[str, int] = {}

    def taken(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Inputs by name, with strings replaced by their numbers."""
        return {
            name: to_numbers(name, self._known, array, self._others)
            if name in self.names
            else array
            for name, array in inputs.items()
        }

    def given(self, results: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Results by name, with numbers replaced by their strings."""
        return {
            name: to_strings(self.table, array, self._others) if name in self.names else array
            for name, array in zip(self.results, results, strict=True)
        }
