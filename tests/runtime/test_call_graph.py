"""The runtime's C files call each other in no circle, and a header declares what its own file
defines, or names the file that does."""

from __future__ import annotations

import re
import shutil
import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.runtime_build import RUNTIME

# All but the packages' main files, of which each build takes its own.
FOLDERS = ("src", "drivers/cpu", "drivers/vulkan", "cores", "extras", "state", "text", "tools")
FLAGS = ("-std=c11", "-O0", "-c", "-DAOT_TEXT=1", "-DAOT_STATE=1", "-DAOT_VULKAN=1")

Symbols = dict[str, tuple[set[str], set[str]]]  # defined, and needed of others


@pytest.fixture(scope="module")
def symbols(tmp_path_factory: pytest.TempPathFactory) -> Symbols:
    """The symbols that each C file defines, and those that it needs of others."""
    compiler, nm = shutil.which("gcc"), shutil.which("nm")
    if compiler is None or nm is None:
        pytest.skip("gcc or nm is not installed")
    found = {}
    for folder in FOLDERS:
        objects = tmp_path_factory.mktemp("objects")
        sources = sorted((RUNTIME / folder).glob("*.c"))
        includes = [f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}"]
        subprocess.run([compiler, *FLAGS, *includes, *map(str, sources)], cwd=objects, check=True)
        for source in sources:
            path = objects / f"{source.stem}.o"
            result = subprocess.run([nm, path], capture_output=True, text=True, check=True)
            lines = [line.split()[-2:] for line in result.stdout.splitlines()]
            defined = {name for kind, name in lines if kind.isupper() and kind != "U"}
            needed = {name for kind, name in lines if kind == "U"}
            found[str(source.relative_to(RUNTIME))] = (defined, needed)
    return found


def calls(symbols: Symbols) -> dict[str, set[str]]:
    """The other files whose symbols each file needs."""
    owners = {name: file for file, (defined, _) in symbols.items() for name in defined}
    return {
        file: {owners[name] for name in needed if name in owners}
        for file, (_, needed) in symbols.items()
    }


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The files of a circle, in the order of their calls; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_c_files_call_in_no_circle(symbols: Symbols) -> None:
    graph = calls(symbols)
    assert "src/status.c" in graph["src/module.c"]
    assert len(graph) > 50
    assert circle(graph) == []


def test_a_circle_is_found(symbols: Symbols) -> None:
    graph = calls(symbols)
    graph["src/status.c"].add("src/module.c")
    assert {"src/status.c", "src/module.c"} <= set(circle(graph))


def test_a_header_declares_what_its_file_defines(symbols: Symbols) -> None:
    owners = {name: file for file, (defined, _) in symbols.items() for name in defined}
    elsewhere = []
    for file in symbols:
        header = RUNTIME / Path(file).with_suffix(".h")
        if not header.exists():
            continue
        text = header.read_text()
        code = re.sub(r"//.*|\{[^{}]*\}", "", text)
        for name in re.findall(r"^\w[^;{}=]*?\b(\w+)\(", code, re.MULTILINE):
            owner = owners.get(name, file)
            if owner != file and f"// {Path(owner).name}: " not in text:
                elsewhere.append((file, name, owner))
    assert elsewhere == []
