"""How near the inner loops of integer products come to a core's peak, by llvm-mca.

    python benchmarks/inner_loops.py                        # the table
    python benchmarks/inner_loops.py --write                # ... into docs/internals/inner-loops.md
    python benchmarks/inner_loops.py --mca llvm-mca-19 --target aarch64-linux-dotprod

For each target, kernels of convolutions and matrix products that no reference model has: the loop
with most dot products is cut out of the assembly and simulated, 200 turns. The peak is what as many
of its dot products by themselves, without dependencies, take on the same core. llvm-mca knows
pipelines and latencies, and takes every load to hit the nearest cache. Cores whose own model is
another core's are simulated as their server sibling, which has a model: `neoverse-n1` is
cortex-a76's, `neoverse-v2` stands for cortex-x2.
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

from aot.analysis.cost.plan import plan, weight_layouts
from aot.backends.cpu.compile import emit_assembly
from aot.ir.record import REGISTRY, Sample, call_of
from aot.ir.types import DType, Layout, TensorType
from aot.kernels.lowering import lower
from aot.target import selection as targets
from aot.target.model import Target
from benchmarks import llvm_mca
from tests.support.half_regions import executable, half_function

PAGE = ROOT / "docs" / "internals" / "inner-loops.md"
CHANNELS_LAST = Layout(order=(0, 2, 3, 1))
# the instructions that multiply
_PRODUCTS = re.compile(r"^\s*(?:\{vex\}\s+)?(sdot|sudot|usdot|udot|u?s?mmla|vpdpbusd|vpmaddwd)\s")
_CORES = {
    "aarch64-linux-dotprod": ("cortex-a55", "neoverse-n1", "neoverse-v2"),
    "aarch64-linux-i8mm": ("neoverse-v2",),
    "x86-64-v3": ("znver4", "skylake"),
    "x86-64-v3-vnni": ("alderlake",),
    "x86-64-v4-vnni": ("znver4", "sapphirerapids"),
}
_NAMES = {"neoverse-n1": "cortex-a76 (neoverse-n1)", "neoverse-v2": "cortex-x2 (neoverse-v2)"}


def conv(channels: int, filters: int, kernel: int, image: int) -> tuple[str, Sample]:
    """A convolution of u8 or i8, whichever the target multiplies, by i8."""
    types = (
        TensorType(DType.U8, (1, channels, image, image), CHANNELS_LAST),
        TensorType(DType.I8, (filters, channels, kernel, kernel)),
        TensorType(DType.I32, (filters,)),
    )
    pads = (kernel // 2,) * 4
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": pads, "group": 1, "pad_value": 0}
    return "conv_integer", Sample(types, attrs)


def matmul(rows: int, depth: int, columns: int) -> tuple[str, Sample]:
    types = TensorType(DType.U8, (rows, depth)), TensorType(DType.I8, (depth, columns))
    return "matmul_integer", Sample(types)


CASES = {
    "conv 1x1, 200 to 112, 23x23": conv(200, 112, 1, 23),
    "conv 3x3, 72 to 144, 19x19": conv(72, 144, 3, 19),
    "matmul 77 x 320 x 208": matmul(77, 320, 208),
}


@dataclass(frozen=True)
class Row:
    """An inner loop on a core.

    Attributes:
        tile: rows and columns.
        instructions, products: of a turn, and how many of them multiply.
        cycles: of a turn.
        peak: cycles of a turn's products alone.
    """

    case: str
    target: str
    core: str
    tile: tuple[int, int]
    instructions: int
    products: int
    cycles: float
    peak: float


def kernel_assembly(case: str, target: Target) -> tuple[str, tuple[int, int]]:
    """The assembly of a case's kernel, and its tile."""
    name, sample = CASES[case]
    record = REGISTRY[name]
    types = list(sample.operands)
    if not target.sums_bytes(DType.U8, DType.I8) and target.sums_bytes(DType.I8, DType.I8):
        first = types[0]
        assert first is not None
        types[0] = TensorType(DType.I8, first.dims, first.layout)
    plain = half_function(record, Sample(tuple(types), sample.attrs), is_half=False)
    (call,) = [call_of(op) for op in plain.walk() if op.record is record]
    for number, layout in weight_layouts(call, target).items():
        type_ = types[number]
        assert type_ is not None
        types[number] = TensorType(type_.dtype, type_.dims, layout)
    packed = half_function(record, Sample(tuple(types), sample.attrs), is_half=False)
    made = plan(call, target)
    return emit_assembly(lower(executable(packed), target), target), (made.rows, made.columns)


def independent(loop: Sequence[str], arch: str) -> list[str]:
    """As many products as a loop has, each on a register of its own."""
    name = next(m.group(1) for m in map(_PRODUCTS.match, loop) if m is not None)
    number = llvm_mca.count(loop, _PRODUCTS)
    if arch == "aarch64":
        last = "v31.16b" if name.endswith("mmla") else "v31.4b[0]"
        return [f"\t{name}\tv{n % 28}.4s, v30.16b, {last}" for n in range(number)]
    width = "zmm" if any("zmm" in line for line in loop) else "ymm"
    vex = "{vex} " if name == "vpdpbusd" and width == "ymm" else ""
    return [f"\t{vex}{name}\t%{width}15, %{width}14, %{width}{n % 14}" for n in range(number)]


def cycles_of(mca: str, lines: Sequence[str], target: Target, core: str) -> float:
    """Cycles of a turn.

    Raises:
        RuntimeError: llvm-mca does not know the core or an instruction.
    """
    features = {"aarch64": "+dotprod,+i8mm,+fullfp16"}.get(target.arch, "+avxvnni")
    triple = {"x86_64": "x86_64-linux-gnu"}.get(target.arch, target.arch)
    return llvm_mca.cycles_of(mca, lines, triple, core, [f"-mattr={features}"])


def rows(mca: str, names: Sequence[str]) -> Iterator[Row]:
    for name in names:
        target = targets.load(name)
        for case in CASES:
            assembly, tile = kernel_assembly(case, target)
            loop = llvm_mca.inner_loop(assembly, _PRODUCTS)
            for core in _CORES[name]:
                cycles = cycles_of(mca, loop, target, core)
                peak = cycles_of(mca, independent(loop, target.arch), target, core)
                count = llvm_mca.count(loop, _PRODUCTS)
                yield Row(case, name, core, tile, len(loop), count, cycles, peak)


def table(found: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| target | core | kernel | tile | instructions | products | cycles | of the peak |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        core = _NAMES.get(row.core, row.core)
        tile = f"{row.tile[0]}x{row.tile[1]}"
        lines.append(
            f"| `{row.target}` | {core} | {row.case} | {tile} | {row.instructions} "
            f"| {row.products} | {row.cycles:.1f} | {100 * row.peak / row.cycles:.0f} % |"
        )
    return "\n".join(lines)


def page(text: str, version: str) -> str:
    """The page around a table."""
    return (
        "# Inner loops of integer products\n\n"
        f"A turn of the innermost loop of each kernel as `llvm-mca` simulates it ({version}): its "
        "instructions, how many of them multiply, the\ncycles that it takes, and what share of "
        "these the multiplications alone would take on that core. Loads are taken to hit the\n"
        "nearest cache. `python benchmarks/inner_loops.py --write` writes this page; the script "
        "says which core stands for which.\n\n"
        f"{text}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--mca", default="llvm-mca", help="the llvm-mca to run; 17 and later know these cores"
    )
    parser.add_argument("--target", action="append", choices=list(_CORES), help="default: all")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    found = list(rows(options.mca, options.target or list(_CORES)))
    text = table(found)
    print(text)
    if options.write:
        PAGE.write_text(page(text, llvm_mca.version_of(options.mca)), encoding="utf-8")


if __name__ == "__main__":
    main()
