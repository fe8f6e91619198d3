"""Compute shaders as the Vulkan backend's result, with all that a driver must know of them.

The dispatch ABI, which the C driver follows, is written down here.

- Descriptor set 0 holds a storage buffer for each class in `bindings`, at the binding that is the
  class's number: 0 constants, 1 arena, 2 inputs, 3 outputs. Each is read and written in whole
  32-bit words, so what is bound must be a multiple of four bytes long and not empty. Of constants
  also four words may be read at once: each starts at a multiple of 16 bytes, and what is bound is
  a multiple of 16 bytes long.
- The parameter block is `param_words` words of 32 bits. It is the push constants where
  `param_buffer_bytes` is 0. Else it is in a uniform buffer at binding 4, of which
  `param_buffer_bytes` are bound, and the only push constant is the word at which it starts, a
  multiple of four.
- `texel`, where there is one, does the same, and reads through uniform texel buffers what the
  dispatch doesn't write: a driver takes the one or the other for all shaders of a variant.
  Those hold the same bytes as the storage buffers, from the same start. That of class c is at
  binding `texel_binding(c, count)`; its elements are `count` words as u32: four
  (R32G32B32A32_UINT) or one (R32_UINT). What is bound is then a multiple of 16 bytes long. One that
  declares GroupNonUniformShuffle needs subgroups of a multiple of eight lanes.
- Each of `windows` is an operand with a storage buffer of its own, at FIRST_WINDOW_BINDING and
  those behind it: (number of its class, parameter word of its byte offset). What is bound begins
  at most that many bytes into the class, at a multiple of WINDOW_ALIGNMENT, and holds all of the
  operand; the parameter is the distance from there. So a class may have more bytes than a device
  can bind.
- The grid is `Kernel.grid`. More than GRID_ROW workgroups along x are dispatched as GRID_ROW along
  x and as many rows along z as it takes: the shader adds `z * GRID_ROW` to x and returns where
  that is too much. Kernels that use z themselves must keep x within GRID_ROW.
- Vulkan 1.1 lets a driver flush denormals and, without VK_KHR_shader_float_controls, treat NaN and
  infinity as if they did not occur. The shaders test for NaN with integers where they must, and
  keep multiplications and additions apart (NoContraction), but promise no more than that.
"""

from __future__ import annotations

from aot.base.records import dataclass
from aot.ir.dims import Dim
from aot.kernels.ir.nodes import BufferClass

PARAM_BUFFER_BINDING = 4
_FIRST_TEXEL_BINDING = 5
FIRST_WINDOW_BINDING = 13
# The least maxStorageBufferRange of Vulkan: what a window always has. Its start is a multiple of
# the most that minStorageBufferOffsetAlignment may be, so that an operand may take less.
WINDOW_BYTES = 1 << 27
WINDOW_ALIGNMENT = 256
MOST_WINDOW_OPERAND_BYTES = WINDOW_BYTES - 2 * WINDOW_ALIGNMENT
# The least maxUniformBufferRange of Vulkan: what is bound always has this size, so that parameter
# blocks of many dispatches share one buffer and one descriptor.
PARAM_BUFFER_BYTES = 16384
# The least maxComputeWorkGroupCount of Vulkan, on every axis.
GRID_ROW = 65535
ENTRY_POINT = "main"


def texel_binding(binding: BufferClass, words: int) -> int:
    """The binding of a class as texels of four words, or of one."""
    kind = (4, 1).index(words)
    return _FIRST_TEXEL_BINDING + kind * len(BufferClass) + binding.value


@dataclass(frozen=True)
class Shader:
    """One compute shader.

    Attributes:
        words: SPIR-V 1.3, little endian.
        workgroup_size: lanes along x, y and z.
        bindings: classes of the storage buffers that are declared.
        param_words: length of the parameter block.
        push_constant_bytes: size of the push constant range; 0 is none.
        param_buffer_bytes: size of the uniform buffer's binding; 0 is none.
        shared_bytes: Workgroup memory.
        capabilities: SPIR-V's names of what the module declares.
        iterations: of loops that a lane makes at most, as a dim over the kernel's parameters.
        texels: uniform texel buffers that are declared: a class, and the words of an element.
        texel: the shader that reads texels instead; None where it would be the same.
        features: Vulkan's names of device features to be enabled; the 1.1 baseline needs none.
        windows: operands with a binding of their own.
        entry_point: the function's name.
    """

    words: bytes
    workgroup_size: tuple[int, int, int]
    bindings: tuple[BufferClass, ...]
    param_words: int
    push_constant_bytes: int
    param_buffer_bytes: int
    shared_bytes: int
    capabilities: tuple[str, ...]
    features: tuple[str, ...] = ()
    iterations: Dim = 0
    texels: tuple[tuple[BufferClass, int], ...] = ()
    texel: Shader | None = None
    windows: tuple[tuple[int, int], ...] = ()
    entry_point: str = ENTRY_POINT
