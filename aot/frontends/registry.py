"""The registry of model formats: how each is recognised, and which importer reads it.

The contents of a file decide its format; the name is used only if the contents do not. For formats
that are recognised but not supported, an error says what to do. Imports an importer only when a
model of its format is read.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aot.base.records import dataclass
from aot.errors import CompileError, shortened
from aot.ir import input_files
from aot.ir.limits import limited
from aot.options import OPTIONS, CompileOptions, Progress, no_progress

if TYPE_CHECKING:
    from aot.ir.graph import Module

MODULE_MAGIC = b"AOTM"
HEAD_BYTES = 4096  # of a file, by which its format is recognised

Shapes = Mapping[str, tuple[int | str | None, ...]]
Read = Callable[..., "Module"]  # of a source, shapes and values of inputs, and `options`


@dataclass(frozen=True)
class Frontend:
    """One format that models come in.

    Attributes:
        name: as people say it.
        extensions: of files whose contents say nothing: empty ones, and broken ones.
        read: the module that a source is, given the shapes and values of inputs.
        holds: whether a file that begins so, which is given as well, is of this format.
        is_sure: what `holds` finds is of this format whatever else it may look like.
        needs_extension: a file is read only under one of the extensions, as reading it takes more
            of what is installed than a format of plain data.
        takes: whether an object in memory is.
        binds_inputs: `read` binds shapes and values of inputs itself, as shape rules of the format
            may need them; else the pass `bind` does.
        files: the files that a model's file needs beside it, by their names there, from its path.
        is_split: those are parts of it, and its size is that of all.
        portable: the bytes of a model that need no file beside them.
        options: names of the options of a compile that `read` takes, by keyword.
        modules: what the importer takes, to be imported before memory is limited.
        reports: `read` takes `progress` by keyword, and calls it with the stage "import".
    """

    name: str
    extensions: tuple[str, ...]
    read: Read
    holds: Callable[[bytes, Any], bool]
    takes: Callable[[Any], bool] = lambda source: False
    is_sure: bool = False
    needs_extension: bool = False
    binds_inputs: bool = False
    files: Callable[[Path], Sequence[str]] = lambda path: ()
    is_split: bool = False
    portable: Callable[[Path], bytes] = input_files.contents
    options: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    reports: bool = False


# What this compiler makes, and the text form of its IR.


def _is_module(source: Any) -> bool:
    from aot.ir.graph import Module

    return isinstance(source, Module)


def _clone(source: Any, shapes: Shapes, values: Mapping[str, Any]) -> Module:
    from aot.ir.clone import clone_module

    return clone_module(source)


def _read_text(source: Any, shapes: Shapes, values: Mapping[str, Any]) -> Module:
    from aot.frontends.text import import_text, load_text

    module = import_text(source.decode()) if isinstance(source, bytes) else load_text(source)
    if module.executables:
        name = "text" if isinstance(source, bytes) else source
        raise CompileError(
            f"{name}: it has executables, as @{module.executables[0].name}, which only passes "
            "make: give the model as it was before them"
        )
    return module


_TEXT = re.compile(rb"\s*(#|func\b|executable\b)")


# ONNX files are protobufs: no magic number, but the first field is one that a ModelProto has.


def _first_field(head: bytes) -> tuple[int, int]:
    """(number, wire type) of a protobuf's first field; (0, 0) where there is none."""
    key = 0
    for position, byte in enumerate(head[:2]):
        key |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return key >> 3, key & 7
    return 0, 0


_VARINT, _BYTES = 0, 2
_MODEL_FIELDS = {
    **dict.fromkeys((1, 5), _VARINT),  # the versions of the IR and of the model
    **dict.fromkeys((2, 3, 4, 6, 7, 8, 14, 20, 25, 26), _BYTES),
}


def _is_onnx(head: bytes) -> bool:
    number, wire = _first_field(head)
    return _MODEL_FIELDS.get(number) == wire


def _is_model_proto(source: Any) -> bool:
    kind = type(source)
    return (kind.__name__ == "ModelProto" and kind.__module__.startswith("onnx")) or (
        ("ONNXProgram", "torch.onnx._internal.exporter._onnx_program") in _kinds(source)
    )


def _read_onnx(source: Any, shapes: Shapes, values: Mapping[str, Any], **options: Any) -> Module:
    from aot.frontends.onnx import import_onnx

    source = getattr(source, "model_proto", source)  # of a torch.onnx.ONNXProgram
    return import_onnx(source, input_shapes=shapes, input_values=values, **options)


def _onnx_files(path: Path) -> Sequence[str]:
    data = input_files.contents(path)
    if b"location" not in data:  # the key under which ONNX keeps such a file's name
        return ()
    from aot.frontends.onnx.files import external_names

    return external_names(data)


def _portable_onnx(path: Path) -> bytes:
    from aot.frontends.onnx.files import portable

    return portable(path) if _onnx_files(path) else input_files.contents(path)


def _zip_names(source: Any) -> Sequence[str]:
    """The names in a zip archive; empty if it is damaged."""
    import zipfile

    try:
        with (
            (
                io.BytesIO(source) if isinstance(source, bytes) else input_files.opened(source)
            ) as stream,
            zipfile.ZipFile(stream) as file,
        ):
            return file.namelist()
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return ()


def _zipped(*endings: str) -> Callable[[bytes, Any], bool]:
    """A test of whether a source is a zip archive with a file whose name ends in one of
    `endings`."""
    return lambda head, source: (
        head.startswith(b"PK\x03\x04")
        and any(name.endswith(endings) for name in _zip_names(source))
    )


def _is_exported(source: Any) -> bool:
    """Whether a source is a program of torch.export, or our wrapper of one."""
    return not _EXPORTED.isdisjoint(_kinds(source))


_EXPORTED = {
    ("ExportedProgram", "torch.export.exported_program"),
    ("Exported", "aot.frontends.torch.program"),
}


def _read_torch(source: Any, shapes: Shapes, values: Mapping[str, Any], **options: Any) -> Module:
    from aot.frontends.torch import import_torch

    return import_torch(source, **options)


def _starts(magic: bytes) -> Callable[[bytes, Any], bool]:
    return lambda head, source: head.startswith(magic)


def _flatbuffer(identifier: bytes) -> Callable[[bytes, Any], bool]:
    """A test of whether a file is a flatbuffer with this identifier: it starts with its root's
    offset, a small number, then the identifier.
    """
    return lambda head, source: head[2:4] == b"\0\0" and head[4:8] == identifier


def _read_tflite(source: Any, shapes: Shapes, values: Mapping[str, Any]) -> Module:
    from aot.frontends.tflite import import_tflite

    return import_tflite(source)


def _gguf_files(path: Path) -> Sequence[str]:
    from aot.frontends.gguf.splits import others

    return others(path)


def _read_gguf(source: Any, shapes: Shapes, values: Mapping[str, Any], **options: Any) -> Module:
    from aot.frontends.gguf import import_gguf

    return import_gguf(source, **options)


BUILT = Frontend(
    "a module of aot.builder", (), _clone, holds=lambda head, source: False, takes=_is_module
)
TEXT = Frontend(
    "text IR",
    (".ir", ".repro"),
    _read_text,
    holds=lambda head, source: _TEXT.match(head) is not None,
)
ONNX = Frontend(
    "an ONNX model",
    (".onnx",),
    _read_onnx,
    holds=lambda head, source: _is_onnx(head),
    takes=_is_model_proto,
    binds_inputs=True,
    files=_onnx_files,
    modules=("aot.frontends.onnx",),
    portable=_portable_onnx,
    options=("random_seed",),
)
GGUF = Frontend(
    "a GGUF file",
    (".gguf",),
    _read_gguf,
    holds=_starts(b"GGUF"),
    is_sure=True,
    files=_gguf_files,
    is_split=True,
    modules=("aot.frontends.gguf",),
    options=("context", "all_logits", "cache_type", "sequences"),
    reports=True,
)
TORCH = Frontend(
    "a PyTorch program",
    (".pt2",),
    _read_torch,
    holds=_zipped("archive_format", "serialized_exported_program.json", "models/model.json"),
    takes=_is_exported,
    is_sure=True,
    needs_extension=True,
    modules=("aot.frontends.torch.exporting",),
    options=("random_seed",),
)
TFLITE = Frontend(
    "a TFLite model",
    (".tflite",),
    _read_tflite,
    holds=_flatbuffer(b"TFL3"),
    is_sure=True,
    modules=("aot.frontends.tflite",),
)
FRONTENDS = (BUILT, TEXT, ONNX, GGUF, TORCH, TFLITE)


# Formats that are known, and not read.


def _is_safetensors(head: bytes, source: Any) -> bool:
    """Whether a source looks like safetensors: an eight-byte length, and JSON of that length."""
    length = int.from_bytes(head[:8], "little")
    return 2 <= length < 1 << 32 and head[8:9] == b"{" and head[9:10] in (b'"', b"}")


def _is_broken_zip(head: bytes, source: Any) -> bool:
    return head.startswith(b"PK\x03\x04") and not _zip_names(source)


def _is_web_page(head: bytes, source: Any) -> bool:
    return head.lstrip().lower().startswith((b"<!doctype html", b"<html"))


_FROM_TORCH = "give the module to aot.compile in Python, or save it with torch.export.save"
# What a file is, how it is identified, and what to do; the first match counts.
UNREAD: tuple[tuple[str, Callable[[bytes, Any], bool], str], ...] = (
    ("a module that aotc has compiled", _starts(MODULE_MAGIC), "give the model it was made from"),
    ("an ONNX Runtime file", _flatbuffer(b"ORTM"), "give the ONNX file it was made from"),
    ("an HDF5 file", _starts(b"\x89HDF\r\n\x1a\n"), "convert the Keras model to ONNX"),
    ("a TorchScript file", _zipped("/constants.pkl"), _FROM_TORCH),
    ("a PyTorch file", _zipped("/data.pkl"), _FROM_TORCH),
    ("a Keras file", _zipped("model.weights.h5"), "convert the model to ONNX"),
    ("a zip archive that is broken or cut off", _is_broken_zip, "copy the file again"),
    ("a zip archive", _starts(b"PK\x03\x04"), "unpack the model"),
    ("a Git LFS pointer", _starts(b"version https://git-lfs"), "fetch the file: git lfs pull"),
    ("a web page", _is_web_page, "download the model itself"),
    ("a gzip file", _starts(b"\x1f\x8b"), "unpack the model"),
    ("a pickle, as of an older PyTorch file", _starts(b"\x80\x02"), _FROM_TORCH),
    (
        "a safetensors file, which has weights and no graph",
        _is_safetensors,
        "export the model to ONNX",
    ),
)


# The same of folders, by a file in them.
_FOLDERS: tuple[tuple[str, str, str], ...] = (
    ("a TensorFlow SavedModel", "saved_model.pb", "convert it to TFLite or ONNX"),
    ("a Core ML package", "Manifest.json", "give the model that it was made from"),
    ("a folder of Hugging Face", "config.json", "export the model to ONNX, or convert it to GGUF"),
)


def _check_folder(folder: Path) -> None:
    for what, name, advice in _FOLDERS:
        if (folder / name).is_file():
            raise CompileError(f"{folder}: is {what}, which cannot be compiled: {advice}")


def find(source: Any) -> Frontend:
    """The frontend that recognises a source: a path, the bytes of a file, or an object of a
    framework.

    Raises:
        CompileError: the file cannot be read, or no frontend reads what it is.
    """
    is_path = isinstance(source, (str, os.PathLike))
    if not is_path and not isinstance(source, bytes):
        for frontend in FRONTENDS:
            if frontend.takes(source):
                return frontend
        raise CompileError(
            f"a model cannot be of type {type(source).__name__}: expected a path, bytes, an "
            "onnx.ModelProto, a torch.nn.Module with example inputs, a "
            "torch.export.ExportedProgram or a module of aot.builder"
        )
    where = os.fspath(source) if is_path else "model"
    if is_path:
        _check_folder(Path(source))
    head = head_of(source) if is_path else source[:HEAD_BYTES]
    extension = Path(source).suffix.lower() if is_path else ""
    for frontend in FRONTENDS:
        if frontend.is_sure and frontend.holds(head, source):
            if is_path and frontend.needs_extension and extension not in frontend.extensions:
                raise CompileError(
                    f"{where}: is {frontend.name}, which is read only from a file whose name ends "
                    f"in {' or '.join(frontend.extensions)}: rename it if you expect one"
                )
            return frontend
    for what, matches, advice in UNREAD:
        if matches(head, source):
            raise CompileError(f"{where}: is {what}, which cannot be compiled: {advice}")
    for frontend in FRONTENDS:
        if frontend.holds(head, source):
            return frontend
    for frontend in FRONTENDS:
        if extension in frontend.extensions:
            return frontend
    *names, last = (f.name for f in FRONTENDS if f.extensions)
    raise CompileError(
        f"{where}: is no model of a known format, expected {', '.join(names)} or {last}"
    )


def read(
    frontend: Frontend, source: Any, options: CompileOptions, progress: Progress = no_progress
) -> Module:
    """The module imported from a source by the frontend that `find` returned.

    Raises:
        CompileError: the model is at fault, or an option is set that the frontend does not take.
    """
    for name in sorted({name for f in FRONTENDS for name in f.options} - {*frontend.options}):
        if getattr(options, name) != OPTIONS[name].default:
            raise CompileError(
                f"{OPTIONS[name].flags} is for {_readers(name)}, not {frontend.name}"
            )
    own = {name: getattr(options, name) for name in frontend.options}
    if frontend.reports:
        own["progress"] = progress
    with _limited(frontend, source, options.limit_memory):
        return frontend.read(source, options.input_shapes, options.input_values, **own)


def _limited(frontend: Frontend, source: Any, given_mib: int) -> AbstractContextManager[None]:
    """A context that limits the memory of an import; importers' own modules are loaded before and
    do not count. An object in memory is not limited, unless the user gives a limit."""
    for name in frontend.modules:
        with suppress(ImportError):  # of which the importer tells
            importlib.import_module(name)
    is_path = isinstance(source, (str, os.PathLike))
    length = _length(source)
    if is_path and length and frontend.is_split:
        beside = (Path(source).with_name(name) for name in frontend.files(Path(source)))
        length += sum(_length(path) or 0 for path in beside)
    if length is None and not given_mib:
        return nullcontext()
    return limited(length or 0, given_mib, os.fspath(source) if is_path else "")


def _length(source: Any) -> int | None:
    """The size of a model's file in bytes; None for an object in memory without a file."""
    if isinstance(source, (str, os.PathLike)):
        with suppress(OSError):
            return Path(source).stat().st_size
        return 0
    return len(source) if isinstance(source, bytes) else getattr(source, "file_bytes", None)


def _readers(option: str) -> str:
    return " or ".join(f.name for f in FRONTENDS if option in f.options)


def _kinds(source: Any) -> set[tuple[str, str]]:
    """(name, module) of a source's class and of all of its base classes."""
    return {(kind.__name__, kind.__module__) for kind in type(source).__mro__}


def is_torch_module(source: Any) -> bool:
    """Whether a source is a torch.nn.Module."""
    return ("Module", "torch.nn.modules.module") in _kinds(source)


def is_torch(source: Any) -> bool:
    """Whether a source is a torch.nn.Module or a program of torch.export."""
    return is_torch_module(source) or _is_exported(source)


class Opened(NamedTuple):
    """A model passed to a compile, with its frontend.

    Attributes:
        source: what its frontend reads.
        frontend: None where several models were given.
        calling: how its program is called, where it says so.
    """

    source: Any
    frontend: Frontend | None
    calling: Any = None


def opened(
    source: Any,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    limit_memory: int = 0,
) -> Opened:
    """A source with the frontend that reads it. torch modules are exported with the example
    arguments, and torch programs are read.

    Args:
        limit_memory: MiB that reading a program may take; 0 for the default.

    Raises:
        CompileError: arguments are missing, or there are some that say nothing; or the model can't
            be exported or read.
    """
    if is_torch_module(source):
        if args is None and kwargs is None:
            raise CompileError(
                "a torch.nn.Module is exported with example inputs: aot.compile(module, (x,))"
            )
        from aot.frontends.torch import calling_of, exported_module

        exported = exported_module(source, () if args is None else args, kwargs, dynamic_shapes)
        return Opened(exported, TORCH, calling_of(exported))
    if args is not None or kwargs is not None or dynamic_shapes is not None:
        raise CompileError(
            "example inputs and dynamic_shapes go with a torch.nn.Module; the model is "
            f"{_described(source)}"
        )
    if isinstance(source, (Mapping, list, tuple)):
        return Opened(source, None)
    frontend = find(source)
    if frontend is not TORCH:
        return Opened(source, frontend)
    from aot.frontends.torch import calling_of
    from aot.frontends.torch import opened as opened_program

    with _limited(TORCH, source, limit_memory):
        exported = opened_program(source)
    return Opened(exported, TORCH, calling_of(exported))


def _described(source: Any) -> str:
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__


def head_of(path: str | os.PathLike[str]) -> bytes:
    """The first `HEAD_BYTES` bytes of a file, by which formats are recognised.

    Raises:
        CompileError: it cannot be read, or is no file: a pipe or device, for example.
    """
    try:
        with input_files.opened(path) as stream:
            return stream.read(HEAD_BYTES)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise CompileError(f"cannot read {shortened(os.fspath(path))}: {reason}") from error


def check_is_module(path: str | os.PathLike[str]) -> None:
    """Checks that what a command takes as a module file is not a model.

    A file that is neither is left to the runtime, which says what is wrong with it.

    Raises:
        CompileError: the file cannot be read, or is a model of a known format.
    """
    if is_compiled(path):
        return
    try:
        name = find(path).name
    except CompileError:
        return
    command = ["aotc", "compile", os.fspath(path), "-o", Path(path).with_suffix(".aotm").name]
    raise CompileError(
        f"{os.fspath(path)}: is {name}, not a module file: compile it first: {shlex.join(command)}"
    )


def is_compiled(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a compiled module rather than a model.

    Raises:
        CompileError: it cannot be read.
    """
    return head_of(path).startswith(MODULE_MAGIC)
