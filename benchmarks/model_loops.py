"""How near the inner loops of the reference models come to a core's peak, by llvm-mca.

    python benchmarks/model_loops.py                        # the tables
    python benchmarks/model_loops.py --write                # ... into docs/internals/model-loops.md
    python benchmarks/model_loops.py squeezenet_rw --mca llvm-mca-19 --target aarch64-generic

For each executable that takes at least 2 % of a model's instructions under QEMU, the loop with most
multiply-adds of floats is cut out of its assembly and simulated, as inner_loops.py does for
integers. The peak is what as many multiply-adds by themselves, without dependencies, take on the
same core. Owns no kernel and no bound.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aot.analysis.stages import heaviest
from aot.backends.cpu.compile import emit_assembly
from aot.driver.pipeline import prepared
from aot.ir.graph import Function
from aot.kernels.lowering import lower
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets
from aot.target.model import Target
from benchmarks import llvm_mca
from benchmarks.qemu_instructions import count_model
from tests.support import models

PAGE = ROOT / "docs" / "internals" / "model-loops.md"
MODELS = (
    "squeezenet_rw",
    "shufflenet_rw",
    "yolov8n_320",
    "ppocr_det",
    "ppocr_rec",
    "ppocr_cls",
    "pplcnet_orient",
    "oww_embed",
    "oww_mel",
    "silero_vad_16k",
    "magika",
)
FEWER = ("squeezenet_rw", "shufflenet_rw", "pplcnet_orient", "magika")  # elsewhere than on AArch64
SHARE = 0.02
LEAST_PRODUCTS = 4  # of a loop that multiplies
_PRODUCTS = {
    "aarch64": re.compile(r"^\s*(fmla)\s"),
    "arm": re.compile(r"^\s*(vmla\.f32|vfma\.f32)\s+q"),
    "riscv64": re.compile(r"^\s*(vfmacc\.v[fv]|vfmadd\.v[fv])\s"),
}
# what llvm-mca has a model of, and the core that it stands for where that has none of its own
_CORES = {
    "aarch64-generic": {
        "cortex-a53": "cortex-a53",
        "cortex-a55": "cortex-a55",
        "neoverse-n1": "cortex-a76",
        "neoverse-v2": "cortex-x2",
        "apple-m1": "apple-m1",
    },
    "armv7-neon": {"cortex-a9": "cortex-a9", "cortex-a57": "cortex-a57"},
    "riscv64-v": {"sifive-p670": "sifive-p670"},
}
_ATTRIBUTES = {"arm": "+neon,+vfp4", "riscv64": "+v"}
_TRIPLES = {"arm": "armv7", "aarch64": "aarch64", "riscv64": "riscv64"}


@dataclass(frozen=True)
class Loop:
    """The inner loop of an executable.

    Attributes:
        share: of the model's instructions that the executable takes.
        node: of the model, at its heart.
        schedule: what it runs by.
        instructions, products: of a turn, and how many of them multiply and add.
        of_peak: core -> how much of its peak.
    """

    model: str
    share: float
    node: str
    schedule: str
    instructions: int
    products: int
    of_peak: dict[str, float]


def independent(number: int, arch: str) -> list[str]:
    """So many multiply-adds, each on a register of its own as far as there are any."""
    if arch == "aarch64":
        return [f"\tfmla\tv{n % 28}.4s, v30.4s, v31.s[0]" for n in range(number)]
    if arch == "arm":
        sums = (0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12)
        return [f"\tvmla.f32\tq{sums[n % len(sums)]}, q13, d14[0]" for n in range(number)]
    return [f"\tvfmacc.vf\tv{n % 28}, ft0, v30" for n in range(number)]


def _in_lanes(lines: Sequence[str], arch: str) -> list[str]:
    """Instructions of which llvm-mca knows how long vectors are."""
    if arch != "riscv64" or any("vset" in line for line in lines):
        return list(lines)
    return ["\tvsetivli\tzero, 4, e32, m1, ta, ma", *lines]


def cycles_of(mca: str, lines: Sequence[str], arch: str, core: str) -> float:
    """Cycles of a turn.

    Raises:
        RuntimeError: llvm-mca does not know the core or an instruction.
    """
    options = []
    if arch == "arm":  # loads of several registers have no fixed class
        options.append("-skip-unsupported-instructions=lack-sched")
    if arch in _ATTRIBUTES:
        options.append(f"-mattr={_ATTRIBUTES[arch]}")
    return llvm_mca.cycles_of(mca, _in_lanes(lines, arch), _TRIPLES[arch], core, options)


def executables_of(model: str, options: CompileOptions, target: Target) -> dict[str, Function]:
    """The executables of a model, by name."""
    module, left = prepared(models.model_path(model), options)
    run_passes(module, (*MODEL_PASSES, *TARGET_PASSES), PassContext(left, target))
    return {f.name: f for f in module.executables}


def loops_of(mca: str, model: str, name: str) -> Iterator[Loop]:
    """The inner loops of a model on a target, those of most instructions first."""
    target = targets.load(name)
    inputs = models.feeds(model)
    shapes = {key: array.shape for key, array in inputs.items()}
    options = CompileOptions(targets=(name,), input_shapes=shapes)
    counts = count_model(models.model_path(model), options, inputs)
    total: dict[str, int] = {}
    nodes: dict[str, str] = {}
    for row in counts.rows:
        total[row.executable] = total.get(row.executable, 0) + row.instructions
        nodes.setdefault(row.executable, row.node)
    executables = executables_of(model, options, target)
    product = _PRODUCTS[target.arch]
    for executable, instructions in sorted(total.items(), key=lambda item: -item[1]):
        share = instructions / counts.instructions
        if share < SHARE or executable not in executables:
            continue
        function = executables[executable]
        loop = llvm_mca.inner_loop(emit_assembly(lower(function, target), target), product)
        number = llvm_mca.count(loop, product)
        if number < LEAST_PRODUCTS:
            continue
        found = {}
        for core in _CORES[name]:
            peak = cycles_of(mca, independent(number, target.arch), target.arch, core)
            found[core] = peak / cycles_of(mca, loop, target.arch, core)
        schedule = function.schedule[0] if function.schedule else None
        tile = (
            ""
            if schedule is None
            else f"{schedule.schedule.value} {schedule.rows}x{schedule.columns}"
        )
        node = nodes[executable] or heaviest(list(function.block)).name
        yield Loop(model, share, node, tile, len(loop), number, found)


def table(name: str, found: Sequence[Loop]) -> str:
    """A target's loops as Markdown."""
    cores = _CORES[name]
    heads = [stood if stood == core else f"{stood} ({core})" for core, stood in cores.items()]
    lines = [
        "| model | of its instructions | first node | kernel | instructions | multiply-adds | "
        + " | ".join(heads)
        + " |",
        "|---" * (6 + len(cores)) + "|",
    ]
    for loop in found:
        shares = " | ".join(f"{100 * loop.of_peak[core]:.0f} %" for core in cores)
        lines.append(
            f"| {loop.model} | {100 * loop.share:.0f} % | `{loop.node}` | {loop.schedule} "
            f"| {loop.instructions} | {loop.products} | {shares} |"
        )
    return "\n".join(lines)


def summary(name: str, found: Sequence[Loop]) -> str:
    """How many of a target's loops come how near to each core's peak."""
    parts = []
    for core, stood in _CORES[name].items():
        shares = [loop.of_peak[core] for loop in found]
        weights = [loop.share for loop in found]
        mean = sum(s * w for s, w in zip(shares, weights, strict=True)) / max(sum(weights), 1e-9)
        good = sum(s >= 0.85 for s in shares)
        fair = sum(s >= 0.7 for s in shares)
        parts.append(
            f"| {stood} | {good} of {len(found)} | {fair} of {len(found)} | {100 * mean:.0f} % |"
        )
    return "\n".join(
        [
            "| core | loops at 85 % or more | at 70 % or more | mean, by instructions |",
            "|---|---|---|---|",
            *parts,
        ]
    )


def page(parts: Sequence[str], version: str) -> str:
    """The page around the tables."""
    return (
        "# Inner loops of the reference models\n\n"
        "A turn of one loop of each kernel that takes 2 % or more of a model's instructions, as "
        f"`llvm-mca` simulates it ({version}):\nits instructions, how many of them multiply and "
        "add vectors of floats, and how much of a core's peak that is, which is what the\n"
        "multiply-adds by themselves would take. The loop is the one with most of them: of "
        "Winograd's algorithm with narrow tiles that is the\ntransform of filters, of elementwise "
        "kernels a polynomial. Loads are taken to hit the nearest cache. Kernels without such "
        "products are left\nout. `python benchmarks/model_loops.py --write` writes this page.\n\n"
        "Where a core has no model of its own, the one in brackets stands for it; llvm-mca has "
        "none of cortex-a7, nor of cortex-a53 in 32 bits.\nIts model of cortex-a55 multiplies two "
        "vectors of 16 bytes in a cycle, which is more than its maker says. In-order cores wait\n"
        "for what tiles load just before they need it, because most registers hold sums.\n\n"
        + "\n\n".join(parts)
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="default: those of the page")
    parser.add_argument(
        "--mca", default="llvm-mca", help="the llvm-mca to run; 17 and later know these cores"
    )
    parser.add_argument("--target", action="append", choices=list(_CORES), help="default: all")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    parts = []
    for name in options.target or list(_CORES):
        chosen = options.models or (MODELS if name == "aarch64-generic" else FEWER)
        found = [loop for model in chosen for loop in loops_of(options.mca, model, name)]
        parts.append(f"## {name}\n\n{summary(name, found)}\n\n{table(name, found)}")
        print(parts[-1], flush=True)
    if options.write:
        PAGE.write_text(page(parts, llvm_mca.version_of(options.mca)), encoding="utf-8")


if __name__ == "__main__":
    main()
