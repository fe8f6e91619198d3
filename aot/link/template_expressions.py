"""Jinja's expressions as instructions: what a chat template computes.

Owns names and their scopes, and each kind of expression; statements are `template_compiler`'s.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any

from aot.base.records import dataclass
from aot.link import module_fbs as fbs
from aot.link.template_code import (
    ANY_ARGUMENTS,
    FILTER_ALIASES,
    FILTER_NUMBERS,
    FILTERS,
    METHOD_NUMBERS,
    METHODS,
    TEST_ALIASES,
    TEST_ARGUMENTS,
    TEST_NUMBERS,
    Assembler,
    Label,
    Op,
    Unkept,
    names_mask,
)

_BINARY = {
    "Add": Op.ADD,
    "Sub": Op.SUBTRACT,
    "Mul": Op.MULTIPLY,
    "Div": Op.DIVIDE,
    "FloorDiv": Op.FLOOR_DIVIDE,
    "Mod": Op.MODULO,
    "Pow": Op.POWER,
}
_UNARY = {"Neg": Op.NEGATE, "Pos": Op.POSITIVE, "Not": Op.NOT}
_COMPARED = {
    "eq": Op.EQUAL,
    "ne": Op.NOT_EQUAL,
    "lt": Op.LESS,
    "lteq": Op.LESS_EQUAL,
    "in": Op.IN,
    "gt": Op.GREATER,
    "gteq": Op.GREATER_EQUAL,
    "notin": Op.NOT_IN,
}
_FOREIGN = ("cycler", "joiner", "lipsum", "self")  # Jinja's, which no chat template needs
_REJECTS, _OF_ATTRIBUTE, _ITSELF = 1, 2, 4  # how SELECT selects


@dataclass
class Scope:
    """Names that are set in one place of a template.

    Attributes:
        slots: of the function, by name.
        level: how many functions are around it.
    """

    level: int
    parent: Scope | None
    slots: dict[str, int] = field(default_factory=dict)


class Expressions:
    """Compiles expressions into the running function.

    Attributes:
        code: of the running function.
        scope: the innermost one.
        texts: that instructions name, with their numbers.
    """

    def __init__(self) -> None:
        self.code = Assembler()
        self.scope = Scope(0, None)
        self.texts: dict[bytes, int] = {}

    def text(self, text: str) -> int:
        """The number of a text."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise Unkept("it has a text that is not UTF-8") from error
        return self.texts.setdefault(data, len(self.texts))

    def refuse(self, node: Any, what: str) -> Unkept:
        return Unkept(f"line {node.lineno} has {what}")

    def expression(self, node: Any) -> None:
        """Emits what pushes a value."""
        kind = type(node).__name__
        if kind in _BINARY:
            self._all((node.left, node.right))
            self.code.emit(_BINARY[kind])
        elif kind in _UNARY:
            self.expression(node.node)
            self.code.emit(_UNARY[kind])
        elif kind in _EXPRESSIONS:
            _EXPRESSIONS[kind](self, node)
        else:
            raise self.refuse(node, f"an expression of the kind {kind}")

    def _all(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            self.expression(node)

    # ---- values ----

    def constant(self, node: Any) -> None:
        self.value(node.value if type(node).__name__ == "Const" else node.data, node)

    def value(self, value: Any, node: Any) -> None:
        """Emits what pushes a constant."""
        emit = self.code.emit
        if value is None or isinstance(value, bool):
            emit({None: Op.NONE, True: Op.TRUE, False: Op.FALSE}[value])
        elif isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 63:
                raise self.refuse(node, "an integer of more than 64 bits")
            emit(Op.INT, 0, value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF)
        elif isinstance(value, float):
            emit(Op.FLOAT, 0, *struct.unpack("<II", struct.pack("<d", value)))
        elif isinstance(value, str):
            emit(Op.TEXT, self.text(value))
        else:
            raise self.refuse(node, f"a constant of type {type(value).__name__}")

    def name(self, node: Any) -> None:
        if node.name in _FOREIGN:
            raise self.refuse(node, f'the function "{node.name}"')
        self.named(node.name)

    def named(self, name: str) -> None:
        """Emits what pushes a variable: of the scopes from the inside out, the first one in which
        it is set; else one that was given."""
        end = Label()
        scope: Scope | None = self.scope
        while scope is not None:
            if name in scope.slots:
                up = self.scope.level - scope.level
                self.code.emit(Op.SLOT, scope.slots[name], up, end)
            scope = scope.parent
        self.code.emit(Op.GLOBAL, self.text(name))
        self.code.place(end)

    def sequence(self, node: Any) -> None:
        self._all(node.items)
        op = Op.LIST if type(node).__name__ == "List" else Op.TUPLE
        self.code.emit(op, len(node.items))

    def mapping(self, node: Any) -> None:
        for pair in node.items:
            self._all((pair.key, pair.value))
        self.code.emit(Op.MAP, len(node.items))

    # ---- parts ----

    def attribute(self, node: Any) -> None:
        self.expression(node.node)
        self.attribute_of(node, node.attr)

    def attribute_of(self, node: Any, name: str) -> None:
        if name.startswith("__"):
            raise self.refuse(node, f'the attribute "{name}"')
        self.code.emit(Op.ATTRIBUTE, self.text(name), names_mask(name))

    def item(self, node: Any) -> None:
        self.expression(node.node)
        if type(node.arg).__name__ == "Slice":
            for part in (node.arg.start, node.arg.stop, node.arg.step):
                self.expression(part) if part is not None else self.code.emit(Op.NONE)
            self.code.emit(Op.SLICE)
            return
        self.expression(node.arg)
        key = getattr(node.arg, "value", None)
        self.code.emit(Op.ITEM, 0, names_mask(key) if isinstance(key, str) else 0)

    # ---- what decides ----

    def both(self, node: Any) -> None:
        end = Label()
        self.expression(node.left)
        self.code.emit(Op.AND if type(node).__name__ == "And" else Op.OR, 0, end)
        self.expression(node.right)
        self.code.place(end)

    def choice(self, node: Any) -> None:
        other, end = Label(), Label()
        self.expression(node.test)
        self.code.emit(Op.IF_FALSE, 0, other)
        self.expression(node.expr1)
        self.code.emit(Op.JUMP, 0, end)
        self.code.place(other)
        if node.expr2 is None:
            self.code.emit(Op.UNDEFINED, self.text("the value of an if without else"))
        else:
            self.expression(node.expr2)
        self.code.place(end)

    def comparison(self, node: Any) -> None:
        emit = self.code.emit
        self.expression(node.expr)
        *chained, last = node.ops
        fails, end = Label(), Label()
        for part in chained:  # a < b < c: b is kept below the result
            self.expression(part.expr)
            emit(Op.TUCK)
            emit(_COMPARED[part.op])
            emit(Op.AND, 0, fails)
        self.expression(last.expr)
        emit(_COMPARED[last.op])
        if chained:
            emit(Op.JUMP, 0, end)
            self.code.place(fails)
            emit(Op.SWAP)
            emit(Op.POP)
            self.code.place(end)

    def concatenation(self, node: Any) -> None:
        self._all(node.nodes)
        self.code.emit(Op.CONCAT, len(node.nodes))

    # ---- calls ----

    def bound(
        self, node: Any, what: str, parameters: Sequence[str], given: Sequence[Any] | None = None
    ) -> int:
        """Emits the arguments of a call for each parameter; returns their number."""
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise self.refuse(node, f"{what} with arguments from a list")
        own = list(node.args if given is None else given)
        named = {word.key: word.value for word in node.kwargs}
        if len(own) > len(parameters):
            raise self.refuse(node, f"{what} with {len(own)} arguments")
        for number, name in enumerate(parameters):
            value = own[number] if number < len(own) else named.pop(name, None)
            self.code.emit(Op.MISSING) if value is None else self.expression(value)
        if named:
            raise self.refuse(node, f'{what} with the argument "{min(named)}"')
        return len(parameters)

    def call(self, node: Any) -> None:
        target = node.node
        if type(target).__name__ == "Getattr" and self._is_method(target):
            self.expression(target.node)
            name = target.attr
            what = f'the method "{name}"'
            if name in ANY_ARGUMENTS:
                count = self.bound(node, what, [""] * len(node.args))
            else:
                count = self.bound(node, what, METHODS.get(name, ()))
            self.code.emit(Op.METHOD, count, METHOD_NUMBERS[name])
            return
        self.expression(target)
        self.arguments(node)

    def _is_method(self, target: Any) -> bool:
        name = target.attr
        if name in METHOD_NUMBERS:
            return True
        if names_mask(name) & 0xFF or name == "changed":
            raise self.refuse(target, f'the method "{name}"')
        return False

    def arguments(self, node: Any, caller: Callable[[], None] | None = None) -> None:
        """Emits arguments, and the call of what is below them."""
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise self.refuse(node, "a call with arguments from a list")
        self._all(node.args)
        names = [word.key for word in node.kwargs]
        self._all(word.value for word in node.kwargs)
        if caller is not None:
            caller()
            names.append("caller")
        self.code.emit(Op.CALL, len(node.args), len(names), *map(self.text, names))

    def filtered(self, node: Any) -> None:
        """A filter of a value; of a block, whose text is on the stack already, where there is
        none."""
        if node.node is not None:
            self.expression(node.node)
        name = FILTER_ALIASES.get(node.name, node.name)
        if name == "map":
            self._map(node)
        elif name in ("select", "reject", "selectattr", "rejectattr"):
            self._select(node, name)
        else:
            self._check_markup(node, name)
            number, count = self._filter(node, name, None)
            self.code.emit(Op.FILTER, count, number)

    def _filter(self, node: Any, name: str, given: Sequence[Any] | None) -> tuple[int, int]:
        if name not in FILTER_NUMBERS:
            raise self.refuse(node, f'the filter "{name}"')
        count = self.bound(node, f'the filter "{name}"', FILTERS.get(name, ()), given)
        return FILTER_NUMBERS[name], count

    def _check_markup(self, node: Any, name: str) -> None:
        """What is safe escapes what it is put together with: it is kept where it is written."""
        if name in ("escape", "safe") and node is not self.written:
            raise self.refuse(
                node, f'the filter "{node.name}" other than where its value is written'
            )

    written: Any = None  # the expression that a statement writes

    def _map(self, node: Any) -> None:
        named = {word.key: word.value for word in node.kwargs}
        if not node.args and "attribute" in named:
            self.bound(node, 'the filter "map"', ("attribute", "default"))
            self.code.emit(Op.MAP_ATTRIBUTE)
            return
        name = self._constant_name(node, 0)
        name = FILTER_ALIASES.get(name, name)
        if name in ("escape", "safe", "map"):
            raise self.refuse(node, f'the filter "map" with the filter "{name}"')
        number, count = self._filter(node, name, node.args[1:])
        self.code.emit(Op.MAP_FILTER, count, number)

    def _select(self, node: Any, name: str) -> None:
        how = _REJECTS if name.startswith("reject") else 0
        args = list(node.args)
        if name.endswith("attr"):
            how |= _OF_ATTRIBUTE
            if not args:
                raise self.refuse(node, f'the filter "{name}" without an attribute')
            self.expression(args.pop(0))
        extra = 1 if how & _OF_ATTRIBUTE else 0
        if not args:
            self.bound(node, f'the filter "{name}"', (), ())
            self.code.emit(Op.SELECT, extra, 0, how | _ITSELF)
            return
        test = self._constant_name(node, len(node.args) - len(args))
        number, count = self._test(node, test, args[1:])
        self.code.emit(Op.SELECT, count + extra, number, how)

    def _constant_name(self, node: Any, at: int) -> str:
        value = getattr(node.args[at], "value", None) if at < len(node.args) else None
        if not isinstance(value, str):
            raise self.refuse(node, f'the filter "{node.name}" with a name that is computed')
        return value

    def tested(self, node: Any) -> None:
        self.expression(node.node)
        number, count = self._test(node, node.name, None)
        self.code.emit(Op.TEST, count, number)

    def _test(self, node: Any, name: str, given: Sequence[Any] | None) -> tuple[int, int]:
        own = TEST_ALIASES.get(name, name)
        if own not in TEST_NUMBERS:
            raise self.refuse(node, f'the test "{name}"')
        parameters = TEST_ARGUMENTS.get(own, ())
        return TEST_NUMBERS[own], self.bound(node, f'the test "{name}"', parameters, given)


_EXPRESSIONS: dict[str, Callable[[Expressions, Any], None]] = {
    "And": Expressions.both,
    "Call": Expressions.call,
    "Compare": Expressions.comparison,
    "Concat": Expressions.concatenation,
    "CondExpr": Expressions.choice,
    "Const": Expressions.constant,
    "Dict": Expressions.mapping,
    "Filter": Expressions.filtered,
    "Getattr": Expressions.attribute,
    "Getitem": Expressions.item,
    "List": Expressions.sequence,
    "Name": Expressions.name,
    "Or": Expressions.both,
    "TemplateData": Expressions.constant,
    "Test": Expressions.tested,
    "Tuple": Expressions.sequence,
}
FUNCTIONS = tuple(name.lower() for name in vars(fbs.TemplateFunction) if name.isupper())
