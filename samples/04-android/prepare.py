"""Makes what the app is built from: the module as an asset, and the runtime as a source package.

    python prepare.py                            for phones and emulators, into app/src/main
    python prepare.py --target x86-64-v2 -o DIR  for other targets, elsewhere

Gradle calls it before a build. Nothing of what it writes is checked in.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aot
from aot.packaging import package

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from model_zoo import FetchError, fetch  # noqa: E402

# What stays open: the page's size in steps of 32, how long a line is. The app shrinks larger pages:
# 960 is PP-OCR's own limit, up to which a GPU can do all of it.
SHAPES = {
    "det": (1, 3, "32*h<=960", "32*w<=960"),
    "cls": (1, 3, 48, 192),
    "rec": (1, 3, 48, "W<=4096"),
}
# The first that runs on the device is taken: its GPU, else what its CPU has. The last one is for
# emulators on desktops.
TARGETS = ("vulkan-android-2022", "aarch64-android-dotprod", "aarch64-android", "x86-64-v2")
MODULE = "read_text.aotm"


def compile_module(targets: Sequence[str]) -> aot.CompiledModule:
    """The three models as one module, each with a variant a target."""
    models = {}
    for name, shape in SHAPES.items():
        models[name] = aot.compile(
            fetch(f"ppocr_{name}"), targets=list(targets), input_shapes={"x": shape}
        )
        print(f"{name}: {len(models[name].to_bytes()):,} bytes")
    return aot.merge(models)


def characters() -> str:
    """What the recogniser's classes mean, one a line: nothing, its dictionary, a space."""
    import onnx

    model = onnx.load(fetch("ppocr_rec"), load_external_data=False)
    (found,) = (p.value for p in model.metadata_props if p.key == "character")
    return "\n".join(["", *found.split("\n"), " "])


def prepare(folder: Path, targets: Sequence[str]) -> None:
    """Writes `assets` and `cpp/package` to the folder."""
    assets, sources = folder / "assets", folder / "cpp" / "package"
    for made in (assets, sources):
        shutil.rmtree(made, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        module = Path(temporary) / MODULE
        compile_module(targets).save(module)
        package(module, "source", sources)
    assets.mkdir(parents=True)
    # The package's, which has no notes for tools in it
    bytes_ = Path(shutil.copyfile(sources / MODULE, assets / MODULE)).stat().st_size
    (assets / "characters.txt").write_text(characters(), encoding="utf-8")
    print(f"{assets / MODULE}: {bytes_:,} bytes for {', '.join(targets)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", action="append", metavar="NAME", help="repeatable")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "app/src/main", metavar="DIR")
    options = parser.parse_args()
    prepare(options.output, options.target or TARGETS)


if __name__ == "__main__":
    try:
        main()
    except (aot.AotError, FetchError, OSError) as error:
        sys.exit(f"error: {error}")
