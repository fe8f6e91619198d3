"""The notebook runs from its first cell to its last, and what it stores has no outputs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


@pytest.mark.slow
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `assert` of a cell that fails is an error of the notebook."""
    pytest.importorskip("torch")
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    spec = tmp_path / "share" / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = {"argv": command, "display_name": "Python 3", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(kernel))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute(cwd=tmp_path)
    results = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert "text/html" in results[1][-1].data  # what was compiled shows itself
    (folder,) = (Path(tmp_path, name) for name in os.listdir(tmp_path) if name.startswith("tmp"))
    assert (folder / "network.html").stat().st_size > 10_000
    assert (folder / "package" / "CMakeLists.txt").exists()


def test_no_outputs_are_stored() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(c["outputs"] == [] and c["execution_count"] is None for c in code)
