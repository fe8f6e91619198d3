"""The trimmed Vulkan header: current, and laid out as the registry's own declarations are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runtime_build import RUNTIME, WARNINGS, build

HEADER = RUNTIME / "drivers" / "vulkan" / "vulkan_api.h"

pytestmark = pytest.mark.vulkan


def structs() -> list[str]:
    """The structs that the header defines."""
    return re.findall(r"^struct (Vk\w+) \{", HEADER.read_text(), re.MULTILINE)


def test_is_current() -> None:
    pytest.importorskip("vulkan")
    script = RUNTIME / "generate_vulkan_header.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_layouts_are_the_registry_s(tmp_path: Path) -> None:
    ffi = pytest.importorskip("vulkan").ffi
    names = structs()
    assert len(names) > 40
    fields = {
        n: re.search(rf"struct {n} \{{(.*?)\n\}};", HEADER.read_text(), re.DOTALL) for n in names
    }
    lines = []
    wanted = {}
    for name in names:
        found = fields[name]
        assert found is not None
        wanted[name] = ffi.sizeof(name)
        lines.append(f'(void)printf("{name} %zu\\n", sizeof({name}));')
        for member in re.findall(r"(\w+)(?:\[\w+\])?;", found.group(1)):
            wanted[f"{name}.{member}"] = ffi.offsetof(name, member)
            lines.append(f'(void)printf("{name}.{member} %zu\\n", offsetof({name}, {member}));')
    source = tmp_path / "layouts.c"
    body = "\n  ".join(lines)
    source.write_text(
        f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n  {body}\n  return 0;\n}}\n'
    )
    assert "-Wpedantic" in WARNINGS
    program = build("layouts", [source], [])
    if program is None:
        pytest.skip("gcc is not installed")
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    printed = dict(line.split() for line in done.stdout.splitlines())
    assert {name: int(size) for name, size in printed.items()} == wanted
