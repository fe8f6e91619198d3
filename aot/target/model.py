"""A target as a typed record: the properties of a device that the compiler may use.

Knows nothing of graphs or kernels; a plan, a pass or a backend reads numbers here and never asks
the machine that compiles.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from aot.base.records import dataclass
from aot.ir.types import DType

# bytes of a cache line
CACHE_LINE = 64
# how far apart lines of memory lie of which a first cache keeps few, and how many of them
WAY_BYTES, CACHE_WAYS = 4096, 8
# LLVM's names of features with conversions of f16, for architectures whose baseline has none
_HALF_FEATURES = ("f16c", "fp16", "vfp4", "vfp4d16sp", "zfhmin", "zfh")


@dataclass(frozen=True)
class MatrixShape:
    """A matrix product with accumulation that the lanes of a subgroup compute together.

    Attributes:
        rows, columns: of the sums.
        terms: of each sum.
        left, right: the types of what is multiplied.
        sums: the type of the sums.
    """

    rows: int
    columns: int
    terms: int
    left: DType
    right: DType
    sums: DType

    def __str__(self) -> str:
        size = f"{self.rows}x{self.columns}x{self.terms}"
        return f"{size} {self.left}*{self.right}+{self.sums}"

    @staticmethod
    def parse(text: str) -> MatrixShape | None:
        """The shape that `text` describes, in the form that `str` gives; None for other texts."""
        found = re.fullmatch(r"(\d+)x(\d+)x(\d+) (\w+)\*(\w+)\+(\w+)", text)
        dtypes = {str(d): d for d in DType}
        if found is None or not set(found.groups()[3:]) <= set(dtypes):
            return None
        rows, columns, terms = (int(n) for n in found.groups()[:3])
        left, right, sums = (dtypes[name] for name in found.groups()[3:])
        shape = MatrixShape(rows, columns, terms, left, right, sums)
        return shape if str(shape) == text and min(rows, columns, terms) > 0 else None


@dataclass(frozen=True)
class GpuGeometry:
    """The execution geometry of a GPU, independent of the API; a device must support it.

    Plans, passes, schedules and the code generators of GPUs read it.

    Attributes:
        lanes: workgroup size that schedules aim at.
        max_workgroup_invocations: lanes of a workgroup, the product of its sizes.
        max_workgroup_size: lanes along x, y and z.
        max_workgroup_count: workgroups along x, y and z.
        max_shared_bytes: WORKGROUP scratch of one workgroup.
        max_lane_iterations: loop iterations that one invocation may make, summed over its loops. No
            API has such a limit and drivers don't report it: llvmpipe silently ends loops after
            65,535 iterations, and a GPU that needs microseconds for each is reset by its watchdog.
            A kernel that needs more runs on the host, or is refused.
        subgroup_operations: operations among the lanes of a subgroup, by Vulkan's names in lower
            case; a device must have those that a kernel uses.
        storage_bits: widths besides 32 in which kernels read and write buffers, of 8 and 16;
            elements of other widths are extracted from words, and stored by atomics on words. A
            device must have those that a kernel uses.
        integer_dot_product: whether an instruction sums the products of four pairs of bytes; a
            device must have it where a kernel uses it.
        busy_lanes: lanes of a dispatch below which the GPU is not busy: several lanes then share a
            sum, so that there are more; 0 where more lanes gain nothing.
        subgroup_lanes: lanes of a subgroup, which a device must have where a kernel multiplies
            matrices; 0 where that is not known.
        matrices: products of matrices that the lanes of a subgroup compute together, best first; a
            device must have those that a kernel uses.
        staged_terms: least number of terms of a contraction's sums that a workgroup stages in
            shared memory at a time, so that memory is read once for a tile instead of once for each
            lane; 0 where shared memory is no faster, and lanes load their operands from memory.
        launch_ns: least duration of a dispatch among others, in nanoseconds.
        block_ns: latency of a load from memory, in nanoseconds.
        products_per_us: f32 multiply-adds per microsecond of a busy device; 0 where its speed is
            not known, so that no algorithm is chosen by cost.
        bytes_per_us: bytes per microsecond between its memory and lanes; 0 if `products_per_us` is.
    """

    lanes: int
    max_workgroup_invocations: int
    max_workgroup_size: tuple[int, int, int]
    max_workgroup_count: tuple[int, int, int]
    max_shared_bytes: int
    max_lane_iterations: int
    subgroup_operations: tuple[str, ...] = ()
    storage_bits: tuple[int, ...] = ()
    integer_dot_product: bool = False
    busy_lanes: int = 0
    subgroup_lanes: int = 0
    matrices: tuple[MatrixShape, ...] = ()
    staged_terms: int = 0
    launch_ns: int = 0
    block_ns: int = 0
    products_per_us: int = 0
    bytes_per_us: int = 0

    @property
    def has_speeds(self) -> bool:
        """Whether the speeds of the device are known."""
        return self.products_per_us > 0


@dataclass(frozen=True)
class VulkanLimits:
    """Vulkan's limits on the resources that shaders bind; a device must reach them to run a module
    for the target.

    Only the Vulkan backend reads it.

    Attributes:
        max_storage_buffers: storage buffers that one shader may bind.
        max_push_constant_bytes: bytes of push constants.
        max_storage_buffer_bytes: bytes that one binding may span.
        min_storage_alignment_bytes: alignment of a binding's offset.
        texel_buffers: whether shaders read buffers that they don't write through uniform texel
            buffers, on devices whose texture path is faster than that of storage buffers.
    """

    max_storage_buffers: int
    max_push_constant_bytes: int
    max_storage_buffer_bytes: int
    min_storage_alignment_bytes: int
    texel_buffers: bool = False


@dataclass(frozen=True)
class Target:
    """One device to compile for; read from a TOML file.

    Attributes:
        name: the file's stem.
        summary: one line for people.
        device: "cpu" or "vulkan".
        arch: an `Arch` of module.fbs in lower case; "none" for vulkan.
        triple: LLVM's target triple; "" for vulkan.
        cpu: LLVM's CPU name, the baseline that `features` add to.
        tune: LLVM's CPU name whose costs instruction scheduling follows; "" is `cpu`.
        features: LLVM's names of what the code may use and the loader must find. Complete: nothing
            beyond them and the architecture's own baseline is used.
        options: LLVM's code generation switches that the loader need not check.
        abi: LLVM's ABI name; "" is the triple's own.
        vector_bytes: width of a vector register; of a scalar where there are no vectors.
        vector_registers: vector registers, or scalar float registers where there are none.
        l1_bytes: data cache of a core.
        l2_bytes: second level, or what a core may count on having of it.
        page_bytes: alignment of the code image in the file.
        word_bytes: width of a parameter word and of an index: 8 or 4.
        dtypes: element types that are computed natively; others can be loaded, stored and cast.
        panel: width P of packed panels; must be equal for all targets of a module.
        max_stack_bytes: REGISTER scratch that a kernel may put on the caller's stack.
        scratch_bytes: memory per worker in which a kernel may keep values that it could also
            recompute; on a CPU only.
        gpu: the geometry of workgroups, on a GPU only.
        vulkan: limits of the API, on vulkan only.
        aliases: other names that `--target` takes for it.
        host: the operating system on which `--target host` may be this target, as `sys.platform`
            calls it, or "any"; "" for none.
        file: where a user's own target was read from; "" for those that come with the compiler.
    """

    name: str
    summary: str
    device: str
    arch: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    vector_bytes: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    page_bytes: int
    word_bytes: int
    dtypes: tuple[DType, ...]
    tune: str = ""
    options: tuple[str, ...] = ()
    abi: str = ""
    panel: int = 16
    max_stack_bytes: int = 16384
    scratch_bytes: int = 65536
    gpu: GpuGeometry | None = None
    vulkan: VulkanLimits | None = None
    aliases: tuple[str, ...] = ()
    host: str = ""
    file: str = ""

    def has(self, feature: str) -> bool:
        """Whether code may use `feature` (LLVM's name)."""
        return feature in self.features

    def computes(self, dtype: DType) -> bool:
        """Whether arithmetic in `dtype` is native; it always is for INDEX."""
        return dtype is DType.INDEX or (dtype in self.dtypes and not dtype.is_storage_only)

    @property
    def converts_half(self) -> bool:
        """Whether single instructions convert between f16 and f32."""
        return self.arch == "aarch64" or any(map(self.has, _HALF_FEATURES)) or self.has_workgroups

    @property
    def has_nan_extrema(self) -> bool:
        """Whether a CPU's floating-point minimum and maximum are NaN if an operand is NaN."""
        return self.arch in ("aarch64", "wasm32")

    @property
    def has_masks(self) -> bool:
        """Whether a CPU has masked loads and stores of vectors of words."""
        return self.has("avx512vl") or self.has("v")

    @property
    def interleaves(self) -> bool:
        """Whether interleaving vectors in registers is faster on a CPU than strided stores."""
        return self.is_cpu and not self.has("v")

    @property
    def doubles_half(self) -> bool:
        """Whether a vector multiplication has twice as many lanes in f16 as in f32."""
        return self.is_cpu and self.computes(DType.F16) and self.vector_bytes > 4

    @property
    def multiplies_by_lane(self) -> bool:
        """Whether one instruction multiplies a vector by one lane of another and accumulates."""
        return self.arch == "aarch64" and self.vector_bytes > 4

    @property
    def multiplies_parts(self) -> bool:
        """Whether dot products of bytes multiply each byte by itself: vectors have
        multiply-accumulate by a scalar, but no instruction sums products of adjacent lanes."""
        return self.arch == "riscv64" and self.has("v")

    def sums_bytes(self, left: DType, right: DType) -> bool:
        """Whether the CPU sums four products of bytes in i32, or products of bytes in 16 bits, with
        fewer instructions than products of 16-bit pairs take.
        """
        pair = {left, right}
        if pair == {DType.U8, DType.I8}:
            return any(map(self.has, ("avx512vnni", "avxvnni", "i8mm")))
        if pair == {DType.I8} and self.has("neon"):
            return True
        return len(pair) == 1 and left.bits == 8 and self.has("dotprod")

    def sums_narrow_bytes(self, left: DType, right: DType) -> bool:
        """Whether sums of products of bytes take fewer instructions if any two products together
        fit 16 bits."""
        pair = {left, right}
        if pair == {DType.U8, DType.I8}:
            return self.has("ssse3") and not self.sums_bytes(left, right)
        return pair == {DType.I8} and self.has("neon") and not self.has("dotprod")

    @property
    def sums_bf16(self) -> bool:
        """Whether one instruction sums the products of two bf16 pairs in f32."""
        return self.is_cpu and (self.has("avx512bf16") or self.has("bf16"))

    def multiplies_matrices(self, left: DType, right: DType) -> bool:
        """Whether one instruction multiplies two rows of 8 bytes of `left` by two columns of
        `right`, and adds the products to 32-bit sums."""
        if left is right is DType.BF16:
            return self.arch == "aarch64" and self.has("bf16")
        is_pair = left.bits == right.bits == 8 and (left is right or left is DType.U8)
        return is_pair and self.arch == "aarch64" and self.has("i8mm")

    @property
    def sums_scalar_pairs(self) -> bool:
        """Whether one scalar instruction adds the products of two pairs of 16-bit numbers."""
        return self.has("dsp") and self.vector_bytes == 4

    @property
    def looks_up_bytes(self) -> bool:
        """Whether a few instructions look up each byte of a vector in a table of 256 bytes."""
        return self.has("avx512vbmi")

    def picks_lanes(self, element_bytes: int) -> bool:
        """Whether one instruction selects each lane, of `element_bytes` bytes, from two vectors by
        index.
        """
        feature = {1: "avx512vbmi", 2: "avx512bw", 4: "avx512f"}.get(element_bytes)
        has_masks = self.has("avx512bw") and self.has("avx512vl")
        return feature is not None and self.vector_bytes == 64 and has_masks and self.has(feature)

    @property
    def streams_lines(self) -> bool:
        """Whether a vector fills a cache line, and can be stored past the caches
        (non-temporally)."""
        return self.arch == "x86_64" and self.vector_bytes == 64

    @property
    def packs_bytes(self) -> bool:
        """Whether few instructions saturate four vectors of i32 and pack them into one of bytes."""
        feature = {64: "avx512bw", 32: "avx2", 16: "sse4.1"}.get(self.vector_bytes)
        return self.arch == "x86_64" and feature is not None and self.has(feature)

    @property
    def sums_codes(self) -> bool:
        """Whether the CPU sums, in i32, four products of a signed byte and a code below 128."""
        return any(map(self.has, ("ssse3", "avx2", "dotprod", "neon"))) or self.sums_bytes(
            DType.U8, DType.I8
        )

    @property
    def sums_pairs_of_codes(self) -> bool:
        """Whether one instruction sums two products of codes in 16 bits, while summing four in i32
        takes several.
        """
        return self.has("ssse3") and not self.sums_bytes(DType.U8, DType.I8)

    def dot_dtype(self, left: DType, right: DType, *, is_narrow: bool = False) -> DType:
        """The dtype in which a dot product reads `left`: its own, or widened to 16 bits.

        Args:
            is_narrow: whether the products of any two pairs fit 16 bits together.
        """
        if left is DType.BF16 or (self.multiplies_parts and left.bits == 8):
            return left
        if self.sums_bytes(left, right) or (is_narrow and self.sums_narrow_bytes(left, right)):
            return left
        return DType.I16

    def lanes(self, dtype: DType) -> int:
        """The number of elements of `dtype` in one vector register; at least 1."""
        return max(
            1, self.vector_bytes // (self.word_bytes if dtype is DType.INDEX else dtype.bytes)
        )

    @property
    def is_cpu(self) -> bool:
        """Whether the target runs machine code of a CPU, which LLVM generates."""
        return self.device == "cpu"

    @property
    def has_workgroups(self) -> bool:
        """Whether the lanes of a workgroup run in parallel and share memory, as on a GPU. On a CPU
        a workgroup is one iteration of a loop, and lanes are vector lanes.
        """
        return self.gpu is not None

    @property
    def has_cpu_fallback(self) -> bool:
        """Whether a CPU may run ops that this target can't, in the same program."""
        return not self.is_cpu


def describe(target: Target) -> list[tuple[str, Any, str]]:
    """(key, value, meaning) of each entry of a target's file."""
    rows: list[tuple[str, Any, str]] = []
    for record in (target, target.gpu, target.vulkan):
        if record is None:
            continue
        meanings = _meanings(type(record))
        for field in fields(record):
            if field.name in ("name", "file", "gpu", "vulkan"):
                continue
            value = getattr(record, field.name)
            rows.append((field.name, value, meanings.get(field.name, "")))
    return rows


def _meanings(record: type) -> dict[str, str]:
    """The descriptions of a record's attributes, from its docstring; empty if docstrings are
    stripped.
    """
    _, _, text = (record.__doc__ or "").partition("Attributes:\n")
    found = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", text, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found}
