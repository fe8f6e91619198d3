"""The page about the C interface names each call of the headers, and no other."""

from __future__ import annotations

import re

from tests.support.header_calls import INCLUDE, declarations
from tests.support.paths import ROOT

HEADERS = ("aot.h", "async.h", "contents.h", "cores.h", "state.h", "strides.h", "vulkan_buffers.h")


def test_the_page_has_each_call() -> None:
    text = (ROOT / "docs" / "internals" / "c-interface.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `aot_")]
    named = [name for row in rows for name in re.findall(r"`(aot_\w+)`", row.split(" | ")[0])]
    declared = [d.name for h in HEADERS for d in declarations((INCLUDE / h).read_text())]
    assert sorted(named) == sorted(declared)
