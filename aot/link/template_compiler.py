"""Chat templates as code: Jinja's own syntax tree, compiled for the interpreter of runtime/text.

Owns statements and scopes, with Jinja's meaning: a loop, a macro and a block have scopes of their
own, an `if` has none. Runs nothing of the template. What a module can't keep is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from aot.base.records import dataclass
from aot.link.template_code import (
    MOST_LEVELS,
    Assembler,
    Label,
    Op,
    TemplateCode,
    Unkept,
    assembled,
)
from aot.link.template_expressions import Expressions, Scope

MOST_TEMPLATE_BYTES = 1 << 17  # of a real model, at most some tens of thousands


@lru_cache(maxsize=2)  # a compile asks twice: whether it is kept, and what it is
def compile_template(source: str) -> TemplateCode:
    """The code of a chat template, read as transformers has Jinja read it.

    Raises:
        Unkept: it is none, or uses what a module can't keep, which the message names.
    """
    import jinja2

    if len(source.encode(errors="replace")) > MOST_TEMPLATE_BYTES:
        raise Unkept(f"it has more than {MOST_TEMPLATE_BYTES} bytes")
    try:
        tree = _environment().parse(source)
        return _Compiler().compile(tree)
    except jinja2.TemplateSyntaxError as error:
        raise Unkept(f"line {error.lineno}: {' '.join(str(error.message).split())}") from error
    except (RecursionError, MemoryError) as error:
        raise Unkept("it is nested too deep") from error


def _environment() -> Any:
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        """The block around what a model writes, as transformers has it: a scope of its own."""

        tags = {"generation"}  # noqa: RUF012 (declared so by Jinja)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return jinja2.Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", Generation],
        autoescape=False,
    )


@dataclass
class _Loop:
    """Where `break` and `continue` go, and the captures open around the loop's body."""

    end: Label
    next: Label
    captures: int


class _Compiler(Expressions):
    """Compiles statements.

    Attributes:
        functions: the outermost, and macros.
        loops: of the running function, the innermost last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Assembler] = []
        self.loops: list[_Loop] = []

    def compile(self, tree: Any) -> TemplateCode:
        self.functions.append(self.code)
        self._declare(tree.body)
        self.statements(tree.body)
        self.code.emit(Op.RETURN)
        return assembled(self.functions, list(self.texts))

    # ---- scopes ----

    def _declare(self, body: Iterable[Any], names: Iterable[str] = ()) -> None:
        """Gives slots to names, and to those that a body sets in its own scope."""
        for name in (*names, *_set_names(body)):
            if name not in self.scope.slots:
                self.scope.slots[name] = self.code.new_slot()

    @contextmanager
    def _inside(self, body: Iterable[Any], names: Iterable[str] = ()) -> Iterator[None]:
        """A scope, whose names have no value at first."""
        outer = self.scope
        self.scope = Scope(outer.level, outer)
        self._declare(body, names)
        slots = self.scope.slots.values()
        if slots:
            self.code.emit(Op.CLEAR, min(slots), len(slots))
        yield
        self.scope = outer

    # ---- statements ----

    def statements(self, body: Iterable[Any]) -> None:
        for node in body:
            kind = type(node).__name__
            if kind not in _STATEMENTS:
                tag = "import" if kind == "FromImport" else kind.lower()
                raise self.refuse(node, f'the statement "{tag}"')
            _STATEMENTS[kind](self, node)

    def output(self, node: Any) -> None:
        for part in node.nodes:
            if type(part).__name__ == "TemplateData":
                self.code.emit(Op.WRITE_TEXT, self.text(part.data))
            else:
                self.written = part
                self.expression(part)
                self.code.emit(Op.WRITE)

    def condition(self, node: Any) -> None:
        end = Label()
        for test, body in [(node.test, node.body), *((e.test, e.body) for e in node.elif_)]:
            other = Label()
            self.expression(test)
            self.code.emit(Op.IF_FALSE, 0, other)
            self.statements(body)
            self.code.emit(Op.JUMP, 0, end)
            self.code.place(other)
        self.statements(node.else_)
        self.code.place(end)

    def assignment(self, node: Any) -> None:
        self.expression(node.node)
        self._assign(node.target)

    def _assign(self, target: Any) -> None:
        """Stores the top of the stack."""
        kind = type(target).__name__
        if kind == "Name":
            self.code.emit(Op.STORE, self.scope.slots[target.name])
        elif kind == "NSRef":
            self.named(target.name)
            self.code.emit(Op.SET_ATTRIBUTE, self.text(target.attr))
        else:
            self.code.emit(Op.UNPACK, len(target.items))
            for item in target.items:
                self._assign(item)

    def block_assignment(self, node: Any) -> None:
        with self._captured(node.body):
            pass
        if node.filter is not None:
            self.filtered(node.filter)
        self._assign(node.target)

    @contextmanager
    def _captured(self, body: Sequence[Any]) -> Iterator[None]:
        """Compiles a body whose output becomes a text on the stack."""
        self.code.emit(Op.CAPTURE)
        self.code.captures += 1
        with self._inside(body):
            self.statements(body)
        self.code.captures -= 1
        self.code.emit(Op.END_CAPTURE)
        yield

    def filter_block(self, node: Any) -> None:
        with self._captured(node.body):
            pass
        self.filtered(node.filter)
        self.code.emit(Op.WRITE)

    def with_block(self, node: Any) -> None:
        for value in node.values:
            self.expression(value)
        names = [name for target in node.targets for name in _target_names(target)]
        with self._inside(node.body, names):
            for target in reversed(node.targets):
                self._assign(target)
            self.statements(node.body)

    def scope_block(self, node: Any) -> None:
        with self._inside(node.body):
            self.statements(node.body)

    # ---- loops ----

    def loop(self, node: Any) -> None:
        if node.recursive:
            raise self.refuse(node, "a recursive loop")
        names = list(_target_names(node.target))
        self.expression(node.iter)
        if node.test is not None:
            self._select_items(node, names)
        slot = self.code.new_slot()
        emit = self.code.emit
        emit(Op.FOR, slot)
        own = _Loop(Label(), Label(), self.code.captures)
        self.loops.append(own)
        begin = self._begin()
        # The loop's variable is no name that an iteration forgets.
        outer = self.scope
        self.scope = Scope(outer.level, outer, {"loop": slot})
        emit(Op.NEXT, slot, own.end)
        self._iterate(node, names)
        self.code.place(own.next)
        emit(Op.JUMP, 0, begin)
        self.code.place(own.end)
        self.scope = outer
        self.loops.pop()
        if node.else_:
            end = Label()
            emit(Op.IF_ANY, slot, end)
            with self._inside(node.else_):
                self.statements(node.else_)
            self.code.place(end)

    def _begin(self) -> Label:
        label = Label()
        self.code.place(label)
        return label

    def _iterate(self, node: Any, names: Sequence[str]) -> None:
        """One iteration: the element is on the stack."""
        with self._inside(node.body, names):
            self._assign(node.target)
            self.statements(node.body)

    def _select_items(self, node: Any, names: Sequence[str]) -> None:
        """Elements of `for ... if`: a list of those for which the test holds."""
        loop, kept = self.code.new_slot(), self.code.new_slot()
        emit = self.code.emit
        end, item = Label(), self.code.new_slot()
        emit(Op.FOR, loop)
        emit(Op.LIST, 0)
        emit(Op.STORE, kept)
        begin = self._begin()
        emit(Op.NEXT, loop, end)
        with self._inside((), names):
            emit(Op.STORE, item)
            self._push(item)
            self._assign(node.target)
            self.expression(node.test)
            emit(Op.IF_FALSE, 0, begin)
            self._push(item)
            emit(Op.APPEND, kept)
        emit(Op.JUMP, 0, begin)
        self.code.place(end)
        self._push(kept)

    def _push(self, slot: int) -> None:
        """Pushes a slot that has a value."""
        end = Label()
        self.code.emit(Op.SLOT, slot, 0, end)
        self.code.emit(Op.NONE)
        self.code.place(end)

    def jump(self, node: Any) -> None:
        loop = self.loops[-1] if self.loops else None
        if loop is None or loop.captures != self.code.captures:
            raise self.refuse(node, "a break or continue out of a block that is kept as text")
        is_break = type(node).__name__ == "Break"
        self.code.emit(Op.JUMP, 0, loop.end if is_break else loop.next)

    # ---- macros ----

    def macro(self, node: Any) -> None:
        self._macro(node)
        self.code.emit(Op.STORE, self.scope.slots[node.name])

    def _macro(self, node: Any) -> None:
        """Emits what pushes a macro."""
        names = [parameter.name for parameter in node.args]
        has_caller = "caller" not in names and _loads(node.body, "caller")
        if _loads(node.body, "varargs") or _loads(node.body, "kwargs"):
            raise self.refuse(node, "a macro with any number of arguments")
        own = [*names, "caller"] if has_caller else names
        outer_code, outer_scope, outer_loops = self.code, self.scope, self.loops
        if outer_scope.level + 1 >= MOST_LEVELS:
            raise Unkept("it is nested too deep")
        parent = next(i for i, f in enumerate(self.functions) if f is outer_code)
        self.code = Assembler(parent, tuple(map(self.text, own)), len(names))
        number = len(self.functions)
        self.functions.append(self.code)
        self.scope, self.loops = Scope(outer_scope.level + 1, outer_scope), []
        self._declare(node.body, own)
        defaults = dict(zip(reversed(names), reversed(node.defaults), strict=False))
        for name in own:
            self._default(name, defaults.get(name))
        self.statements(node.body)
        self.code.emit(Op.RETURN)
        self.code, self.scope, self.loops = outer_code, outer_scope, outer_loops
        self.code.emit(Op.MACRO, number)

    def _default(self, name: str, value: Any) -> None:
        """The value of a parameter that was not given."""
        slot, given = self.scope.slots[name], Label()
        self.code.emit(Op.IF_SET, slot, given)
        if value is None:
            self.code.emit(Op.UNDEFINED, self.text(name))
        else:
            self.expression(value)
        self.code.emit(Op.STORE, slot)
        self.code.place(given)

    def call_block(self, node: Any) -> None:
        if type(node.call).__name__ != "Call":
            raise self.refuse(node, "a call block of what is no call")
        self.expression(node.call.node)
        self.arguments(node.call, lambda: self._macro(node))
        self.code.emit(Op.WRITE)


_STATEMENTS: dict[str, Callable[[_Compiler, Any], None]] = {
    "Assign": _Compiler.assignment,
    "AssignBlock": _Compiler.block_assignment,
    "Break": _Compiler.jump,
    "CallBlock": _Compiler.call_block,
    "Continue": _Compiler.jump,
    "FilterBlock": _Compiler.filter_block,
    "For": _Compiler.loop,
    "If": _Compiler.condition,
    "Macro": _Compiler.macro,
    "Output": _Compiler.output,
    "Scope": _Compiler.scope_block,
    "With": _Compiler.with_block,
}


def _target_names(target: Any) -> Iterator[str]:
    """The names that an assignment sets in its scope."""
    kind = type(target).__name__
    if kind == "Name":
        yield target.name
    elif kind != "NSRef":
        for item in target.items:
            yield from _target_names(item)


def _set_names(body: Iterable[Any]) -> Iterator[str]:
    """The names that statements set in the scope that they are in."""
    for node in body:
        kind = type(node).__name__
        if kind in ("Assign", "AssignBlock"):
            yield from _target_names(node.target)
        elif kind == "Macro":
            yield node.name
        elif kind == "If":
            yield from _set_names(node.body)
            yield from _set_names(node.elif_)
            yield from _set_names(node.else_)


def _loads(body: Iterable[Any], name: str) -> bool:
    """Whether statements read a name."""
    from jinja2 import nodes

    return any(
        found.name == name and found.ctx == "load"
        for node in body
        for found in (*node.find_all(nodes.Name), *((node,) if type(node) is nodes.Name else ()))
    )


__all__ = ["MOST_TEMPLATE_BYTES", "Unkept", "compile_template"]
