"""The runtime's libFuzzer targets (runtime/tests/fuzz): the table of them, their builds, and runs.

    python tests/support/fuzzers.py build FOLDER       # OSS-Fuzz's layout; $CC, $CFLAGS as it says
    python tests/support/fuzzers.py run NAME [--runs N] [--seconds S] [--seed N] [--corpus FOLDER]
                                             [--quick]

A run prints how many inputs there were, how many edges they cover, and which part of the edges the
last third of the inputs has added. A quick one does not look at what is compared, which takes most
of the time: for many inputs from a corpus that an ordinary one has left.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import fuzz_seeds as seeds
from tests.support.paths import RUNTIME
from tests.support.runtime_build import SANITIZE, build, library_sources

FOLDER = RUNTIME / "tests" / "fuzz"
# No code of a module runs, and segments are taken whatever their checksums.
MODE = ["-DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION", "-DAOT_VULKAN=1"]
INCLUDES = [f"-I{RUNTIME / folder}" for folder in ("drivers/vulkan", "text")]
NO_LINK = [*SANITIZE, "-fsanitize=fuzzer-no-link"]
# Edges alone: libFuzzer's other hooks, at each comparison, take more time than the code.
QUICK = [*SANITIZE, "-fsanitize-coverage=inline-8bit-counters,pc-table"]
LIBRARIES = ("-lpthread", "-ldl")
MOST_SECONDS = 5  # of one input
MOST_MEGABYTES = 2048  # of the process
# Vulkan's handles are pointers in the fake device, and 64 bits wide elsewhere.
HANDLES = ("conversion", "int-conversion", "int-to-pointer-cast", "pointer-to-int-cast")
WIDE_HANDLES = [f"-Wno-{warning}" for warning in HANDLES]
KERNEL = "/usr/include/x86_64-linux-gnu"  # headers of Linux, the same for 32 bits
NARROW = ["-m32", "-idirafter", KERNEL, *WIDE_HANDLES]


def module_sources() -> list[Path]:
    """The library, with a fake Vulkan in the place of the system's."""
    drivers = sorted(RUNTIME.glob("drivers/vulkan/*.c"))
    others = [path for path in drivers if path.name != "system_posix.c"]
    return [*library_sources(), *others, FOLDER / "fake_vulkan.c"]


def _cache_sources() -> list[Path]:
    drivers = [
        RUNTIME / f"drivers/vulkan/{name}.c" for name in ("cache", "start", "system_posix", "tell")
    ]
    own = [RUNTIME / f"src/{name}.c" for name in ("alloc", "os_posix", "status", "xxh64")]
    return [*drivers, *own]


def _npy_sources() -> list[Path]:
    own = [RUNTIME / f"src/{name}.c" for name in ("sizes", "status")]
    return [RUNTIME / "tools/npy.c", *own]


@dataclass(frozen=True)
class Fuzzer:
    """A target.

    Attributes:
        source: the file in runtime/tests/fuzz.
        seeds: whole inputs.
        most_bytes: of an input.
        module: the module that it runs, for those that need one.
        sources: what it is linked with.
        flags: of the compiler, beside those of all.
    """

    source: str
    seeds: Callable[[], Iterable[bytes]]
    most_bytes: int
    module: Callable[[], bytes] | None = None
    sources: Callable[[], list[Path]] = module_sources
    flags: tuple[str, ...] = ()


FUZZERS: dict[str, Fuzzer] = {
    "module": Fuzzer("fuzz_module.c", seeds.module_seeds, 100_000),
    "module-32": Fuzzer("fuzz_module.c", seeds.module_seeds, 100_000, flags=tuple(NARROW)),
    "state-growing": Fuzzer(
        "state/fuzz_state.c", seeds.growing_state_seeds, 2000, seeds.growing_module
    ),
    "state-mixed": Fuzzer("state/fuzz_state.c", seeds.mixed_state_seeds, 2000, seeds.mixed_module),
    "text": Fuzzer("text/fuzz_text.c", seeds.text_seeds, 40_000),
    "template": Fuzzer("template/fuzz_template.c", seeds.template_seeds, 20_000),
    "chat": Fuzzer("chat/fuzz_chat.c", seeds.chat_seeds, 200, seeds.chat_module),
    "cache": Fuzzer("cache/fuzz_cache.c", seeds.cache_seeds, 2000, sources=_cache_sources),
    "npy": Fuzzer("npy/fuzz_npy.c", seeds.npy_seeds, 4000, sources=_npy_sources),
}


def dictionary(name: str) -> Path | None:
    """Words of the format; None where there are none, as a mutator of its own has them."""
    path = FOLDER / "dictionaries" / f"{name.partition('-')[0]}.dict"
    return path if path.exists() else None


# ---- builds ----


def _objects(sources: Sequence[Path], flags: Sequence[str], compiler: Sequence[str]) -> list[Path]:
    """Each source's object, of which fuzzers share the library's."""

    def made(source: Path) -> Path:
        name = f"{source.parent.name}-{source.stem}.o"
        found = build(name, [source], [*flags, "-c"], compiler)
        if found is None:
            raise FileNotFoundError(compiler[0])
        return found

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(made, sources))


def build_fuzzer(
    name: str,
    compiler: Sequence[str] = ("clang",),
    flags: Sequence[str] = NO_LINK,
    engine: Sequence[str] = ("-fsanitize=fuzzer",),
) -> Path:
    """A target by its name, linked with an engine.

    Raises:
        RuntimeError: the compiler's own message.
        FileNotFoundError: there is no compiler.
    """
    fuzzer = FUZZERS[name]
    own = [*INCLUDES, *MODE, *fuzzer.flags, *flags]
    objects = _objects([*fuzzer.sources(), FOLDER / fuzzer.source], own, compiler)
    narrow = [flag for flag in fuzzer.flags if flag.startswith("-m")]
    found = build(f"aot-fuzz-{name}", objects, [*narrow, *flags, *engine], compiler, LIBRARIES)
    assert found is not None
    return found


@cache
def fuzzer_path(name: str, *, is_quick: bool = False) -> Path:
    """A target under ASan and UBSan; skips the test where clang or its libFuzzer is missing."""
    try:
        return build_fuzzer(name, flags=QUICK if is_quick else NO_LINK)
    except (RuntimeError, FileNotFoundError) as error:
        missing = ("libclang_rt", "bits/", "gnu/stubs-32.h", "cannot find")
        if isinstance(error, RuntimeError) and not any(word in str(error) for word in missing):
            raise
        pytest.skip(f"clang with libFuzzer is not installed for {name}")


def write_inputs(name: str, folder: Path) -> Path:
    """Writes seeds to a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(FUZZERS[name].seeds()):
        (folder / f"{number:04}").write_bytes(data)
    return folder


def write_layout(folder: Path) -> None:
    """Everything as OSS-Fuzz wants it in $OUT: targets, seeds, dictionaries, options, modules."""
    compiler = shlex.split(os.environ.get("CC", "clang"))
    flags = shlex.split(os.environ.get("CFLAGS", "")) or NO_LINK
    engine = shlex.split(os.environ.get("LIB_FUZZING_ENGINE", "")) or ["-fsanitize=fuzzer"]
    folder.mkdir(parents=True, exist_ok=True)
    for name, fuzzer in FUZZERS.items():
        if "-m32" in fuzzer.flags and os.environ.get("ARCHITECTURE", "x86_64") != "i386":
            continue  # OSS-Fuzz builds everything for i386 in a build of its own
        path = folder / f"aot-fuzz-{name}"
        shutil.copy(build_fuzzer(name, compiler, flags, engine), path)
        with zipfile.ZipFile(f"{path}_seed_corpus.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for number, data in enumerate(fuzzer.seeds()):
                archive.writestr(f"{number:04}", data)
        options = ["[libfuzzer]", f"max_len = {fuzzer.most_bytes}", f"timeout = {MOST_SECONDS}"]
        if (words := dictionary(name)) is not None:
            shutil.copy(words, f"{path}.dict")
            options.append(f"dict = {path.name}.dict")
        Path(f"{path}.options").write_text("\n".join(options) + "\n")
        if fuzzer.module is not None:
            Path(f"{path}.aotm").write_bytes(fuzzer.module())


# ---- runs ----


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes:
        status: of the process; 0 where nothing was found.
        runs: inputs.
        edges: that they cover.
        growth: the part of the edges that the last third of the inputs has added.
        log: what libFuzzer wrote.
    """

    status: int
    runs: int
    edges: int
    growth: float
    log: str


def outcome_of(status: int, log: str) -> Outcome:
    """Reads a log of libFuzzer's."""
    points = [(int(n), int(c)) for n, c in re.findall(r"^#(\d+)\s+\w+ +cov: (\d+)", log, re.M)]
    ends = [int(n) for n in re.findall(r"^Done (\d+) runs", log, re.M)]
    runs = max([0, *ends, *(n for n, _ in points)])
    edges = max((c for _, c in points), default=0)
    before = max((c for n, c in points if 3 * n <= 2 * runs), default=0)
    return Outcome(status, runs, edges, (edges - before) / max(edges, 1), log)


def run(
    name: str,
    seed: int,
    *,
    runs: int = -1,
    seconds: int = 0,
    corpus: Path | None = None,
    environment: dict[str, str] | None = None,
    is_quick: bool = False,
) -> Outcome:
    """Runs a target from its seeds; what it finds, it leaves in the corpus' folder, or says."""
    binary = fuzzer_path(name, is_quick=is_quick)
    fuzzer = FUZZERS[name]
    with TemporaryDirectory(prefix="aot-fuzz-") as folder:
        place = Path(folder)
        own = corpus or place / "corpus"
        own.mkdir(parents=True, exist_ok=True)
        command = [str(binary), str(own), str(write_inputs(name, place / "seeds"))]
        command += [f"-seed={seed}", f"-runs={runs}", f"-max_total_time={seconds}"]
        command += [f"-max_len={fuzzer.most_bytes}", f"-timeout={MOST_SECONDS}"]
        command += [f"-rss_limit_mb={MOST_MEGABYTES}", f"-artifact_prefix={corpus or place}/"]
        if is_quick:
            command.append("-entropic=0")
        if (words := dictionary(name)) is not None:
            command.append(f"-dict={words}")
        variables = os.environ | (environment or {})
        if fuzzer.module is not None:
            module = place / "module.aotm"
            module.write_bytes(fuzzer.module())
            variables["AOT_FUZZ_MODULE"] = str(module)
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    return outcome_of(done.returncode, done.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    layout = commands.add_parser("build")
    layout.add_argument("folder", type=Path)
    campaign = commands.add_parser("run")
    campaign.add_argument("name", choices=FUZZERS)
    campaign.add_argument("--runs", type=int, default=-1)
    campaign.add_argument("--seconds", type=int, default=0)
    campaign.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 31))
    campaign.add_argument("--corpus", type=Path)
    campaign.add_argument("--quick", action="store_true")
    words = parser.parse_args()
    if words.command == "build":
        write_layout(words.folder)
        return 0
    print(f"{words.name}: -seed={words.seed}", flush=True)
    limits = {"runs": words.runs, "seconds": words.seconds, "is_quick": words.quick}
    found = run(words.name, words.seed, corpus=words.corpus, **limits)
    print(f"{found.runs} runs, {found.edges} edges, last third +{found.growth:.3%}")
    if found.status != 0:
        print(found.log[-4000:])
    return found.status


if __name__ == "__main__":
    sys.exit(main())
