"""Reads files of torch.export.save as data only: nothing in them is unpickled, evaluated or run.

`entries.py` reads the zip archive, `fields.py` its JSON, `payloads.py` the tensors,
`expressions.py` and `sizes.py` the symbolic sizes, `targets.py` the names of ops and `trees.py` the
nesting of arguments and results; `graphs.py` builds the graph and `programs.py` the
torch.export.ExportedProgram. The layout of the JSON is that of `torch._export.serde.schema`. Never
calls torch.export.load or sympy's parser, and gives torch no name that is not checked: torch writes
Python code with the names of a graph.
"""

from __future__ import annotations

from aot.frontends.torch.archive.programs import read_program

__all__ = ["read_program"]
