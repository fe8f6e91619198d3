"""The contents of a module file as plain records, one class for each table of module.fbs.

What the pipeline fills, the writer writes and the reader returns. Holds no file offsets: those are
the writer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from math import prod

from aot.analysis.launches import Launch
from aot.base.records import dataclass
from aot.ir.dims import Dim, Interval, bounds
from aot.ir.types import DType
from aot.link.rodata import Pieces, RodataSegment


class Device(Enum):
    """The kind of device that runs a variant; the values are those of module.fbs."""

    CPU = 0
    VULKAN = 1


class Arch(Enum):
    """The instruction set of a code image; the values are those of module.fbs."""

    NONE = 0
    X86_64 = 1
    AARCH64 = 2
    ARM = 3
    THUMB = 4
    RISCV64 = 5
    RISCV32 = 6
    WASM32 = 7


@dataclass(frozen=True)
class DimInfo:
    """An extent of an input or output.

    Attributes:
        extent: None where it is symbolic.
        minimum: inclusive bounds of a symbolic extent; a maximum of None is unbounded.
        text: the symbolic expression.
    """

    extent: int | None = None
    minimum: int = 0
    maximum: int | None = None
    text: str = ""

    @staticmethod
    def of(dim: Dim, known: Mapping[str, Interval] | None = None) -> DimInfo:
        """The description of `dim`, given bounds of its symbols."""
        if isinstance(dim, int):
            return DimInfo(extent=dim)
        low, high = bounds(dim, known or {})
        return DimInfo(None, max(low or 0, 0), high, str(dim))

    def __str__(self) -> str:
        return str(self.extent) if self.extent is not None else self.text or "?"


@dataclass(frozen=True)
class TensorInfo:
    """Name and type of an input or output; its memory is dense and row-major.

    Attributes:
        strings: what its elements are the numbers of, where it is one of strings.
    """

    name: str
    dtype: DType
    dims: tuple[DimInfo, ...]
    strings: tuple[str, ...] | None = None

    @property
    def least_bytes(self) -> int:
        """The size in bytes of all elements; 0 if an extent is dynamic."""
        extents = [d.extent for d in self.dims]
        known = [n for n in extents if n is not None]
        return prod(known) * self.dtype.bytes if len(known) == len(extents) else 0

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class ArenaBuffer:
    """A buffer that the runtime places: its lifetime in positions of the execute part, inclusive;
    the register that receives its byte offset; and its offset at the largest shapes."""

    first: int
    last: int
    offset_register: int
    alignment: int = 64
    bound_offset: int = 0


@dataclass(frozen=True)
class Growth:
    """A state variable that grows at its end; see `Growth` in module.fbs."""

    offset: int
    blocks: int
    stride_bytes: int
    row_bytes: int
    scalar: int
    window: int = 0


@dataclass(frozen=True)
class ProgramImage:
    """A block-structured program; see `Program` in module.fbs.

    Attributes:
        arena_bytes: of what has fixed offsets.
        arena_bound_bytes: the most that the arena takes at any shape; None where that is not known.
        state_bytes: at the arena's start, kept between runs.
        state_count: scalars that are kept between runs.
        state_key_count: the first of them, which `prepare` may read.
        scratch_offset: in the arena's fixed part, where a CPU worker's scratch overlaps
            nothing that lives while it is used; None where it is elsewhere.
        growths: where states grow, at the end of `state_bytes`.
        updates: one for each output, or none: 1 + the input whose memory takes it after a run, 0
            where it is no input's.
    """

    register_count: int
    code: tuple[int, ...] = field(repr=False)
    blocks: tuple[int, ...] = field(repr=False)
    execute_block: int
    messages: tuple[str, ...] = field(default=(), repr=False)
    buffers: tuple[ArenaBuffer, ...] = field(default=(), repr=False)
    arena_bytes: int = 0
    input_offset_registers: tuple[int, ...] = field(default=(), repr=False)
    output_offset_registers: tuple[int, ...] = field(default=(), repr=False)
    arena_bound_bytes: int | None = None
    state_bytes: int = 0
    state_count: int = 0
    state_key_count: int = 0
    scratch_offset: int | None = None
    growths: tuple[Growth, ...] = ()
    updates: tuple[int, ...] = ()


@dataclass(frozen=True)
class EntryPointImage:
    """A function of the module that the user can call.

    Attributes:
        states: what is kept between calls; a dim that grows has its capacity as its maximum.
        launches: what its dispatches do, in the order of their instructions. Not in the file's
            structure: the notes keep them.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    program: ProgramImage
    states: tuple[TensorInfo, ...] = ()
    launches: tuple[Launch, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        counts = f"{len(self.inputs)} inputs, {len(self.outputs)} outputs"
        return f"<EntryPointImage {self.name!r}: {counts}, {len(self.program.code)} words>"


@dataclass(frozen=True)
class ExecutableImage:
    """A kernel: a function in the variant's code image (CPU), or its shaders (Vulkan).

    Attributes:
        scratch_bytes: of a shader, its shared memory.
        param_buffer_bytes: 0 where the parameter block of a shader is push constants.
        texel_spirv: a shader that does the same, and reads texels; None where there is no other.
        group_ns: what a workgroup of a shader takes of a run, in nanoseconds, by estimate.
        windows: operands of a shader with storage buffers of their own: (buffer class, parameter
            word of the byte offset).
        why_on_cpu: why a Vulkan variant has no shader for it; "" where it has one. Not in the
            file's structure: the notes keep it.
    """

    name: str
    param_words: int
    code_offset: int = 0
    spirv: bytes | None = field(default=None, repr=False)
    scratch_bytes: int = 0
    workgroup_size: tuple[int, int, int] = (1, 1, 1)
    param_buffer_bytes: int = 0
    texel_spirv: bytes | None = field(default=None, repr=False)
    group_ns: int = 0
    windows: tuple[tuple[int, int], ...] = ()
    why_on_cpu: str = field(default="", compare=False)

    @property
    def shaders(self) -> tuple[bytes, ...]:
        """The shader's variants; a driver uses one of them."""
        return tuple(s for s in (self.spirv, self.texel_spirv) if s is not None)


@dataclass(frozen=True)
class HostImage:
    """The CPU that runs those executables of a Vulkan variant that have no shader.

    Attributes:
        target: what their code was made for.
        word_bytes: width of a word of their parameter blocks.
        features: what the CPU must have.
    """

    target: str
    arch: Arch
    word_bytes: int
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class VariantImage:
    """All code of a module for one target.

    Attributes:
        word_bytes: width of a word of the parameter block, 4 or 8.
        features: what the CPU or GPU must have, in a fixed order.
        code: the position-free code image; empty for Vulkan, but for what the host runs.
        page_bytes: alignment of the code image in the file, the target's page size; without code
            it means nothing.
        limits: names of VkPhysicalDeviceLimits and what they must be at least.
        host: on Vulkan, the CPU that runs executables without a shader; None where all have one.
    """

    target: str
    device: Device
    arch: Arch
    word_bytes: int
    executables: tuple[ExecutableImage, ...]
    entry_points: tuple[EntryPointImage, ...]
    features: tuple[str, ...] = ()
    code: bytes = b""
    page_bytes: int = 4096
    limits: tuple[tuple[str, int], ...] = ()
    host: HostImage | None = None

    def __repr__(self) -> str:
        return f"<VariantImage {self.label}: {len(self.executables)} executables>"

    @property
    def label(self) -> str:
        """A unique label of the variant in its module: its target, and that of its host."""
        return self.target if self.host is None else f"{self.target} with {self.host.target}"

    def is_cpu_fallback(self, executable: ExecutableImage) -> bool:
        """Whether the host CPU, and not the GPU, runs an executable of this variant."""
        return self.host is not None and executable.spirv is None


@dataclass(frozen=True)
class ModuleImage:
    """The contents of a module file; variants are in the order in which the runtime tries them.

    Attributes:
        notes: what `aot.link.notes` wrote for tools; empty where they were left out.
        vocabulary: of a language model, what `aot.link.vocabulary` wrote; empty of others.
        metadata: facts about the model by key, for people and applications.
    """

    variants: tuple[VariantImage, ...]
    rodata: bytes | Pieces = b""
    rodata_segments: tuple[RodataSegment, ...] = field(default=())
    producer: str = ""
    notes: bytes = b""
    vocabulary: bytes = field(default=b"", repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return f"<ModuleImage {self.summary}>"

    @property
    def summary(self) -> str:
        """One line of text with the entry points, targets and sizes."""
        entries = self.variants[0].entry_points if self.variants else ()
        names = ", ".join(repr(e.name) for e in entries[:4]) + ", ..." * (len(entries) > 4)
        made = ", ".join(v.label for v in self.variants)
        executables = " + ".join(str(len(v.executables)) for v in self.variants)
        code = sum(
            len(v.code) + sum(len(s) for e in v.executables for s in e.shaders)
            for v in self.variants
        )
        return (
            f"{names} for {made}: {executables} executables, "
            f"{code:,} bytes of code, {len(self.rodata):,} of constants"
        )


def code_sizes(variant: VariantImage) -> list[int]:
    """Bytes of each executable: its shaders, or the distance to the next function of the image.

    Constants of a function stand behind it, so they count; a function that two executables share
    counts for both.
    """
    starts = sorted({e.code_offset for e in variant.executables if e.spirv is None})
    following = dict(zip(starts, [*starts[1:], len(variant.code)], strict=True)) if starts else {}
    return [
        sum(map(len, e.shaders)) or following[e.code_offset] - e.code_offset
        for e in variant.executables
    ]
