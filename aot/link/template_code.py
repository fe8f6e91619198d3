"""Code of chat templates: what Jinja's names become, and an assembler of functions.

Owns the tables of filters, tests and methods that a module's interpreter has (runtime/text), with
their parameters, and how instructions are laid out; their meaning is `template_compiler`'s. The
numbers are those of module.fbs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import chain

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.link import module_fbs as fbs

Op = fbs.TemplateOp
MAIN = 0xFFFFFFFF  # the function that is around the outermost one
HEADER_WORDS = 8
MOST_OPERAND = (1 << 24) - 1
# What the interpreter has: values on its stack, variables of a function, functions around one.
MOST_STACK, MOST_SLOTS, MOST_LEVELS = 2048, 0x7FFE, 64


class Unkept(CompileError):
    """Why a template can't be code: the part of Jinja that it uses, by name."""


def _numbers(enum: type) -> dict[str, int]:
    return {name.lower().rstrip("_"): n for name, n in vars(enum).items() if name.isupper()}


# The parameters of filters, as Jinja names them; the last of `tojson` as transformers has it.
FILTERS: dict[str, tuple[str, ...]] = {
    "default": ("default_value", "boolean"),
    "dictsort": ("case_sensitive", "by", "reverse"),
    "float": ("default",),
    "indent": ("width", "first", "blank"),
    "int": ("default", "base"),
    "join": ("d", "attribute"),
    "max": ("case_sensitive", "attribute"),
    "min": ("case_sensitive", "attribute"),
    "replace": ("old", "new", "count"),
    "sort": ("reverse", "case_sensitive", "attribute"),
    "sum": ("attribute", "start"),
    "tojson": ("ensure_ascii", "indent", "separators", "sort_keys"),
    "trim": ("chars",),
    "unique": ("case_sensitive", "attribute"),
}
FILTER_NUMBERS = _numbers(fbs.TemplateFilter)
FILTER_ALIASES = {"count": "length", "d": "default", "e": "escape"}

TEST_NUMBERS = _numbers(fbs.TemplateTest)
TEST_ARGUMENTS = dict.fromkeys(
    ("divisibleby", "eq", "ge", "gt", "in", "le", "lt", "ne", "sameas"), ("other",)
)
TEST_ALIASES = {
    "==": "eq",
    "equalto": "eq",
    "!=": "ne",
    ">": "gt",
    "greaterthan": "gt",
    ">=": "ge",
    "<": "lt",
    "lessthan": "lt",
    "<=": "le",
}

METHOD_NUMBERS = _numbers(fbs.TemplateMethod)
# The parameters of methods; those that Python takes by position only have no name.
METHODS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("count", "endswith", "find", "index", "rfind", "startswith"), ("", "", "")),
    **dict.fromkeys(("join", "partition", "removeprefix", "removesuffix", "rpartition"), ("",)),
    **dict.fromkeys(("lstrip", "rstrip", "strip"), ("",)),
    **dict.fromkeys(("split", "rsplit"), ("sep", "maxsplit")),
    "get": ("", ""),
    "replace": ("", "", ""),
    "splitlines": ("keepends",),
}
ANY_ARGUMENTS = ("cycle",)

# The attributes that Python's types have, as `a.b` finds them before what an object holds.
_TEXT_NAMES = (
    "capitalize casefold center count encode endswith expandtabs find format format_map index "
    "isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace "
    "istitle isupper join ljust lower lstrip maketrans partition removeprefix removesuffix replace "
    "rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title "
    "translate upper zfill"
)
_NAMES = {
    fbs.TemplateNames.TEXT: _TEXT_NAMES.split(),
    fbs.TemplateNames.LIST: ["copy", "count", "index"],
    fbs.TemplateNames.TUPLE: ["count", "index"],
    fbs.TemplateNames.MAP: ["copy", "fromkeys", "get", "items", "keys", "values"],
}
# Those that change an object: Jinja's immutable sandbox says that they are undefined.
_CHANGING = {
    fbs.TemplateNames.LIST: [
        "append",
        "clear",
        "extend",
        "insert",
        "pop",
        "remove",
        "reverse",
        "sort",
    ],
    fbs.TemplateNames.MAP: ["clear", "pop", "popitem", "setdefault", "update"],
}


def names_mask(name: str) -> int:
    """The types that have an attribute of this name, as ATTRIBUTE and ITEM have them."""
    mask = sum(1 << kind for kind, names in _NAMES.items() if name in names)
    return mask | sum(256 << kind for kind, names in _CHANGING.items() if name in names)


@dataclass(frozen=True)
class TemplateCode:
    """A compiled template: words, and the texts that they name."""

    words: tuple[int, ...]
    texts: tuple[bytes, ...]


# What instructions do to the stack where their operands do not matter.
_PUSHED = {
    **dict.fromkeys((Op.MISSING, Op.UNDEFINED, Op.NONE, Op.TRUE, Op.FALSE, Op.INT, Op.FLOAT), 1),
    **dict.fromkeys((Op.TEXT, Op.TUCK, Op.SLOT, Op.GLOBAL, Op.END_CAPTURE, Op.NEXT, Op.MACRO), 1),
    **dict.fromkeys((Op.POP, Op.STORE, Op.ITEM, Op.IF_FALSE, Op.AND, Op.OR, Op.WRITE, Op.FOR), -1),
    **dict.fromkeys((Op.APPEND, *range(Op.ADD, Op.NOT_IN + 1)), -1),
    **dict.fromkeys((Op.SET_ATTRIBUTE, Op.MAP_ATTRIBUTE), -2),
    Op.SLICE: -3,
}


def _pushed(op: int, operand: int, words: Sequence[object]) -> int:
    if op == Op.UNPACK:
        return operand - 1
    if op in (Op.LIST, Op.TUPLE, Op.CONCAT):
        return 1 - operand
    if op == Op.MAP:
        return 1 - 2 * operand
    if op in (Op.FILTER, Op.MAP_FILTER, Op.SELECT, Op.TEST, Op.METHOD):
        return -operand
    if op == Op.CALL:
        return -operand - (len(words) - 1)
    return _PUSHED.get(op, 0)


@dataclass
class Label:
    """A place in a function's code.

    Attributes:
        at: its word; None until it is placed.
        depth: of the stack there; None until something jumps there.
    """

    at: int | None = None
    depth: int | None = None


@dataclass
class Assembler:
    """The instructions of one function.

    Attributes:
        words: instructions; a label stands for its place.
        parent: the number of the function around it.
        parameters: texts of their names; the first `positional` ones may be given without.
        slots: that it has.
        depth, most: of the stack, now and at most.
        is_reached: whether what is emitted now is ever run.
        captures: that are open.
    """

    parent: int = MAIN
    parameters: tuple[int, ...] = ()
    positional: int = 0
    words: list[int | Label] = field(default_factory=list)
    slots: int = 0
    depth: int = 0
    most: int = 0
    is_reached: bool = True
    captures: int = 0

    def emit(self, op: int, operand: int = 0, *words: int | Label) -> None:
        """Adds an instruction; where nothing runs it, it is left out."""
        if not self.is_reached:
            return
        if not 0 <= operand <= MOST_OPERAND:
            raise Unkept("it has more parts than a module keeps")
        self.words += [op | operand << 8, *words]
        # What these jump with: AND and OR keep their value, SLOT has pushed one.
        kept = {Op.AND: 0, Op.OR: 0, Op.SLOT: 1, Op.IF_FALSE: -1}.get(op, 0)
        for label in (word for word in words if isinstance(word, Label)):
            label.depth = self.depth + kept
        self.depth += 0 if op == Op.SLOT else _pushed(op, operand, words)
        self.most = max(self.most, self.depth + (op == Op.SLOT))
        if op in (Op.JUMP, Op.RETURN):
            self.is_reached = False

    def place(self, label: Label) -> None:
        """Lets a label stand for what is emitted next."""
        label.at = len(self.words)
        if label.depth is not None and not self.is_reached:
            self.depth, self.is_reached = label.depth, True

    def new_slot(self) -> int:
        self.slots += 1
        return self.slots - 1


def assembled(functions: Sequence[Assembler], texts: Sequence[bytes]) -> TemplateCode:
    """The code of functions, the outermost first: their number; of each the first word of its
    instructions and the one behind them, its slots, the most values on its stack, its parameters,
    those that have a position, the first word of their names, the function around it; names;
    instructions, in which labels are words of all of it."""
    if any(f.most > MOST_STACK or f.slots > MOST_SLOTS for f in functions):
        raise Unkept("it has more parts than a module keeps")
    names_at = 1 + HEADER_WORDS * len(functions)
    begin = names_at + sum(len(f.parameters) for f in functions)
    words: list[int] = [len(functions)]
    bodies: list[int] = []
    for function in functions:
        at = begin + len(bodies)
        own = [word if isinstance(word, int) else at + (word.at or 0) for word in function.words]
        bodies += own
        words += [at, at + len(own), function.slots, function.most, len(function.parameters)]
        words += [function.positional, names_at, function.parent]
        names_at += len(function.parameters)
    names = chain.from_iterable(f.parameters for f in functions)
    return TemplateCode((*words, *names, *bodies), tuple(texts))
