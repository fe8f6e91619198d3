"""What sharing code saves on the reference models: a table in docs/use/models.md.

    python benchmarks/models.py            prints the table
    python benchmarks/models.py --write    writes docs/use/models.md as well

Every model is compiled twice at the shapes of its first run, with and without despecialising, one
after the other, so that seconds compare, which are of processor time; all else in the table is the
same on any machine.
"""

from __future__ import annotations

import time
from typing import Any

import model_table

TARGET = "x86-64-v4"
PAGE = model_table.ROOT / "docs" / "use" / "models.md"

HEAD = f"""# The reference models

Written by `python benchmarks/models.py --write`: each of the models that
`python samples/model_zoo.py` lists, at the shapes of its first run, for `{TARGET}` and
`--optimize balanced`.

* *dispatches*: launches and copies of one inference
* *equal*, *despecialised*, *emitted*: executables after merging equal ones, after making
  parameters of extents, and after merging equal code; in brackets a goal for *despecialised*,
  which kernels miss that would take more code as one
* *IREE*: executables and KiB of code that IREE 3.13 makes of the same file, where it was tried
* *code*: KiB of machine code without and with despecialising
* *seconds*: of processor time of the whole compile in one process, likewise
* *arena*: bytes that intermediate values take, over the most that are live at once

| model | ops | dispatches | equal | despecialised | emitted | IREE | code | seconds | arena |
|---|---|---|---|---|---|---|---|---|---|
"""

# how many executables a model should have at most
MOST = {
    "resnet50_rw": 12,
    "squeezenet_rw": 10,
    "shufflenet_rw": 14,
    "yolov8n_320": 20,
    "ppocr_det": 24,
    "ppocr_rec": 24,
    "ppocr_cls": 24,
    "minilm_l3": 9,
    "densenet121_rw": 20,
}
# IREE 3.13's default level for a CPU: unique kernels, and KiB of code where the file is the same
IREE: dict[str, tuple[int, int | None]] = {
    "resnet50_rw": (36, 306),
    "squeezenet_rw": (29, 396),
    "shufflenet_rw": (34, 116),
    "yolov8n_320": (83, 756),
    "ppocr_det": (88, 459),
    "ppocr_rec": (59, 206),
    "ppocr_cls": (66, 267),
    "magika": (16, 26),
    "minilm_l3": (13, None),
}


def compiled(name: str, *, despecialise: bool) -> tuple[dict[str, Any], float]:
    """The statistics of one compile, and its seconds of processor time."""
    import model_zoo

    import aot

    feeds = model_zoo.feeds(name, 1)
    shapes = {key: array.shape for key, array in feeds.items()}
    start = time.process_time()
    module = aot.compile(
        model_zoo.fetch(name),
        targets=[TARGET],
        input_shapes=shapes,
        disable=() if despecialise else ("despecialise",),
        cache=False,
        jobs=1,
    )
    section: dict[str, Any] = module.stats["variants"][0]
    return section, time.process_time() - start


def row(name: str) -> str:
    """A model's line of the table."""
    (alone, without), (shared, with_it) = (compiled(name, despecialise=on) for on in (False, True))
    levels = shared["executables"]
    kept = [levels[level]["kept"] for level in ("structural", "despecialised", "emitted")]
    code = [s["code_bytes"] / 1024 for s in (alone, shared)]
    bound = shared["arena_lower_bound_bytes"]
    arena = f"{shared['arena_bytes'] / bound:.3f}" if bound else "-"
    equal, despecialised, emitted = kept
    most = f" ({MOST[name]})" if name in MOST else ""
    theirs, size = IREE.get(name, (None, None))
    cells = [
        name,
        shared["ops"],
        shared["dispatches"],
        equal,
        f"{despecialised}{most}",
        emitted,
        "-" if theirs is None else f"{theirs}" if size is None else f"{theirs}, {size}",
        f"{code[0]:.0f} -> {code[1]:.0f}",
        f"{without:.1f} -> {with_it:.1f}",
        arena,
    ]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    model_table.main(__doc__.split("\n", 1)[0], PAGE, HEAD, row)
