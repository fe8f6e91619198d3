"""The Python binding of the runtime: opens a module file and runs it, numpy in and out.

Calls the same C library that a phone runs, through ctypes. Owns no semantics: every check is the
runtime's, except turning names into indexes and numpy's dtypes into the runtime's.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref
from functools import cache
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aot.errors import RuntimeFailure
from aot.runtime.contents import metadata_of
from aot.runtime.fast_calls import FastCall, fast_call
from aot.runtime.protocols import Calling, Portable
from aot.runtime.tensors import (
    CTensor,
    CTensorInfo,
    Sized,
    Slot,
    TensorInfo,
    address_of,
    are_decided,
    check_writeable,
    tensor_info,
    text_of,
    to_array,
    to_numbers,
    to_strings,
)

LIBRARY_NAME = "libaot_runtime.so"
LIBRARY_VARIABLE = "AOT_RUNTIME_LIBRARY"
INTERFACE = 3  # AOT_INTERFACE of aot.h
MOST_THREADS = 256  # AOT_MOST_THREADS of aot.h

_DEVICES = {"auto": 0, "cpu": 1, "vulkan": 2}
_CODE_MAPPINGS = ("none", "mapped", "copied")
_UNKNOWN = (1 << 64) - 1  # UINT64_MAX of aot_program_info_t

_Size = ctypes.c_size_t
_Handle = ctypes.c_void_p
_OutHandle = POINTER(ctypes.c_void_p)


class _Error(ctypes.Structure):
    _fields_ = (("status", ctypes.c_int), ("message", ctypes.c_char * 508))


class _Allocator(ctypes.Structure):
    _fields_ = (
        ("user", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
    )


class _ModuleOptions(Sized):
    _fields_ = (
        ("allocator", _Allocator),
        ("copy", ctypes.c_bool),
        ("copy_code", ctypes.c_bool),
    )


class _ProgramOptions(Sized):
    _fields_ = (
        ("entry", ctypes.c_char_p),
        ("target", ctypes.c_char_p),
        ("device", ctypes.c_int),
        ("plan_count", ctypes.c_uint32),
        ("work_budget", ctypes.c_uint64),
        ("caller_outputs", ctypes.c_bool),
        ("threads", ctypes.c_uint32),
        ("profile", ctypes.c_void_p),
        ("profile_user", ctypes.c_void_p),
        ("vulkan", ctypes.c_void_p),
        ("parallel_for", ctypes.c_void_p),
        ("parallel_for_user", ctypes.c_void_p),
        ("memory_limit", ctypes.c_uint64),
    )


class _ProgramInfo(Sized):
    _fields_ = (
        ("entry", ctypes.c_char_p),
        ("target", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("variant", ctypes.c_uint32),
        ("code_mapping", ctypes.c_int),
        ("code_bytes", ctypes.c_uint64),
        ("arena_bytes", ctypes.c_uint64),
        ("scratch_bytes", ctypes.c_uint64),
        ("prepare_count", ctypes.c_uint64),
        ("arena_bound_bytes", ctypes.c_uint64),
        ("threads", ctypes.c_uint32),
        ("skipped", ctypes.c_char_p),
        ("memory_bytes", ctypes.c_uint64),
        ("most_memory_bytes", ctypes.c_uint64),
    )


class Cores(Sized):
    """The C struct aot_cores_t of aot/cores.h."""

    _fields_ = (
        ("threads", ctypes.c_uint32),
        ("leaves_slower", ctypes.c_bool),
        ("cpus", ctypes.c_uint64 * 16),
        ("reason", ctypes.c_char * 200),
    )


_OutError = POINTER(_Error)

# The functions of aot.h that are used here: result, then arguments.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "aot_runtime_version": (ctypes.c_char_p,),
    "aot_status_name": (ctypes.c_char_p, ctypes.c_int),
    "aot_module_open_path": (
        *(ctypes.c_int, ctypes.c_char_p, POINTER(_ModuleOptions), _OutError, _OutHandle),
    ),
    "aot_module_open_memory": (
        *(ctypes.c_int, ctypes.c_char_p, _Size, POINTER(_ModuleOptions), _OutError, _OutHandle),
    ),
    "aot_module_close": (None, _Handle),
    "aot_module_verify_rodata": (ctypes.c_int, _Handle, _OutError),
    "aot_program_create": (
        *(ctypes.c_int, _Handle, POINTER(_ProgramOptions), _OutError, _OutHandle),
    ),
    "aot_cores_find": (ctypes.c_int, ctypes.c_char_p, _OutError, POINTER(Cores)),
    "aot_cores_create_program": (
        *(ctypes.c_int, POINTER(Cores), _Handle, POINTER(_ProgramOptions), _OutError, _OutHandle),
    ),
    "aot_program_destroy": (ctypes.c_int, _Handle),
    "aot_program_get_info": (ctypes.c_int, _Handle, _OutError, POINTER(_ProgramInfo)),
    "aot_program_input_count": (_Size, _Handle),
    "aot_program_output_count": (_Size, _Handle),
    "aot_program_input_info": (POINTER(CTensorInfo), _Handle, _Size),
    "aot_program_output_info": (POINTER(CTensorInfo), _Handle, _Size),
    "aot_program_set_input": (ctypes.c_int, _Handle, _Size, POINTER(CTensor), _OutError),
    "aot_program_set_output": (*(ctypes.c_int, _Handle, _Size, ctypes.c_void_p, _Size, _OutError),),
    "aot_program_prepare": (ctypes.c_int, _Handle, _OutError),
    "aot_program_run": (ctypes.c_int, _Handle, _OutError),
    "aot_program_reset": (ctypes.c_int, _Handle, _OutError),
    "aot_program_set_cancelled": (ctypes.c_int, _Handle, ctypes.c_bool, _OutError),
    "aot_program_set_deadline": (ctypes.c_int, _Handle, ctypes.c_uint64, _OutError),
    "aot_program_get_update": (ctypes.c_bool, _Handle, _Size, POINTER(_Size)),
    "aot_program_state_count": (_Size, _Handle),
    "aot_program_state_info": (POINTER(CTensorInfo), _Handle, _Size),
    "aot_program_length": (ctypes.c_uint64, _Handle),
    "aot_program_capacity": (ctypes.c_uint64, _Handle),
    "aot_program_rewind": (ctypes.c_int, _Handle, ctypes.c_uint64, _OutError),
    "aot_program_save_state": (ctypes.c_int, _Handle, ctypes.c_char_p, _OutError),
    "aot_program_load_state": (ctypes.c_int, _Handle, ctypes.c_char_p, _OutError),
    "aot_program_get_output": (ctypes.c_int, _Handle, _Size, _OutError, POINTER(CTensor)),
}


def find_library() -> Path:
    """The path of the runtime's shared library.

    $AOT_RUNTIME_LIBRARY if set; else beside this package, or where an editable install has put it.

    Raises:
        RuntimeFailure: it is in none of these places; the message names them.
    """
    chosen = os.environ.get(LIBRARY_VARIABLE)
    if chosen:
        places = [Path(chosen)]
    else:
        folders = [Path(__file__).parents[1], Path(sysconfig.get_path("platlib")) / "aot"]
        places = [folder / "_runtime" / LIBRARY_NAME for folder in folders]
    for place in places:
        if place.is_file():
            return place
    looked = ", ".join(str(place) for place in places)
    raise RuntimeFailure(
        f"the runtime library is not there: {looked}; "
        f"install the package or set {LIBRARY_VARIABLE}",
        "not_found",
    )


def load_library() -> ctypes.CDLL:
    """The runtime's shared library, linked: once in a process.

    Raises:
        RuntimeFailure: as `find_library`.
    """
    return _library(find_library())


def load(
    source: str | os.PathLike[str] | bytes,
    device: str = "cpu",
    *,
    entry: str | None = None,
    target: str | None = None,
    threads: int | Literal["auto"] = 1,
    calling: Calling | None = None,
) -> Program:
    """Opens a module file, or the bytes of one, and makes a program of an entry point.

    Args:
        source: a path, which is mapped, or the file's bytes, which are copied.
        device: `"cpu"`, `"vulkan"` or `"auto"`, the first variant that runs here.
        entry: the entry point; the first one if None.
        target: the target whose variant must be used; the first that runs here if None.
        threads: threads that share the work on a CPU, the caller's included. They change no bit of
            a result. `"auto"`: one for each fast core, as `aot.runtime.cores.find` tells.
        calling: how the program is called; by names of arrays if None.

    Raises:
        RuntimeFailure: no such file, not a module, a wrong checksum, no variant for this machine,
            or the system starts no more threads.
    """
    return Program(source, device, entry=entry, target=target, threads=threads, calling=calling)


class _Place(NamedTuple):
    """What a program runs on: another device after one that failed."""

    target: str = ""
    device: str = ""
    skipped: str = ""
    code_mapping: str = "none"


class Program(Portable):
    """An entry point of a module, ready to run. Use it from any thread; calls take turns.

    Attributes:
        inputs: what it takes, in order.
        outputs: what it gives, in order.
        states: what it keeps from call to call; a dim that grows has its capacity as upper bound.
        entry: the entry point's name.
        threads: those that share the work, the caller's included.
        metadata: facts about the model that the module keeps, by key.
        updates: outputs that are what an input holds after a run, each with the input's name: the
            array that is given for it is written.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    states: tuple[TensorInfo, ...]

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        device: str = "cpu",
        *,
        entry: str | None = None,
        target: str | None = None,
        threads: int | Literal["auto"] = 1,
        calling: Calling | None = None,
    ) -> None:
        """See `load`."""
        self._calling = calling
        self._keep(source, device=device, entry=entry, target=target, threads=threads)
        self._module = ctypes.c_void_p()
        self._program = ctypes.c_void_p()
        self._lock = threading.Lock()
        self._last_place = _Place()
        if device not in _DEVICES:
            known = ", ".join(_DEVICES)
            raise RuntimeFailure(f"no device {device!r}, there are {known}", "argument")
        if threads != "auto" and not (isinstance(threads, int) and 1 <= threads <= MOST_THREADS):
            message = f"{threads} threads, expected 1 to {MOST_THREADS}, or auto"
            raise RuntimeFailure(message, "argument")
        self._library = load_library()
        try:
            self._open(source)
            self._create(_DEVICES[device], entry, target, threads)
            self.metadata = metadata_of(self._library, self._module)
        except BaseException:
            self.close()
            raise

    def _place(self) -> _Place:
        """What the program runs on; what it ran on last, if it is closed."""
        info = self._info()
        if info.target is not None:
            target, device, skipped = map(text_of, (info.target, info.device, info.skipped))
            mapping = _CODE_MAPPINGS[info.code_mapping]
            self._last_place = _Place(target, device, skipped, mapping)
        return self._last_place

    @property
    def target(self) -> str:
        """The target of the variant that runs: another one after a call for which a GPU failed."""
        return self._place().target

    @property
    def device(self) -> str:
        """`"cpu"` or `"vulkan"`: where the variant runs."""
        return self._place().device

    @property
    def code_mapping(self) -> str:
        """`"mapped"` from the file, `"copied"`, or `"none"` without machine code."""
        return self._place().code_mapping

    @property
    def skipped(self) -> str:
        """Why variants that stand before this one are not used; empty for the first."""
        return self._place().skipped

    def _open(self, source: str | os.PathLike[str] | bytes) -> None:
        if isinstance(source, bytes | bytearray | memoryview):
            data = bytes(source)
            options = _ModuleOptions(copy=True)
            self._call("aot_module_open_memory", data, len(data), byref(options), out=self._module)
        else:
            self._call("aot_module_open_path", os.fsencode(source), None, out=self._module)

    def _create(
        self,
        device: int,
        entry: str | None,
        target: str | None,
        threads: int | Literal["auto"],
    ) -> None:
        options = _ProgramOptions(
            entry=None if entry is None else entry.encode(),
            target=None if target is None else target.encode(),
            device=device,
            caller_outputs=True,
            threads=1 if threads == "auto" else threads,
        )
        if threads == "auto":
            found = Cores()
            self._call("aot_cores_find", None, out=found)
            arguments = byref(found), self._module, byref(options)
            self._call("aot_cores_create_program", *arguments, out=self._program)
        else:
            self._call("aot_program_create", self._module, byref(options), out=self._program)
        info = _ProgramInfo()
        self._call("aot_program_get_info", self._program, out=info)
        self.entry = text_of(info.entry)
        self.threads = max(int(info.threads), 1)
        self._place()
        self.inputs = self._tensors("input")
        self.outputs = self._tensors("output")
        self.states = self._tensors("state")
        self.updates = self._updates()
        self._taken = [Slot(info) for info in self.inputs]
        self._given = [Slot(info) for info in self.outputs]
        self._names = [info.name for info in self.inputs]
        self._output_names = [info.name for info in self.outputs]
        self._error = _Error()
        self._out_error = byref(self._error)
        # the outputs' shapes at the inputs' shapes of the last run, where these decide them
        self._are_decided = not self.states and are_decided(self.inputs, self.outputs)
        self._shapes: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] | None = None
        self._has_strings = any(info.strings is not None for info in self.outputs)
        self._fast: FastCall | None = None
        self._written = [n for n, i in enumerate(self.inputs) if i.name in self.updates.values()]
        have_strings = any(info.strings is not None for info in (*self.inputs, *self.outputs))
        self._is_plain = self._are_decided and not have_strings and not self._written

    def _tensors(self, kind: str) -> tuple[TensorInfo, ...]:
        count = getattr(self._library, f"aot_program_{kind}_count")(self._program)
        find = getattr(self._library, f"aot_program_{kind}_info")
        return tuple(tensor_info(find(self._program, i).contents) for i in range(count))

    def _updates(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for index, output in enumerate(self.outputs):
            number = _Size()
            if self._library.aot_program_get_update(self._program, index, byref(number)):
                found[output.name] = self.inputs[number.value].name
        return found

    def _call(self, name: str, *arguments: Any, out: Any = None) -> None:
        error = _Error()
        outs = () if out is None else (byref(out),)
        status = getattr(self._library, name)(*arguments, byref(error), *outs)
        if status != 0:
            raise self._failure(error, status)

    def _failure(self, error: _Error, status: int, advice: str = "") -> RuntimeFailure:
        name = text_of(self._library.aot_status_name(status))
        return RuntimeFailure(text_of(error.message) + advice, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs once: arrays by input name in, new arrays by output name out.

        Inputs are one mapping by name, or arguments in the order of `inputs` or by name. Arrays
        must have the input's dtype; plain numbers and lists are converted. A program of a
        `torch.nn.Module` that was compiled in this process takes the module's arguments and gives
        what the module returns.

        Raises:
            RuntimeFailure: a name is missing or unknown, a dtype or shape is wrong, or the run
                failed.
        """
        names = self._names
        is_simple = self._fast is not None and len(args) == 1 and not kwargs
        if is_simple and type(args[0]) is dict and (quick := self._quick(args[0])) is not None:
            return quick
        is_by_name = len(args) == 1 and not kwargs and isinstance(args[0], Mapping)
        if self._calling is not None and not (is_by_name and set(args[0]) == set(names)):
            arrays, call = self._calling.bind(args, kwargs)
            results = self.run([arrays[name] for name in names])
            return self._calling.returned(self._by_name(results), call)
        inputs = args[0] if is_by_name else self._named(names, args, kwargs)
        if len(inputs) != len(names) or any(name not in inputs for name in names):
            missing = [name for name in names if name not in inputs]
            unknown = [name for name in inputs if name not in names]
            found = [f"missing {_quoted(missing)}"] if missing else []
            found += [f"unknown {_quoted(unknown)}"] if unknown else []
            have = _quoted(names) or "none"
            raise RuntimeFailure(f"inputs: {', '.join(found)}; the program has {have}", "not_found")
        return self._by_name(self.run([inputs[name] for name in names]))

    def _named(
        self, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Arguments by the names of inputs."""
        if len(args) > len(names):
            raise RuntimeFailure(
                f"{len(args)} inputs, the program has {len(self.inputs)}", "argument"
            )
        found = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name in found:
                raise RuntimeFailure(f'input "{name}" is given twice', "argument")
            found[name] = value
        return found

    def _by_name(self, results: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return dict(zip(self._output_names, results, strict=True))

    def run(self, inputs: Sequence[ArrayLike]) -> list[NDArray[Any]]:
        """Runs once: arrays in the order of `inputs` in, new arrays in the order of `outputs` out.
        Arrays of inputs that `updates` names are written.

        Raises:
            RuntimeFailure: as for a call.
        """
        if len(inputs) != len(self.inputs):
            raise RuntimeFailure(
                f"{len(inputs)} inputs, the program has {len(self.inputs)}", "argument"
            )
        if (quick := self._quick(list(inputs))) is not None:
            return quick  # type: ignore[no-any-return]
        others: dict[str, int] = {}
        arrays = [
            to_array(slot, value)
            if slot.numbers is None
            else to_numbers(slot.info.name, slot.numbers, value, others)
            for slot, value in zip(self._taken, inputs, strict=True)
        ]
        for number in self._written:
            check_writeable(self.inputs[number], inputs[number])
        library = self._library
        with self._lock:
            program, error, out_error = self._program, self._error, self._out_error
            if not program:
                raise RuntimeFailure("the program is closed", "argument")
            for index, (slot, array) in enumerate(zip(self._taken, arrays, strict=True)):
                slot.point_to(array)
                status = library.aot_program_set_input(program, index, slot.reference, out_error)
                if status != 0:
                    from aot.runtime.mismatches import advice

                    raise self._failure(error, status, advice(slot.info, array))
            before = self._shapes
            found = [
                self._bind_output(index, shape) for index, shape in enumerate(self._planned(arrays))
            ]
            if (status := library.aot_program_run(program, out_error)) != 0:
                raise self._failure(error, status)
            for number in self._written:
                if arrays[number] is not inputs[number]:
                    inputs[number][...] = arrays[number]  # type: ignore[index]
            if self._is_plain and self._shapes is before:  # a shape that comes again
                address = ctypes.addressof(error)
                names = self._names, self._output_names
                self._fast = fast_call(library, program.value or 0, address, arrays, found, names)
            if not self._are_decided:
                found = [self._as_run(index, result) for index, result in enumerate(found)]
        if not self._has_strings:
            return found
        return [
            result if info.strings is None else to_strings(info.strings, result, others)
            for info, result in zip(self.outputs, found, strict=True)
        ]

    def _quick(self, arrays: Any) -> Any:
        """The results for arrays, in a list or by name, that are as those before; else None."""
        with self._lock:
            found = None if self._fast is None else self._fast.run(arrays)
            if type(found) is int:
                raise self._failure(self._error, found)
        return found

    def _planned(self, arrays: Sequence[NDArray[Any]]) -> list[tuple[int, ...]]:
        """The outputs' shapes as far as they are known before a run, which is prepared for that
        where its inputs' shapes are other ones than the last time."""
        taken = [array.shape for array in arrays]
        if self._shapes is not None and self._shapes[0] == taken:
            return self._shapes[1]
        status = self._library.aot_program_prepare(self._program, self._out_error)
        if status != 0:
            raise self._failure(self._error, status)
        shapes = [self._shape_of(index) for index in range(len(self._given))]
        if self._are_decided:
            self._shapes = taken, shapes
        return shapes

    def _as_run(self, index: int, result: NDArray[Any]) -> NDArray[Any]:
        """An output's memory in the shape that the run gave it, where data decide that."""
        if self._given[index].shape is not None:
            return result
        shape = self._shape_of(index)
        return result if shape == result.shape else result.reshape(-1)[: prod(shape)].reshape(shape)

    def _bind_output(self, index: int, shape: tuple[int, ...]) -> NDArray[Any]:
        slot, library = self._given[index], self._library
        try:
            result = np.empty(shape, slot.dtype)
        except (MemoryError, ValueError) as failure:  # numpy: too large for memory, for an array
            name, dtype = self.outputs[index].name, np.dtype(slot.dtype)
            raise RuntimeFailure(
                f"output {name!r}: no memory for {dtype.name}{list(shape)}", "memory"
            ) from failure
        status = library.aot_program_set_output(
            self._program, index, address_of(result), result.nbytes, self._out_error
        )
        if status != 0:
            raise self._failure(self._error, status)
        return result

    def _shape_of(self, index: int) -> tuple[int, ...]:
        """The shape of an output, if it is known before a run."""
        slot = self._given[index]
        if slot.shape is not None:
            return slot.shape
        status = self._library.aot_program_get_output(
            self._program, index, self._out_error, slot.reference
        )
        if status != 0:
            raise self._failure(self._error, status)
        return tuple(slot.tensor.dims[: slot.tensor.rank])

    @property
    def arena_bytes(self) -> int:
        """Memory that intermediate values take now, the largest plan's so far."""
        return int(self._info().arena_bytes)

    @property
    def arena_bound_bytes(self) -> int | None:
        """The most that they take at any shape; None where not every dim is bounded."""
        bound = int(self._info().arena_bound_bytes)
        return None if bound == _UNKNOWN else bound

    @property
    def prepare_count(self) -> int:
        """How often shapes were new, so that a plan was made for them."""
        return int(self._info().prepare_count)

    def _info(self) -> _ProgramInfo:
        with self._lock:
            info = _ProgramInfo()
            if self._program:
                self._call("aot_program_get_info", self._program, out=info)
            return info

    def reset(self) -> None:
        """Makes the state what it was before the first call: zero, and empty where it grows.

        Raises:
            RuntimeFailure: the program is closed.
        """
        self._call_open("aot_program_reset")

    @property
    def state_length(self) -> int:
        """How many rows the states have that grow, the longest of them; 0 where none does."""
        with self._lock:
            return int(self._library.aot_program_length(self._program)) if self._program else 0

    @property
    def state_capacity(self) -> int:
        """How many rows they can have; 0 where none grows."""
        with self._lock:
            return int(self._library.aot_program_capacity(self._program)) if self._program else 0

    def rewind(self, length: int) -> None:
        """Makes the states that grow as long as they were when they had `length` rows.

        Raises:
            RuntimeFailure: one is shorter, or the program keeps what has no earlier value. Nothing
                has changed then.
        """
        if length < 0:
            raise RuntimeFailure(f"cannot rewind to {length}", "argument")
        self._call_open("aot_program_rewind", length)

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Writes the state to a file, all of it or nothing.

        Raises:
            RuntimeFailure: the file can't be written, or the program runs on a GPU.
        """
        self._call_open("aot_program_save_state", os.fsencode(path))

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Makes the state what `save_state` wrote, of the same module, variant and entry point.

        Raises:
            RuntimeFailure: the file is no such state, or damaged. The state is as it was then.
        """
        self._call_open("aot_program_load_state", os.fsencode(path))

    def _call_open(self, name: str, *arguments: object) -> None:
        with self._lock:
            if not self._program:
                raise RuntimeFailure("the program is closed", "argument")
            self._call(name, self._program, *arguments)

    def verify_rodata(self) -> None:
        """Checks the checksum of the weights, which loading leaves out.

        Raises:
            RuntimeFailure: it is wrong; the message says which part.
        """
        with self._lock:
            if not self._module:
                raise RuntimeFailure("the program is closed", "argument")
            self._call("aot_module_verify_rodata", self._module)

    def close(self) -> None:
        """Releases everything; the program can't be used any more. Does nothing the second time."""
        self._place()
        with self._lock:
            self._fast = None
            if self._program:
                self._library.aot_program_destroy(self._program)
                self._program = ctypes.c_void_p()
            if self._module:
                self._library.aot_module_close(self._module)
                self._module = ctypes.c_void_p()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # An __init__ that failed early has left nothing to close.
        if hasattr(self, "_lock"):
            self.close()


@cache
def _library(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise RuntimeFailure(f"cannot load the runtime library {path}: {error}", "io") from error
    if not hasattr(library, "aot_runtime_interface") or (
        library.aot_runtime_interface() != INTERFACE
    ):
        raise RuntimeFailure(
            f"the runtime library {path} is of another version than this package: install the "
            "package again",
            "version",
        )
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
