"""`python -m aot.runtime`: where the C runtime of this installation is, for build systems.

cmake -S . -B build -Daot_runtime_DIR="$(python -m aot.runtime --cmakedir)"
PKG_CONFIG_PATH="$(python -m aot.runtime --pkgconfigdir)" pkg-config --cflags --libs aot_runtime
"""

from __future__ import annotations

import argparse
import sys

from aot.errors import RuntimeFailure
from aot.runtime.loader import find_library

FOLDERS = {
    "cmakedir": ("cmake", "of aot_runtime-config.cmake, for find_package(aot_runtime)"),
    "pkgconfigdir": ("pkgconfig", "of aot_runtime.pc"),
    "includedir": ("include", "of the headers: aot/aot.h and those beside it"),
    "libdir": (".", "of libaot_runtime.a and libaot_runtime.so"),
}


def main() -> int:
    """Prints each folder that is asked for on a line of its own; exit status 1 where one is
    missing, as in a checkout that was not installed."""
    parser = argparse.ArgumentParser(
        prog="python -m aot.runtime", description="Prints where the C runtime is installed."
    )
    for option, (_, help) in FOLDERS.items():
        parser.add_argument(f"--{option}", action="store_true", help=f"the folder {help}")
    given = parser.parse_args()
    asked = [option for option in FOLDERS if getattr(given, option)]
    if not asked:
        parser.error(f"one of {', '.join(f'--{option}' for option in FOLDERS)} is required")
    try:
        root = find_library().parent
    except RuntimeFailure as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for option in asked:
        folder = (root / FOLDERS[option][0]).resolve()
        if not folder.is_dir():
            sys.stderr.write(f"{folder} is missing: install the package (pip install aotc)\n")
            return 1
        sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
