"""Loads of a word, or of four, a texture's way where the driver says so: class buffers are uniform
texel buffers as well as storage buffers.

Which way it is the driver knows when it creates a pipeline (`shader.TEXELS_SPEC_ID`): where texels
are quicker to load, and where they reach as far as storage buffers do. So a load is a call of a
function that has both, of which drivers leave one. Owns these functions; `Memory` decides what may
be read so. Texels are u32, which keeps all bits, whatever they stand for.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.backends.vulkan.assembler import FunctionBody
from aot.backends.vulkan.shader import TEXELS_SPEC_ID, texel_binding
from aot.backends.vulkan.spirv import Capability, Op, StorageClass
from aot.backends.vulkan.values import Values
from aot.kernels.ir import BufferClass

Load = Callable[[FunctionBody, int], int]
"""Emits a load of an element, by its number, from a storage buffer."""

_COMPONENTS = 4  # of what is fetched, whatever the element
# Drivers write each call out before they leave one of the two ways, which takes SwiftShader minutes
# for a hundred of them; shaders of models have up to 25.
MOST_CALLS = 16


class Texels:
    """The functions of one shader.

    Attributes:
        calls: how many of them there are.
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        self.calls = 0
        self._functions: dict[tuple[BufferClass, int], int] = {}

    @property
    def declared(self) -> tuple[tuple[BufferClass, int], ...]:
        """The classes that are read so, each with the words of an element."""
        return tuple(sorted(self._functions, key=lambda key: texel_binding(*key)))

    def load(self, binding: BufferClass, words: int, type: int, number: int, other: Load) -> int:
        """Element `number`, an id, of `words` words of a class.

        Args:
            type: of what is loaded: f32 or u32, or a vector of four of them.
            other: the same from the storage buffer.
        """
        key = (binding, words)
        if key not in self._functions:
            self._functions[key] = self._function(key, type, other)
        called = self._functions[key]

        def call() -> int:
            self.calls += 1
            return self.values.body.result(Op.FUNCTION_CALL, type, called, number)

        return self.values.cached((Op.FUNCTION_CALL, called, number), call)

    def _function(self, key: tuple[BufferClass, int], type: int, other: Load) -> int:
        asm = self.values.asm
        made = FunctionBody(asm, type, (asm.u32,))
        (number,) = made.parameters
        selection = made.open_if(asm.spec_constant(TEXELS_SPEC_ID), has_else=True)
        fetched = self._fetch(made, key, type, number)
        made.open_else(selection)
        loaded = other(made, number)
        fetch_block, load_block = made.close_if(selection)
        value = made.phi(type, [(fetched, fetch_block), (loaded, load_block)])
        made.return_value(value.id)
        asm.add(made)
        return made.id

    def _fetch(self, body: FunctionBody, key: tuple[BufferClass, int], type: int, at: int) -> int:
        asm = self.values.asm
        asm.capability(Capability.SAMPLED_BUFFER)
        image = asm.resource(StorageClass.UNIFORM_CONSTANT, asm.texels, texel_binding(*key))
        whole = body.result(Op.LOAD, asm.texels, image)
        quad = asm.vector(asm.u32, _COMPONENTS)
        found, found_type = body.result(Op.IMAGE_FETCH, quad, whole, at), quad
        if key[1] == 1:
            found, found_type = body.result(Op.COMPOSITE_EXTRACT, asm.u32, found, 0), asm.u32
        return found if type == found_type else body.result(Op.BITCAST, type, found)
