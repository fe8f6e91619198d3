"""Whether a file has what its architecture reads, and nothing else: all differences at once.

A key or a tensor that no part reads is refused: whatever it is for, results without it would be
those of another model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from aot.errors import UnsupportedError
from aot.frontends.gguf.block_types import BLOCK_TYPES
from aot.frontends.gguf.keys import nearest
from aot.frontends.gguf.layers import Needed, Whole
from aot.frontends.gguf.model import Model
from aot.frontends.gguf.reader import GgufFile

EMBEDDING = "token_embd.weight"


def checked(file: GgufFile, model: Model) -> Mapping[str, Needed]:
    """The tensors that a model reads, by name; the file has all that are not optional.

    Raises:
        UnsupportedError: keys or tensors are not read, tensors are missing or of other shapes or
            block types; all of them are named, with what is nearest.
    """
    needed = {n.name: n for n in _needed(file, model)}
    items = [*_keys(model), *_tensors(file, needed)]
    if items:
        raise UnsupportedError(
            f"{file.where}: is not as the architecture {model.name} has it ({len(items)}):", items
        )
    return needed


def _needed(file: GgufFile, model: Model) -> Iterator[Needed]:
    def rows(name: str) -> int:
        return file.tensors[name].dims[0] if name in file.tensors else 0

    whole = Whole(
        width=model.width,
        vocabulary=rows(EMBEDDING),
        types=rows("token_types.weight"),
        context=model.context,
        side=model.layers[0].side * model.matrices,
        layers=model.matrices,
        pairs=model.pairs,
        is_long=model.is_long,
        streams=model.layers[0].streams,
    )

    def has(name: str) -> bool:
        return name in file.tensors

    for part in model.architecture.parts():
        yield from part.shared(whole)
        for layer in model.layers[: model.matrices]:
            yield from part.tensors(layer, has)


def _keys(model: Model) -> Iterator[str]:
    known = model.architecture.key_names()
    for key in model.keys.unread(model.architecture.unused):
        yield f"key {model.name + '.' + key!a} is not read{_likely(key, known, model.name + '.')}"


def _likely(name: str, known: Collection[str], prefix: str = "") -> str:
    found = nearest(name, known)
    return f", the nearest that is: {prefix + found!r}" if found else ""


def _likely_tensor(name: str, known: Collection[str]) -> str:
    """As `_likely`: the tensor whose name is the nearest before its last part, such as `weight`,
    and then in this one."""
    stem = nearest(_stem(name), {_stem(other) for other in known})
    return _likely(name, [other for other in known if stem and _stem(other) == stem])


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _tensors(file: GgufFile, needed: Mapping[str, Needed]) -> Iterator[str]:
    absent = [name for name in needed if name not in file.tensors]
    for name in sorted(set(file.tensors) - set(needed)):
        yield f"tensor {name!a} is not read{_likely_tensor(name, absent)}"
    has_types = True
    for name, wanted in needed.items():
        found = file.tensors.get(name)
        if found is None:
            if not wanted.is_optional:
                yield f"tensor {name!r} is missing"
        elif found.dims != wanted.dims:
            yield f"tensor {name!r} has dims {list(found.dims)}, expected {list(wanted.dims)}"
        elif found.type.is_unknown:
            has_types = False
            yield f"tensor {name!r} has the block type {found.type.name}"
        elif wanted.has_floats and found.type.floats is None:
            yield f"tensor {name!r} is {found.type.name}, expected floats"
    if not has_types:
        types = ", ".join(sorted(type.name for type in BLOCK_TYPES.values()))
        yield f"block types that are read: {types}"
