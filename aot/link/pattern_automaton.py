"""Deterministic automata of the patterns that text is cut by; they match as backtracking does.

A state is a list of nodes in the order in which backtracking tries them; a node that matches hides
those behind it. A lookahead of one character is decided by that character. Longer ones are decided
by an automaton that reads the text backward and leaves bits for each place; so is where a match
begins, if much may be read in vain before that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from aot.base.records import dataclass
from aot.errors import UnsupportedError
from aot.text import characters, patterns
from aot.text.characters import COUNT, CharSet
from aot.text.patterns import Ahead, Chars, Choice, Node, Repeat

MOST_STATES = 1 << 12
_MOST_NODES = 20_000
_MOST_VISITS = 1 << 22  # of nodes: the work, 40 times that of llama.cpp's largest pattern
_MOST_AHEAD = 3  # longer looks ahead of a pattern

Table = NDArray[np.uint16]


@dataclass
class _Node:
    """A node of the automaton without determinism.

    Attributes:
        kind: "set", "split", "ahead" (of one character), "look" (of more) or "match".
        number: of the set, or of the look.
        next: the nodes behind it, those first that are tried first.
    """

    kind: str
    next: tuple[int, ...] = ()
    number: int = 0
    is_negative: bool = False


@dataclass
class Automaton:
    """Tables of a pattern; state 1 is the first, and 0 has no way on.

    Attributes:
        forward: u16[states, symbols]: the next state * 2, + 1 where a match ends before the
            symbol. A symbol is class << looks | bits; the end of the text is a class too, the last.
        backward: u16[states, classes + 1]: the next state, and in the last column the state's
            bits: of each lookahead, and then, with `has_start`, of whether a match begins here. A
            state has read the text from its end; state 0 is the first.
        looks: how many of the bits are of lookaheads.
        has_start: whether the last bit is of a match that begins.
    """

    forward: Table
    backward: Table = field(default_factory=lambda: np.empty((0, 0), np.uint16))
    looks: int = 0
    has_start: bool = False


class Sets:
    """The character sets in a vocabulary's patterns. Characters that are in the same sets form a
    class: no pattern tells them apart."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._sets: list[CharSet] = []
        self.number(characters.everything())  # so that there is one

    def number(self, members: CharSet) -> int:
        key = members.edges.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._sets)
            self._sets.append(members)
        return self._numbers[key]

    def classes(self) -> tuple[NDArray[np.uint8], list[list[bool]]]:
        """(the class of each character, whether a set has the members of a class).

        Raises:
            UnsupportedError: there are more than 255 classes.
        """
        points = np.unique(np.concatenate([[0], *(own.edges for own in self._sets)]))
        members = np.array([own.has(points) for own in self._sets])
        kinds, numbers = np.unique(members, axis=1, return_inverse=True)
        if kinds.shape[1] > 255:
            raise UnsupportedError("the patterns are not supported:", ["more than 255 classes"])
        lengths = np.diff(np.append(points, COUNT))
        return np.repeat(numbers.reshape(-1).astype(np.uint8), lengths), kinds.tolist()


class Nodes:
    """The automaton of a pattern, without determinism: built from its end to its start."""

    def __init__(self, root: Node, sets: Sets) -> None:
        self.sets = sets
        self.nodes: list[_Node] = []
        self.looks: list[int] = []
        self.start = self.build(root, self.add("match"))

    def add(self, kind: str, *behind: int, number: int = 0, is_negative: bool = False) -> int:
        if len(self.nodes) == _MOST_NODES:
            raise UnsupportedError("the pattern is not supported:", ["it is too large"])
        self.nodes.append(_Node(kind, behind, number, is_negative))
        return len(self.nodes) - 1

    def build(self, node: Node, behind: int) -> int:
        match node:
            case Chars():
                return self.add("set", behind, number=self.sets.number(node.members))
            case patterns.Sequence():
                for part in reversed(node.parts):
                    behind = self.build(part, behind)
                return behind
            case Choice():
                return self.add("split", *[self.build(part, behind) for part in node.parts])
            case Repeat():
                return self.repeat(node, behind)
            case Ahead():
                return self.ahead(node, behind)

    def repeat(self, node: Repeat, behind: int) -> int:
        first = behind
        if node.most is None:
            first = self.add("split", behind)
            body = self.build(node.part, first)
            self.nodes[first].next = (behind, body) if node.is_lazy else (body, behind)
        for _ in range((node.most or node.least) - node.least):
            body = self.build(node.part, first)
            first = self.add("split", *((behind, body) if node.is_lazy else (body, behind)))
        for _ in range(node.least):
            before, first = first, self.build(node.part, first)
            if first == before:
                break  # the part is the empty text, which nests without bound
        return first

    def ahead(self, node: Ahead, behind: int) -> int:
        part = node.part
        if isinstance(part, Choice) and all(isinstance(own, Chars) for own in part.parts):
            part = Chars(patterns.first_set(part))
        if isinstance(part, Chars):
            number = self.sets.number(part.members)
            return self.add("ahead", behind, number=number, is_negative=node.is_negative)
        if len(self.looks) == _MOST_AHEAD:
            raise UnsupportedError("the pattern is not supported:", ["more looks ahead"])
        number = len(self.looks)
        self.looks.append(-1)
        self.looks[number] = self.build(part, self.add("match"))
        if len(self.looks) > number + 1:
            raise UnsupportedError("the pattern is not supported:", ["a look ahead inside another"])
        return self.add("look", behind, number=number, is_negative=node.is_negative)


class _Reader:
    """What nodes do at a symbol.

    Attributes:
        members: whether a set has the members of a class.
        end: the class of the end of the text.
    """

    def __init__(self, nodes: Nodes, members: list[list[bool]], end: int) -> None:
        self.nodes = nodes.nodes
        self.members = [[*own, False] for own in members]
        self.end = end
        self.visits = 0

    def step(self, state: Sequence[int], kind: int, bits: int) -> tuple[bool, tuple[int, ...]]:
        """(whether a match ends here, the next state) of a list of nodes before a class.

        Raises:
            UnsupportedError: the automaton takes too much work.
        """
        found: dict[int, None] = {}
        seen: set[int] = set()
        stack = list(reversed(state))
        self.visits += 1
        if self.visits > _MOST_VISITS:
            raise UnsupportedError("the pattern is not supported:", ["it is too large"])
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            self.visits += 1
            node = self.nodes[at]
            if node.kind == "match":
                return True, tuple(found)
            if node.kind == "set":
                if self.members[node.number][kind]:
                    found[node.next[0]] = None
            elif self.passes(node, kind, bits):
                stack.extend(reversed(node.next))
        return False, tuple(found)

    def passes(self, node: _Node, kind: int, bits: int) -> bool:
        if node.kind == "ahead":
            return self.members[node.number][kind] != node.is_negative
        if node.kind == "look":
            return bool(bits >> node.number & 1) != node.is_negative
        return True


def make_automaton(nodes: Nodes, members: list[list[bool]], class_count: int) -> Automaton:
    """The deterministic automaton of a pattern.

    Raises:
        UnsupportedError: it has too many states.
    """
    reader = _Reader(nodes, members, class_count)
    looks = len(nodes.looks)
    symbols = [(kind, bits) for kind in range(class_count + 1) for bits in range(1 << looks)]
    states: dict[tuple[int, ...], int] = {(): 0, (nodes.start,): 1}
    order = [(), (nodes.start,)]
    rows: list[list[int]] = []
    for own in order:  # which grows
        row = []
        for kind, bits in symbols:
            is_match, following = reader.step(own, kind, bits)
            if kind == class_count:
                following = ()
            if following not in states:
                if len(states) == MOST_STATES:
                    raise UnsupportedError("the pattern is not supported:", ["it is too large"])
                states[following] = len(states)
                order.append(following)
            row.append(states[following] * 2 + is_match)
        rows.append(row)
    forward = np.array(rows, np.uint16)
    found = Automaton(forward, looks=looks, has_start=_reads_in_vain(forward))
    if looks or found.has_start:
        found.backward = _backward(nodes, reader, class_count, has_start=found.has_start)
    return found


def _reads_in_vain(forward: Table) -> bool:
    """Whether the first state reaches a loop in which no match ends."""
    edges = [sorted({e >> 1 for e in row if e > 1 and not e & 1}) for row in forward.tolist()]
    # States without a way on are taken away, and then those that lead to these alone.
    left = [len(own) for own in edges]
    before: list[list[int]] = [[] for _ in edges]
    for state, own in enumerate(edges):
        for following in own:
            before[following].append(state)
    stack = [state for state, count in enumerate(left) if count == 0]
    while stack:
        for state in before[stack.pop()]:
            left[state] -= 1
            if left[state] == 0:
                stack.append(state)
    return left[1] > 0


def _backward(nodes: Nodes, reader: _Reader, class_count: int, *, has_start: bool) -> Table:
    """The automaton that reads a text from its end: its states are the sets of nodes from which a
    match is ahead."""
    looks = len(nodes.looks)
    wanted = [i for i, node in enumerate(nodes.nodes) if node.kind == "set"]
    places = sorted({nodes.nodes[i].next[0] for i in wanted})

    def leads(at: int, kind: int, bits: int, alive: frozenset[int]) -> bool:
        is_match, following = reader.step((at,), kind, bits)
        return is_match or not alive.isdisjoint(following)

    def state_at(kind: int, alive: frozenset[int]) -> tuple[frozenset[int], int]:
        bits = sum(leads(at, kind, 0, alive) << i for i, at in enumerate(nodes.looks))
        own = frozenset(at for at in places if leads(at, kind, bits, alive))
        start = has_start and leads(nodes.start, kind, bits, alive)
        return own, bits | start << looks

    states = {state_at(class_count, frozenset()): 0}
    order = list(states)
    rows = []
    for alive, bits in order:  # which grows
        row = []
        for kind in range(class_count):
            following = state_at(kind, alive)
            if following not in states:
                if len(states) == MOST_STATES:
                    raise UnsupportedError("the pattern is not supported:", ["it is too large"])
                states[following] = len(states)
                order.append(following)
            row.append(states[following])
        rows.append([*row, bits])
    return np.array(rows, np.uint16)
