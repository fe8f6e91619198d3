"""Loads of a word, or of four, a texture's way: from uniform texel buffers over the same memory as
the storage buffers of the classes.

Owns the images and the fetches; `Memory` decides what is read so. Texels are u32, which keeps all
bits, whatever they stand for.
"""

from __future__ import annotations

from aot.backends.vulkan.shader import texel_binding
from aot.backends.vulkan.spirv import Capability, Op, StorageClass
from aot.backends.vulkan.values import Values
from aot.kernels.ir.nodes import BufferClass

_COMPONENTS = 4  # of what is fetched, whatever the element


class Texels:
    """The images of one shader."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._images: dict[tuple[BufferClass, int], int] = {}

    @property
    def declared(self) -> tuple[tuple[BufferClass, int], ...]:
        """The classes that are read so, each with the words of an element."""
        return tuple(sorted(self._images, key=lambda key: texel_binding(*key)))

    def load(self, binding: BufferClass, words: int, type: int, number: int) -> int:
        """Element `number`, an id, of `words` words of a class; `type` is what it is loaded as: f32
        or u32, or a vector of four of them."""
        values, asm = self.values, self.values.asm
        image = values.pure(Op.LOAD, asm.texels, self._image(binding, words))
        quad = asm.vector(asm.u32, _COMPONENTS)
        found = values.cached(
            (Op.IMAGE_FETCH, image, number),
            lambda: values.body.result(Op.IMAGE_FETCH, quad, image, number),
        )
        found_type = quad
        if words == 1:
            found = values.pure(Op.COMPOSITE_EXTRACT, asm.u32, found, literals=(0,))
            found_type = asm.u32
        return found if type == found_type else values.pure(Op.BITCAST, type, found)

    def _image(self, binding: BufferClass, words: int) -> int:
        key = (binding, words)
        if key not in self._images:
            asm = self.values.asm
            asm.capability(Capability.SAMPLED_BUFFER)
            self._images[key] = asm.resource(
                StorageClass.UNIFORM_CONSTANT, asm.texels, texel_binding(*key)
            )
        return self._images[key]
