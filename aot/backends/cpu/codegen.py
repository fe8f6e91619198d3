"""Compiles a variant's kernels to objects: from the cache, or with LLVM in this process or in
workers.

Owns what an object's key says, and when other processes are worth starting. The objects and their
order are the same however they were come by.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import field, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from aot.backends import sources
from aot.backends.cpu import compile as cpu
from aot.backends.cpu import llvm
from aot.backends.cpu.object_cache import ObjectCache, key_of
from aot.backends.cpu.workers import CrashedError, UnavailableError, Workers
from aot.base.records import dataclass
from aot.errors import InternalError
from aot.kernels.ir.fingerprint import fingerprint
from aot.kernels.ir.nodes import Kernel
from aot.link.code_image import is_linkable
from aot.options import CompileOptions, Progress
from aot.target.model import Target
from aot.target.toml import check_names

# LLVM takes about 1 us a byte of its text; starting a worker takes as long as 70 KB.
_POOL_BYTES = 320 << 10  # less text than this is not worth a process, where LLVM is loaded here
_WORKER_BYTES = 120 << 10  # text that is worth one more
# What turns a kernel into an object, beside the kernel, the target and LLVM.
_SOURCES = ("backends/cpu", "kernels", "ir", "target", "base")


@dataclass(frozen=True)
class Objects:
    """Compiled objects of some kernels.

    Attributes:
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
    """Compiles the objects of all variants of one compile; a context manager.

    Attributes:
        cache: where objects are kept.
        jobs: processes that may run LLVM at a time; with 1 it runs here.
    """

    cache: ObjectCache
    jobs: int
    _workers: Workers | None = field(default=None, init=False)
    _expected: str | None = field(default=None, init=False)
    _batch: _Batch | None = field(default=None, init=False)
    _stack: ExitStack = field(default_factory=ExitStack, init=False)

    @staticmethod
    def of(options: CompileOptions, cache: ObjectCache) -> CpuCodegen:
        """The code generator for these options; by default one job per processor."""
        return CpuCodegen(cache, options.jobs or processors())

    def __enter__(self) -> CpuCodegen:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None and self._expected is not None:
            self.cache.meet(self._expected)
        self._stack.__exit__(*error)  # type: ignore[arg-type]

    def expect(self, source: Any, options: CompileOptions) -> None:
        """Starts a worker that loads LLVM while this process reads the model, unless the model was
        compiled with these options before.
        """
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

    def begin(self, kernel: Kernel, target: Target) -> None:
        """Announces a kernel that `objects` will receive: writes its LLVM text while workers
        compile earlier ones.

        Raises:
            InternalError: a rule of kernel IR is broken.
        """
        batch = self._batch
        if batch is None:
            batch = self._batch = _Batch(self.cache.hits, self.cache.misses)
        if kernel in batch.keys:
            return
        # Without a cache texts tell which kernels are equal: kernels that are have one text.
        is_cached = self.cache.folder is not None
        key = object_key(kernel, target) if is_cached else f"{len(batch.keys)}"
        batch.keys[kernel] = key
        if key in batch.found or key in batch.missing:
            return
        data = self.cache.get(key, partial(is_linkable, target)) if is_cached else None
        if data is not None:
            batch.found[key] = data
            return
        if not batch.missing:
            if target.file:
                check_names(target)
            if self.jobs > 1 and not llvm.is_loaded():
                # A process costs what loading LLVM here would, and starts while text is written.
                self._hand_out((), target, 0)
        text = cpu.to_llvm(kernel, target)
        if text not in batch.texts:
            batch.texts[text] = _Text(kernel.name, text)
            batch.text_bytes += len(text)
        batch.missing[key] = batch.texts[text]
        if self._workers is not None or (self.jobs > 1 and batch.text_bytes >= _POOL_BYTES):
            self._hand_out(batch.texts.values(), target, batch.text_bytes)

    def objects(self, kernels: Sequence[Kernel], target: Target, progress: Progress) -> Objects:
        """The compiled objects of `kernels`, one each.

        Raises:
            InternalError: LLVM rejects what was emitted, or ends; of several, the first kernel's.
        """
        for kernel in kernels:
            self.begin(kernel, target)
        batch, self._batch = self._batch or _Batch(self.cache.hits, self.cache.misses), None
        found = batch.found
        done = len(kernels) - len(batch.missing)
        progress("codegen", done, len(kernels))
        for number, (key, text) in enumerate(batch.missing.items(), done + 1):
            if text.object is None:
                with cpu.blaming(text.name, target):
                    text.object = _result(text, target)
            progress("codegen", number, len(kernels))
            self.cache.put(key, text.object)
            found[key] = text.object
        is_cached = self.cache.folder is not None
        return Objects(
            tuple(found[batch.keys[kernel]] for kernel in kernels),
            self.cache.hits - batch.hits,
            self.cache.misses - batch.misses if is_cached else len(batch.texts),
            len(batch.texts),
        )

    def _hand_out(self, waiting: Collection[_Text], target: Target | None, text_bytes: int) -> None:
        """Gives texts to workers, and starts as many workers as the amount of text is worth."""
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
    """The LLVM IR of a kernel, or of several equal ones, with its object or the future one from a
    worker."""

    name: str
    text: str
    future: Future[bytes] | None = None
    object: bytes | None = None


@dataclass
class _Batch:
    """Kernels of one target that were announced, and the cache's counts before.

    Attributes:
        keys: of objects, by kernel.
        found: objects that the cache had, by key.
        missing: others' texts, by key.
        texts: the same, equal ones once.
    """

    hits: int
    misses: int
    keys: dict[Kernel, str] = field(default_factory=dict)
    found: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, _Text] = field(default_factory=dict)
    texts: dict[str, _Text] = field(default_factory=dict)
    text_bytes: int = 0


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
    """A digest that identifies a model without reading it; None where there is none."""
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
    """The cache key of an object: the kernel, the target, this compiler and its LLVM."""
    return key_of((fingerprint(kernel), _target_id(target), compiler_id()))


@lru_cache(maxsize=32)
def _target_id(target: Target) -> bytes:
    # Code generation may read any number of a target, but not what it is called.
    values = ((f.name, getattr(target, f.name)) for f in fields(target))
    unread = ("name", "summary", "aliases", "host", "file")
    return repr([v for v in values if v[0] not in unread]).encode()


@lru_cache(maxsize=1)
def compiler_id() -> bytes:
    """A digest of this compiler's code generation and its LLVM."""
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
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
