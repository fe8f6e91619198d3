"""The graph of a report: a layered drawing; and the page's script and layout, in Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.report import graphs
from aot.report.graphs import BOX_HEIGHT, BOX_WIDTH, MOST_NODES, Node
from aot.report.programs import kinds_of


def nodes(*reads: tuple[int, ...]) -> list[Node]:
    return [Node(n, f"node{n}", "conv", [(r, "f32[1]") for r in of]) for n, of in enumerate(reads)]


def places(svg: str) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for x, y in re.findall(r'<rect x="(\d+)" y="(\d+)"', svg)]


def test_layers_follow_the_longest_path_and_no_boxes_overlap() -> None:
    found = nodes((), (0,), (0,), (1, 2), (0, 3), ())
    drawn = str(graphs.graph(found))
    where = places(drawn)
    layers = sorted({y for _, y in where})
    assert [layers.index(y) for _, y in where] == [0, 1, 1, 2, 3, 4]
    for n, (x, y) in enumerate(where):
        for a, b in where[n + 1 :]:
            assert abs(x - a) >= BOX_WIDTH or abs(y - b) >= BOX_HEIGHT
    assert drawn.count('class="edge"') == 6
    width, height = (int(n) for n in re.findall(r'(?:width|height)="(\d+)"', drawn)[:2])
    assert all(x + BOX_WIDTH <= width and y + BOX_HEIGHT <= height for x, y in where)


def test_a_diamond_does_not_cross() -> None:
    """Branches stand in the order of what they read."""
    where = places(str(graphs.graph(nodes((), (0,), (0,), (2,), (1,)))))
    assert (where[1][0] < where[2][0]) == (where[4][0] < where[3][0])


def test_names_end_no_element() -> None:
    bad = Node(0, "</text><script>alert(1)</script>", "a & b", [])
    drawn = str(graphs.graph([bad, Node(1, "x", "y", [(0, "<f32>")])]))
    assert "<script" not in drawn and "&lt;script" in drawn and "&lt;f32&gt;" in drawn


def test_graphs_that_nobody_can_read_are_not_drawn() -> None:
    assert graphs.graph(nodes(())) is None
    assert graphs.graph(nodes(*[()] * (MOST_NODES + 1))) is None


def compiled() -> aot.CompiledModule:
    b = Builder()
    made = b.input("x", "f32[256, 64]")
    draw = np.random.default_rng(4)
    for n in range(7):
        weight = b.constant(draw.standard_normal((64, 64)).astype(np.float32))
        made = b.op("matmul", made, weight, origin=f"layer{n}" + "/of_a_long_name" * 6)
        made = b.op("softmax", made, axis=1, origin=f"norm{n}")
    b.output("y", made)
    return aot.compile(b.module(), targets=["x86-64-v3"], details=True, disable=["join-regions"])


def test_kinds_of_ops_add_up() -> None:
    module = compiled()
    assert module.details is not None
    (entry,) = module.details.variants[0].entries
    (image,) = module.image.variants[0].entry_points
    kinds = kinds_of(entry, image.launches)
    assert sum(k.count.value for k in kinds) == len(entry.dispatches)
    for key in ("flops", "bytes"):
        total = sum(getattr(launch, key) for launch in image.launches)
        assert sum(getattr(k, key).value for k in kinds) == total
    products = next(k for k in kinds if k.op == "matmul")
    assert products.count.value == 7 and kinds[0] == products


# ---- in a browser ----

WIDTHS = (360, 800, 1400)
# Loads the report in frames of each width, and tries its tools; writes what it found as text.
DRIVER = """<!DOCTYPE html><body><script>
const found = {widths: {}};
const load = (width) => new Promise((resolve) => {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  frame.onload = () => resolve(frame.contentDocument);
  frame.src = "report.html";
  document.body.append(frame);
});
const texts = (page) => [...page.querySelectorAll(".dispatches tbody > tr:not([hidden])")]
  .map((row) => row.cells[0].textContent.trim());
const say = (element, value) => {
  element.value = value;
  element.dispatchEvent(new Event("input", {bubbles: true}));
};
(async () => {
  for (const width of WIDTHS) {
    const page = await load(width);
    const root = page.documentElement;
    found.widths[width] = [root.clientWidth, root.scrollWidth];
  }
  const page = await load(1200);
  const head = page.querySelector(".dispatches th");
  found.order = texts(page);
  head.click();
  found.sorted = texts(page);
  const tools = page.querySelector(".dispatches").closest(".scroll").previousElementSibling;
  say(tools.querySelector("select"), "10");
  found.top = texts(page);
  say(tools.querySelector("select"), "0");
  say(tools.querySelector("input"), "LAYER3");
  found.filtered = texts(page);
  say(page.querySelector(".of-graph input"), "layer3");
  found.marked = page.querySelectorAll(".node.found").length;
  const before = page.querySelector("svg.graph").getBoundingClientRect().width;
  page.querySelector(".of-graph button").click();
  found.zoom = page.querySelector("svg.graph").getBoundingClientRect().width / before;
  document.body.textContent = "FOUND" + JSON.stringify(found) + "END";
})();
</script></body>"""


@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """Nothing is wider than the window at three widths; tools sort, filter, search and zoom."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed")
    compiled().save_report(tmp_path / "report.html")
    driver = tmp_path / "driver.html"
    driver.write_text(DRIVER.replace("WIDTHS", json.dumps(WIDTHS)))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-web-security"]
    command += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--virtual-time-budget=20000", "--window-size=1600,1000", "--dump-dom"]
    done = subprocess.run(
        [*command, driver.as_uri()], capture_output=True, text=True, check=True, timeout=240
    )
    text = re.search(r"FOUND(\{.*\})END", done.stdout)
    assert text is not None, done.stdout[-500:] + done.stderr[-500:]
    found: dict[str, Any] = json.loads(text[1])
    assert list(found["widths"]) == [str(width) for width in WIDTHS]
    for width, (room, taken) in found["widths"].items():
        assert taken == room and 0 <= int(width) - room <= 20  # of a scroll bar
    assert len(found["order"]) > 10 and found["order"] == sorted(found["order"], key=int)
    assert found["sorted"] == found["order"][::-1]
    assert found["top"] == found["sorted"][:10]
    assert len(found["filtered"]) == found["marked"] == 1
    assert found["zoom"] == pytest.approx(1.25, abs=0.01)
