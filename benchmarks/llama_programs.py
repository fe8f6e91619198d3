"""Small C programs beside llama.cpp's libraries, as its packages have them, without a build.

    npm pack @node-llama-cpp/linux-x64 && tar xzf node-llama-cpp-linux-x64-*.tgz

Headers of the libraries' version are in the sources of llama.cpp, and in those of llama-cpp-python
(vendor/llama.cpp).
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


def built(
    source: Path,
    libraries: Path,
    headers: Path,
    folder: Path,
    compiler: Sequence[str] = ("cc", "-O3", "-march=native"),
) -> Path:
    """A program in `folder`, made of one file of C, that finds the libraries where they are.

    Args:
        libraries: the folder of lib*.so of the package, absolute.
        headers: the folder of llama.cpp's sources.
    """
    program = folder / source.stem
    names = [next(libraries.glob(f"lib{n}.*so")).name for n in ("llama", "ggml", "ggml-base")]
    command = [*compiler, str(source), "-o", str(program)]
    command += [f"-I{headers / part}" for part in ("include", "ggml/include")]
    command += [f"-L{libraries}", *(f"-l:{name}" for name in names)]
    command += [f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined"]
    subprocess.run(command, check=True)
    return program
