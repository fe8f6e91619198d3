"""A loop cut out of assembly, and the cycles that llvm-mca says a turn of it takes.

What inner_loops.py and model_loops.py share; neither kernels nor cores are chosen here.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

TURNS = 200


def inner_loop(assembly: str, product: re.Pattern[str]) -> list[str]:
    """The instructions of the loop with most products, its branch back included."""
    best: list[str] = []
    blocks = re.split(r"^(\.LBB\w+):.*$", assembly, flags=re.MULTILINE)
    for label, text in zip(blocks[1::2], blocks[2::2], strict=True):
        lines = [line for line in text.splitlines() if re.match(r"\s+[a-z{]", line)]
        ends = [n for n, line in enumerate(lines) if re.search(rf"\s{re.escape(label)}$", line)]
        loop = lines[: ends[0] + 1] if ends else []
        if count(loop, product) > count(best, product):
            best = loop
    return best


def count(lines: Sequence[str], product: re.Pattern[str]) -> int:
    """How many of the instructions are products."""
    return sum(product.match(line) is not None for line in lines)


def cycles_of(
    mca: str, lines: Sequence[str], triple: str, core: str, options: Sequence[str]
) -> float:
    """Cycles of a turn.

    Raises:
        RuntimeError: llvm-mca does not know the core or an instruction.
    """
    command = [mca, f"-mtriple={triple}", f"-mcpu={core}", f"-iterations={TURNS}", *options]
    command += ["-instruction-info=0", "-resource-pressure=0"]
    text = "\n".join(lines) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if done.returncode or found is None:
        raise RuntimeError(f"{mca} on {core}: {done.stderr.strip().splitlines()[:1]}")
    return int(found.group(1)) / TURNS


def version_of(mca: str) -> str:
    """As it says it, or its name where it does not."""
    said = subprocess.run([mca, "--version"], capture_output=True, text=True, check=True)
    version = re.search(r"LLVM version \S+", said.stdout)
    return version.group() if version else mca
