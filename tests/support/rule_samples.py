"""An executable for each rule of aot/kernels/rules/table.py, which that rule builds.

A sample is a text of operands, ops and a result; its schedule is the plan's. `{T}` are the strides,
dilations and pads of a 3x3 window, `{P}` those of a 1x1 one, `{L}` a layout with channels last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.executables import Ops

CPUS = ("x86-64-v3", "aarch64-generic")
X86, V4, VNNI = ("x86-64-v3",), ("x86-64-v4",), ("x86-64-v4-vnni",)
GPU, MATRICES = ("vulkan-1.1",), ("nvidia-matrix",)
ALL = (*CPUS, *GPU)

_NAMES = {
    "L": "{order=0:2:3:1}",
    "T": "strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1]",
    "P": "strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0]",
}


@dataclass(frozen=True, kw_only=True)
class RuleSample(Ops):
    """Attributes:
    rule: the name of the rule that builds it.
    targets: for which the rule builds it.
    alignment: what its buffers' offsets are multiples of.
    """

    rule: str
    targets: tuple[str, ...] = CPUS
    alignment: int = 1

    def text(self) -> str:
        made = super().text()
        for name, value in _NAMES.items():
            made = made.replace(f"{{{name}}}", value)
        return made

    @property
    def tolerance(self) -> float:
        rounds = self.rule == "products/winograd"  # its transforms do
        return 2e-2 if self.result.startswith("f16") else 1e-3 if rounds else 1e-5

    def __str__(self) -> str:
        return self.rule


def _one(
    rule: str, x: str, op: str, y: str, targets: tuple[str, ...] = CPUS, *others: str, **more: Any
) -> RuleSample:
    *before, last = op.split("; ")
    given = (x, *others)
    return RuleSample(given, (*before, last), y, rule=rule, targets=targets, **more)


def _conv(
    rule: str, x: str, w: str, y: str, how: str, targets: tuple[str, ...] = CPUS
) -> RuleSample:
    return _one(rule, x, f"conv(%0, %1) {{ {how} }}", y, targets, w)


def _bytes(rule: str, x: str, w: str, y: str, how: str) -> RuleSample:
    op = f"conv_integer(%0, %1) {{ {how}, pad_value = 128 }}"
    return _one(rule, f"u8{x}", op, f"i32{y}", VNNI, f"i8{w}")


_SAME_POOL = "kernel = [3, 3], {T}"
_FOUR_BITS = "block = 32, bits = 4, zero_point = 8"
_LAYER_NORM = "layer_norm(%0) { axis = 1, epsilon = 1e-5 }"

SAMPLES = (
    _conv(
        "products/winograd",
        *("f32[1, 32, 12, 12]{L}", "f32[32, 32, 3, 3]{splits=0/16 order=0:2:3:1:4}"),
        *("f32[1, 32, 12, 12]{L}", '{T}, algorithm = "winograd"', X86),
    ),
    _one(
        *("products/transform", "f32[1, 4, 12, 12]"),
        *("winograd_inputs(%0) { outputs = 2, pads = [1, 1, 1, 1] }", "f32[16, 36, 4]", GPU),
    ),
    _conv(
        "windows/grouped_planes",
        *("f32[1, 16, 20, 20]", "f32[16, 4, 3, 3]{order=2:3:1:0}"),
        *("f32[1, 16, 20, 20]", "{T}, group = 4"),
    ),
    _conv(
        "products/planes",
        *("f32[1, 4, 8, 16]", "f32[8, 4, 1, 1]{splits=0/16 order=0:2:3:1:4}"),
        *("f32[1, 8, 8, 16]", "{P}"),
    ),
    _conv(
        "windows/tap_sums",
        *("f32[1, 32, 33, 33]", "f32[1, 32, 3, 3]{order=0:2:3:1}", "f32[1, 1, 33, 33]"),
        *("{T}", X86),
    ),
    _one(
        *("products/inner", "f32[33, 132]", "matmul(%0, %1)", "f32[33, 2]", CPUS),
        "f32[132, 2]{order=1:0}",
    ),
    _conv(
        "windows/grouped",
        *("f32[1, 64, 9, 9]{L}", "f32[64, 4, 3, 3]{order=2:3:1:0}", "f32[1, 64, 9, 9]{L}"),
        *("{T}, group = 16", X86),
    ),
    _one(
        *("products/turned_columns", "f32[1, 40, 64]", "matmul(%0, %1)", "f32[1, 40, 48]", X86),
        "f32[1, 64, 48]{order=0:2:1}",
    ),
    _bytes(
        "windows/byte_groups",
        *("[1, 64, 9, 9]{L}", "[64, 8, 3, 3]{splits=1/4 order=2:3:1:0:4}", "[1, 64, 9, 9]{L}"),
        "{T}, group = 8",
    ),
    _bytes(
        "products/byte_planes",
        *("[1, 4, 12, 12]", "[32, 4, 1, 1]{splits=0/16:1/4 order=0:2:3:1:4:5}"),
        *("[1, 32, 12, 12]{L}", "{P}"),
    ),
    _one(
        *("elementwise/padded_transposes", "f32[1, 24, 9, 37]"),
        *("pad(%0) { pads = [0, 0, 1, 1, 0, 0, 2, 1] }", "f32[1, 24, 12, 39]{L}"),
    ),
    _one(
        *("elementwise/segments", "f32[3, 30]", "pad(%0) { pads = [0, 1, 0, 1] }", "f32[3, 32]"),
    ),
    _one(
        *("elementwise/words", "u8[4, 16, 12]{order=0:2:1}"),
        *("pack(%0) { layout = {splits=1/4 order=0:1:2:3} }",),
        *("u8[4, 16, 12]{splits=1/4 order=0:1:2:3}", X86),
    ),
    _one(
        "elementwise/transposes",
        *("f32[33, 24]", "transpose(%0) { perm = [1, 0] }", "f32[24, 33]"),
    ),
    _one(
        *("windows/picked", "f32[1, 2, 33, 33]"),
        "%x = gather(%0, %1) { axis = 3 } : f32[1, 2, 33, 56]; gather(%x, %1) { axis = 2 }",
        *("f32[1, 2, 56, 56]", V4, "i64[56]"),
    ),
    _one(
        *("reductions/gathered", "f32[9, 40]", "gather(%0, %1) { axis = 1 }", "f32[9, 50]", CPUS),
        "i64[50]",
    ),
    _one(
        *("elementwise/neighbours", "f32[128, 128]", "abs(%0)", "f32[128, 128]", GPU), alignment=16
    ),
    _one("elementwise/lanes", "f32[7, 5]", "abs(%0)", "f32[7, 5]"),
    _one(
        *("windows/resized", "f32[1, 2, 40, 40]"),
        "%x = resample(%0, %1, %2) { axis = 2 } : f32[1, 2, 48, 40]; "
        "resample(%x, %1, %2) { axis = 3 }",
        *("f32[1, 2, 48, 48]", V4, "i64[2, 48]", "f32[2, 48]"),
    ),
    _one(
        "reductions/long_terms", "f32[2, 200000]", "reduce_sum(%0) { axes = [1] }", "f32[2, 1]", GPU
    ),
    _one(
        *("reductions/group_norms", "f32[2, 4, 3, 3, 5]{order=0:3:4:1:2}"),
        *("layer_norm(%0) { axis = 2, epsilon = 1e-5 }", "f32[2, 4, 3, 3, 5]{order=0:3:4:1:2}"),
    ),
    _one("reductions/positions", "f32[9, 40]", "arg_max(%0) { axis = 1 }", "i64[9, 1]"),
    _one("reductions/columns", "f32[33, 130]", "reduce_sum(%0) { axes = [0] }", "f32[1, 130]"),
    _bytes(
        "windows/byte_depthwise",
        *("[1, 64, 9, 9]{L}", "[64, 1, 3, 3]{order=2:3:1:0}", "[1, 64, 9, 9]{L}"),
        "{T}, group = 64",
    ),
    _one(
        *("windows/plane_pools", "f32[1, 2, 20, 20]"),
        *(f"max_pool(%0) {{ {_SAME_POOL} }}", "f32[1, 2, 20, 20]"),
    ),
    _one(
        *("reductions/named_rows", "f32[1, 2, 33, 33]", "resample(%0, %1, %2) { axis = 2 }"),
        *("f32[1, 2, 24, 33]", CPUS, "i64[2, 24]", "f32[2, 24]"),
    ),
    _conv(
        "windows/plane_windows",
        *("f32[1, 4, 20, 20]", "f32[4, 1, 5, 5]", "f32[1, 4, 16, 16]", "{P}, group = 4"),
    ),
    _one(
        *("windows/pools", "f32[1, 64, 12, 12]{L}"),
        *(f"max_pool(%0) {{ {_SAME_POOL} }}", "f32[1, 64, 12, 12]{L}"),
    ),
    _conv(
        "windows/packed",
        *("f32[1, 32, 16, 15]{L}", "f32[32, 1, 9, 9]{order=2:3:1:0}", "f32[1, 32, 8, 7]{L}"),
        "{P}, group = 32",
    ),
    _conv(
        "windows/windows",
        *("f32[1, 32, 6, 6]{L}", "f32[32, 1, 3, 3]{order=2:3:1:0}", "f32[1, 32, 6, 6]{L}"),
        "{T}, group = 32",
    ),
    _one(
        *("reductions/tables", "f32[1, 2, 9, 9]", "grid_sample(%0, %1)", "f32[1, 2, 9, 9]", CPUS),
        "f32[1, 9, 9, 2]",
    ),
    _one(
        *("windows/members", "f32[1, 2, 2, 1, 2, 2, 3, 2]"),
        "col2im(%0) { image = [4, 3, 4], strides = [2, 1, 2], dilations = [1, 1, 1], "
        "begins = [0, 0, 0] }",
        "f32[1, 2, 4, 3, 4]",
    ),
    _one(
        *("windows/padded", "f32[1, 2, 31]"),
        "max_pool(%0) { kernel = [3], strides = [1], dilations = [2], pads = [2, 1] }",
        "f32[1, 2, 30]",
    ),
    _conv(
        "windows/by_planes",
        *("f32[1, 4, 20, 20]", "f32[4, 1, 5, 5]", "f32[1, 4, 16, 16]{L}", "{P}, group = 4"),
    ),
    _one("reductions/few_results", "f32[4, 2000]", "softmax(%0) { axis = 1 }", "f32[4, 2000]", GPU),
    _one("reductions/results", "f32[33, 40]", "softmax(%0) { axis = 0 }", "f32[33, 40]"),
    _one("reductions/row_blocks", "f32[40, 20]", _LAYER_NORM, "f32[40, 20]"),
    _one("reductions/narrow_rows", "f32[40, 2]", "reduce_max(%0) { axes = [1] }", "f32[40, 1]"),
    _one("reductions/terms", "f32[1, 1000]", "softmax(%0) { axis = 1 }", "f32[1, 1000]"),
    _one(
        *("products/blocked", "f32[1, 64]"),
        f"matmul_blocked(%0, %1, %2, _, _, _, _) {{ columns = 40, depth = 64, {_FOUR_BITS} }}",
        *("f32[1, 40]", CPUS, "u32[3, 8, 16]", "f32[3, 2, 16]"),
    ),
    _one(
        *("products/blocked_dots", "i8[2, 9, 96]"),
        f"matmul_blocked(%0, %1, %2, _, %3, _, _) {{ columns = 48, depth = 96, {_FOUR_BITS} }}",
        *("f32[2, 9, 48]", CPUS, "u32[3, 12, 16]", "f32[3, 3, 16]", "f32[2, 9, 3]"),
    ),
    _one(
        *("products/matrices", "f16[256, 64]", "matmul(%0, %1)", "f16[256, 256]", MATRICES),
        "f16[64, 256]{splits=1/16 order=1:0:2}",
    ),
    _one(
        *("products/staged", "f32[128, 256]", "matmul(%0, %1)", "f32[128, 256]", MATRICES),
        "f32[256, 256]{splits=1/16 order=1:0:2}",
    ),
    _one(
        *("elementwise/groups", "f32[19, 6]", "pack(%0) { layout = {splits=0/16 order=0:1:2} }"),
        "f32[19, 6]{splits=0/16 order=0:1:2}",
    ),
    _one("lines/scan", "f32[5, 40]", 'scan(%0) { axis = 1, combine = "sum" }', "f32[5, 40]", ALL),
    _one(
        *("lines/scatter", "f32[9, 4]", "scatter_elements(%0, %1, %2) { axis = 0 }", "f32[9, 4]"),
        *(ALL, "i64[3, 4]", "f32[3, 4]"),
    ),
    _conv(
        "products/tiles",
        *("f32[1, 8, 6, 6]{L}", "f32[16, 8, 1, 1]{splits=0/16 order=0:2:3:1:4}"),
        *("f32[1, 16, 6, 6]{L}", "{P}", ALL),
    ),
)
