"""`aotc upgrade`: modules of earlier versions.

Owns which are refused, and what is said of what to do; the rewriting is `aot.link.upgrade`'s.
"""

from __future__ import annotations

from aot.api import CompiledModule
from aot.errors import CompileError
from aot.frontends.registry import check_is_module
from aot.link.reader import read_module
from aot.link.upgrade import upgrade_image


def upgrade(path: str) -> tuple[CompiledModule, list[str]]:
    """A module file as this version writes it, and what was rewritten, in words.

    Raises:
        CompileError: the file can't be read, is damaged, or is of a version that this one does not
            read.
    """
    check_is_module(path)
    try:
        image, changes = upgrade_image(read_module(path))
    except CompileError as error:
        raise CompileError(
            f"{path} can't be upgraded: compile the model again with this aotc ({error})"
        ) from error
    return CompiledModule(image), changes
