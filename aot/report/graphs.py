"""The drawing of a program's graph in a report: a box for each dispatch, a line for each value.

Layout after Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system
structures" (1981): layers by longest path, boxes of a layer in the order of their operands'
barycentres. Boxes are elements of SVG, never text, so that no name can end one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup

from aot.base.records import dataclass
from aot.report.numbers import readable

MOST_NODES = 600
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 170, 34, 22, 26, 8
_LETTERS = 25  # of a name that a box has room for


@dataclass(frozen=True)
class Node:
    """A dispatch.

    Attributes:
        title: the model's node at its root, or its ops.
        subtitle: its ops.
        reads: (number of the dispatch that makes a value, the value's type).
    """

    number: int
    title: str
    subtitle: str
    reads: Sequence[tuple[int, str]]


def graph(nodes: Sequence[Node]) -> Markup | None:
    """The drawing, from the first dispatch at the top to the last; None of fewer than two nodes, or
    of more than can be read."""
    if not 2 <= len(nodes) <= MOST_NODES:
        return None
    places, width, height = _places(nodes)
    root = Element("svg", {"viewBox": f"0 0 {width} {height}", "class": "graph", "role": "img"})
    root.set("width", str(width))
    root.set("height", str(height))
    root.set("aria-label", "dispatches, and which reads what of which")
    for node in nodes:
        for source, what in node.reads:
            if source in places:
                _draw_edge(root, places[source], places[node.number], what)
    for node in nodes:
        _draw_node(root, node, places[node.number])
    return Markup(tostring(root, encoding="unicode"))  # which has escaped what is not ours


def _places(nodes: Sequence[Node]) -> tuple[Mapping[int, tuple[int, int]], int, int]:
    """(left and top of each node by its number, width, height)."""
    layers: dict[int, list[Node]] = defaultdict(list)
    depth: dict[int, int] = {}
    for node in nodes:
        known = [depth[source] for source, _ in node.reads if source in depth]
        # what reads inputs or joined values alone stands below what was made before it
        depth[node.number] = 1 + max(known or depth.values(), default=-1)
        layers[depth[node.number]].append(node)
    widest = max(len(layer) for layer in layers.values())
    middle: dict[int, float] = {}
    places = {}
    for layer, found in sorted(layers.items()):
        found.sort(key=lambda node: (_barycentre(node, middle, widest / 2), node.number))
        first = (widest - len(found)) / 2
        for place, node in enumerate(found):
            middle[node.number] = first + place
            left = MARGIN + round((first + place) * (BOX_WIDTH + GAP_X))
            places[node.number] = left, MARGIN + layer * (BOX_HEIGHT + GAP_Y)
    width = 2 * MARGIN + widest * (BOX_WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + len(layers) * (BOX_HEIGHT + GAP_Y) - GAP_Y
    return places, width, height


def _barycentre(node: Node, middle: Mapping[int, float], otherwise: float) -> float:
    known = [middle[source] for source, _ in node.reads if source in middle]
    return sum(known) / len(known) if known else otherwise


def _draw_edge(root: Element, source: tuple[int, int], to: tuple[int, int], what: str) -> None:
    """Draws a curve; one that skips layers goes around the boxes between them."""
    x1, y1 = source[0] + BOX_WIDTH // 2, source[1] + BOX_HEIGHT
    x2, y2 = to[0] + BOX_WIDTH // 2, to[1]
    skips = (y2 - y1) > GAP_Y + BOX_HEIGHT
    out = BOX_WIDTH * 0.68 if skips else 0
    bend = (y2 - y1) // 2 if not skips else GAP_Y
    path = f"M{x1} {y1}C{x1 + out:.0f} {y1 + bend} {x2 + out:.0f} {y2 - bend} {x2} {y2}"
    line = SubElement(root, "path", {"class": "edge", "d": path})
    SubElement(line, "title").text = readable(what)


def _draw_node(root: Element, node: Node, place: tuple[int, int]) -> None:
    left, top = place
    group = SubElement(root, "g", {"class": "node", "data-number": str(node.number)})
    title = f"{node.number} {node.title}\n{node.subtitle}"
    SubElement(group, "title").text = readable(title[:600])
    size = {"width": str(BOX_WIDTH), "height": str(BOX_HEIGHT), "rx": "5"}
    SubElement(group, "rect", {"x": str(left), "y": str(top), **size})
    lines = (f"{node.number} {node.title}", node.subtitle)
    for number, text in enumerate(lines):
        at = {"x": str(left + 7), "y": str(top + 14 + 13 * number)}
        made = SubElement(group, "text", {**at, "class": "sub"} if number else at)
        short = text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"
        made.text = readable(short)
