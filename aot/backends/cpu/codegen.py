"""Objects of a variant's kernels: from the cache where it has them, else by LLVM, here or beside.

Owns what an object's key says, and when other processes are worth starting. The objects and their
order are the same however they were come by.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from aot.backends import sources
from aot.backends.cpu import compile as cpu
from aot.backends.cpu import llvm
from aot.backends.cpu.object_cache import ObjectCache, key_of
from aot.backends.cpu.workers import CrashedError, UnavailableError, Workers
from aot.errors import InternalError
from aot.kernels.ir.fingerprint import fingerprint
from aot.kernels.ir.nodes import Kernel
from aot.options import CompileOptions, Progress
from aot.target.model import Target
from aot.target.toml import check_names

# LLVM takes about 1 us a byte of its text; starting a worker takes as long as 70 KB.
_POOL_BYTES = 320 << 10  # less text than this is not worth a process, where LLVM is loaded here
_WORKER_BYTES = 120 << 10  # text that is worth one more
# What turns a kernel into an object, beside the kernel, the target and LLVM.
_SOURCES = ("backends/cpu", "kernels", "ir", "target")


@dataclass(frozen=True)
class Objects:
    """Attributes:
    data: an ELF object for each kernel, in order.
    hits, misses: kernels whose object the cache had, and had not.
    llvm_calls: kernels that LLVM compiled.
    """

    data: tuple[bytes, ...]
    hits: int
    misses: int
    llvm_calls: int


@dataclass
class CpuCodegen:
    """Makes the objects of one compile, of all its variants; a context manager.

    Attributes:
        cache: where objects are kept.
        jobs: processes that may run LLVM at a time; with 1 it runs here.
    """

    cache: ObjectCache
    jobs: int
    _workers: Workers | None = field(default=None, init=False)
    _expected: str | None = field(default=None, init=False)
    _calls: int = field(default=0, init=False)  # of LLVM
    _stack: ExitStack = field(default_factory=ExitStack, init=False)

    @staticmethod
    def of(options: CompileOptions) -> CpuCodegen:
        """As the options say; no more jobs than the machine has processors by default."""
        cache = ObjectCache.at(options.cache_dir) if options.cache else ObjectCache(None)
        return CpuCodegen(cache, options.jobs or processors())

    def __enter__(self) -> CpuCodegen:
        self._stack.callback(self.cache.close)
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None and self._expected is not None:
            self.cache.meet(self._expected)
        self._stack.__exit__(*error)  # type: ignore[arg-type]

    def expect(self, source: Any, options: CompileOptions) -> None:
        """Starts a process for LLVM where the model, which is not read yet, has not been compiled
        with these options: it starts while this one is busy with the model."""
        if self.jobs == 1 or llvm.is_loaded():
            return
        model = _model_id(source)
        if model is None:
            return
        if self.cache.folder is not None:
            key = key_of((model, repr(options).encode(), compiler_id()))
            if self.cache.has_met(key):
                return
            self._expected = key
        self._hand_out((), None, 0)

    def objects(self, kernels: Sequence[Kernel], target: Target, progress: Progress) -> Objects:
        """An object for each of `kernels`.

        Raises:
            InternalError: LLVM rejects what was emitted, or ends; of several, the first kernel's.
        """
        hits, misses = self.cache.hits, self.cache.misses
        # Without a cache texts tell which kernels are equal: kernels that are have one text.
        is_cached = self.cache.folder is not None
        keys = [object_key(k, target) if is_cached else f"{n}" for n, k in enumerate(kernels)]
        found: dict[str, bytes] = {}
        missing: dict[str, Kernel] = {}
        for key, kernel in zip(keys, kernels, strict=True):
            if key in found or key in missing:
                continue
            data = self.cache.get(key) if is_cached else None
            if data is None:
                missing[key] = kernel
            else:
                found[key] = data
        if missing and target.file:
            check_names(target)
        done = len(kernels) - len(missing)
        calls = self._calls
        progress("codegen", done, len(kernels))
        for number, (key, data) in enumerate(self._compile(missing, target), done + 1):
            progress("codegen", number, len(kernels))
            self.cache.put(key, data)
            found[key] = data
        return Objects(
            tuple(found[key] for key in keys),
            self.cache.hits - hits,
            self.cache.misses - misses if is_cached else self._calls - calls,
            self._calls - calls,
        )

    def _compile(self, missing: dict[str, Kernel], target: Target) -> Iterator[tuple[str, bytes]]:
        """The objects in order. Text is written here while workers, if any, compile."""
        waiting: dict[str, _Text] = {}
        order: list[tuple[str, _Text]] = []
        text_bytes = 0
        if missing and self.jobs > 1 and not llvm.is_loaded():
            # A process costs what loading LLVM here would, and starts while text is written.
            self._hand_out((), target, text_bytes)
        for key, kernel in missing.items():
            text = cpu.to_llvm(kernel, target)
            if text not in waiting:
                waiting[text] = _Text(kernel.name, text)
                text_bytes += len(text)
                self._calls += 1
            order.append((key, waiting[text]))
            if self._workers is not None or (self.jobs > 1 and text_bytes >= _POOL_BYTES):
                self._hand_out(waiting.values(), target, text_bytes)
        for key, made in order:
            if made.object is None:
                with cpu.blaming(made.name, target):
                    made.object = _result(made, target)
            yield key, made.object

    def _hand_out(self, waiting: Collection[_Text], target: Target | None, text_bytes: int) -> None:
        """Gives workers what is not given yet, and starts as many as the text is worth."""
        with contextlib.suppress(UnavailableError):
            workers = self._workers or Workers(self.jobs)
            worth = max(1, min(len(waiting), text_bytes // _WORKER_BYTES))
            while workers.count < worth:
                if not workers.start():
                    break
            if self._workers is None:
                self._workers = self._stack.enter_context(workers)
            for text in waiting:
                if text.future is None and target is not None:
                    text.future = workers.submit(
                        text.text, cpu.machine_of(target), cpu.FUNCTION_NAME
                    )
            return
        self.jobs = 1


@dataclass
class _Text:
    """The LLVM IR of a kernel, or of equal ones; its object, and that to come from a worker."""

    name: str
    text: str
    future: Future[bytes] | None = None
    object: bytes | None = None


def _result(text: _Text, target: Target) -> bytes:
    if text.future is not None:
        try:
            return text.future.result()
        except UnavailableError:
            pass  # it is made here then
        except CrashedError as error:
            raise InternalError(f"kernel {text.name} for {target.name}: {error}") from error
    return llvm.to_object(text.text, cpu.machine_of(target), cpu.FUNCTION_NAME)


def _model_id(source: Any) -> bytes | None:
    """What distinguishes a model from others, as far as is known without reading it."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).digest()
    if not isinstance(source, (str, os.PathLike)):
        return None
    try:
        path = os.path.realpath(source)
        facts = Path(path).stat()
    except (OSError, ValueError):
        return None
    return f"{path} {facts.st_size} {facts.st_mtime_ns}".encode(errors="surrogateescape")


def object_key(kernel: Kernel, target: Target) -> str:
    """What an object depends on, as a key: the kernel, the target, this compiler and its LLVM."""
    return key_of((fingerprint(kernel), _target_id(target), compiler_id()))


@lru_cache(maxsize=32)
def _target_id(target: Target) -> bytes:
    # Code generation may read any number of a target, but not what it is called.
    values = ((f.name, getattr(target, f.name)) for f in fields(target))
    return repr([v for v in values if v[0] not in ("name", "summary", "file")]).encode()


@lru_cache(maxsize=1)
def compiler_id() -> bytes:
    """This compiler's code generation and its LLVM, by content."""
    digest = hashlib.sha256(sources.digest(*_SOURCES))
    # LLVM is asked for nothing here: where every object is found it is not even loaded.
    found = importlib.util.find_spec("llvmlite")
    if found is not None and found.origin is not None:
        folder = Path(found.origin).parent
        digest.update((folder / "_version.py").read_bytes())
        for library in sorted((folder / "binding").glob("*llvmlite*")):
            digest.update(f"{library.name} {library.stat().st_size}".encode())
    return digest.digest()


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
