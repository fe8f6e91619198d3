"""Parses the text form: modules, functions, blocks and ops.

Everything that a text can get wrong is a `CompileError` with line and column; nesting and sizes are
bounded, so that no text can exhaust the stack or memory. Types are checked against shape rules.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from aot.errors import CompileError
from aot.ir.equalities import TypeRule
from aot.ir.graph import Assumption, Attr, Block, Function, Module, Op, Strings, Value
from aot.ir.record import OpRecord, lookup
from aot.ir.rewriter import Rewriter
from aot.ir.schedule import Schedule, StageSchedule
from aot.ir.text.attr_parser import AttrParser, read_blobs
from aot.ir.text.printer import KEYWORDS
from aot.ir.text.tokens import END, Tokens
from aot.ir.types import TensorType

MAX_BLOCK_DEPTH = 32
_SCHEDULES = {schedule.value: schedule for schedule in Schedule}
_KINDS = {keyword: kind for kind, keyword in KEYWORDS.items()}


def parse_module(text: str, source: str = "") -> Module:
    """Parses a module as written by `print_module`, or by a person.

    Assumptions that ops rely on and the text leaves out are added. The result obeys the grammar
    and the shape rules; `verify` checks the rest.

    Args:
        source: a file's name, put before every message.

    Raises:
        CompileError: "line L, column C: expected ..., found ...".
    """
    tokens = Tokens(text, source)
    attrs = AttrParser(tokens, read_blobs(tokens))
    module = Module()
    while tokens.kind != END:
        if tokens.word == "blob":
            attrs.skip_blob()
            continue
        start = tokens.at
        function = _FunctionParser(tokens, attrs).parse()
        if function.name in module.functions:
            raise tokens.error(f"there are two functions named {function.name!r}", start)
        module.add(function)
    return module


class _FunctionParser:
    def __init__(self, tokens: Tokens, attrs: AttrParser) -> None:
        self.tokens = tokens
        self.attrs = attrs
        self.values: dict[str, Value] = {}
        self.defined: list[str] = []  # keys of `values` by age: a block takes its own out again
        self.depth = 0

    def parse(self) -> Function:
        tokens = self.tokens
        if tokens.kind != "word" or tokens.word not in _KINDS:
            raise tokens.expected(f"{' or '.join(map(repr, _KINDS))} or 'blob'")
        kind = _KINDS[tokens.word]
        tokens.at += 1
        name = self.attrs.function_name()
        dim_names = self.dim_names()
        types, names, keys = self.inputs()
        block = Block(types, names)
        for key, value in zip(keys, block.args, strict=True):
            self.define(key, value)
        self.function = Function(name, block, self.result_names(), kind)
        self.function.updates = self.updates()
        self.function.strings = self.strings()
        self.function.dim_names = dim_names
        self.function.bindings = self.bindings()
        self.function.schedule = self.schedule()
        self.assumptions()
        self.rule = TypeRule(self.function)
        self.body(block)
        return self.function

    def dim_names(self) -> tuple[str, ...]:
        names: list[str] = []
        if self.tokens.take("["):
            while not self.tokens.take("]"):
                if names:
                    self.tokens.expect(",")
                name = self.tokens.next("word", "the name of a dim parameter")
                if name in names:
                    raise self.tokens.error(
                        f"dim parameter {name} is named twice", self.tokens.at - 1
                    )
                names.append(name)
        return tuple(names)

    def inputs(self) -> tuple[list[TensorType], list[str], list[str]]:
        """Parses (types, names, `%` names) of a function's inputs."""
        types: list[TensorType] = []
        names: list[str] = []
        keys: dict[str, None] = {}
        self.tokens.expect("(")
        while not self.tokens.take(")"):
            if keys:
                self.tokens.expect(",")
            key = self.fresh_name(keys)
            name = "" if key[1].isdecimal() else key[1:]
            if self.tokens.kind == "string":
                name = self.tokens.string()
            self.tokens.expect(":")
            keys[key] = None
            names.append(name)
            types.append(self.attrs.type())
        return types, names, list(keys)

    def define(self, key: str, value: Value) -> None:
        self.values[key] = value
        self.defined.append(key)

    def fresh_name(self, others: Container[str] = ()) -> str:
        key = self.tokens.next("value", "a value such as '%x'")
        if key in self.values or key in others:
            raise self.tokens.error(f"value {key} is defined twice", self.tokens.at - 1)
        return key

    def result_names(self) -> list[str]:
        names: list[str] = []
        if self.tokens.take("->"):
            self.tokens.expect("(")
            while not self.tokens.take(")"):
                if names:
                    self.tokens.expect(",")
                names.append(self.tokens.string("a result's name in quotes"))
        return names

    def updates(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self.tokens.take("updates"):
            self.tokens.expect("[")
            while not self.tokens.take("]"):
                if found:
                    self.tokens.expect(",")
                result = self.tokens.string("a result's name in quotes")
                self.tokens.expect(":")
                found[result] = self.tokens.string("an input's name in quotes")
        return found

    def strings(self) -> Strings | None:
        if not self.tokens.take("strings"):
            return None
        names = self.texts("the name of an input or result in quotes")
        self.tokens.expect("of")
        return Strings(table=self.texts("a string in quotes"), names=names)

    def texts(self, what: str) -> tuple[str, ...]:
        """Parses `[TEXT, ...]`."""
        found: list[str] = []
        self.tokens.expect("[")
        while not self.tokens.take("]"):
            if found:
                self.tokens.expect(",")
            found.append(self.tokens.string(what))
        return tuple(found)

    def bindings(self) -> tuple[int | str, ...]:
        classes: list[int | str] = []
        if self.tokens.take("bindings"):
            self.tokens.expect("[")
            while not self.tokens.take("]"):
                if classes:
                    self.tokens.expect(",")
                if self.tokens.kind == "word":
                    classes.append(self.tokens.next("word", "a dim parameter"))
                    continue
                number = self.tokens.next("int", "the number of a buffer class")
                if number not in ("0", "1", "2", "3"):
                    raise self.tokens.error(
                        f"there is no buffer class {number}", self.tokens.at - 1
                    )
                classes.append(int(number))
        return tuple(classes)

    def schedule(self) -> tuple[StageSchedule, ...]:
        tokens, stages = self.tokens, list[StageSchedule]()
        if tokens.take("schedule"):
            tokens.expect("[")
            while not tokens.take("]"):
                if stages:
                    tokens.expect(",")
                stages.append(self.stage())
        return tuple(stages)

    def stage(self) -> StageSchedule:
        """Parses a stage's schedule, as printed by `StageSchedule`."""
        tokens = self.tokens
        name = tokens.next("word", "a schedule class")
        if name not in _SCHEDULES:
            raise tokens.error(
                f"there is no schedule class {name}: expected one of {', '.join(_SCHEDULES)}",
                tokens.at - 1,
            )
        tokens.expect("lanes")
        tokens.expect("=")
        lanes = self.tile_extent("lanes", 65536)
        rows = columns = shares = 1
        staged = 0
        if tokens.take("tile"):
            tokens.expect("=")
            rows = self.tile_extent("rows of a tile", 4096)
            tokens.expect(":")
            columns = self.tile_extent("columns of a tile", 4096)
        if tokens.take("shares"):
            tokens.expect("=")
            shares = self.tile_extent("shares of a sum", lanes)
        if tokens.take("staged"):
            tokens.expect("=")
            staged = self.tile_extent("staged terms", 4096)
        rule = tokens.string("the name of a rule in quotes") if tokens.take("by") else ""
        return StageSchedule(_SCHEDULES[name], lanes, rows, columns, shares, staged, rule)

    def tile_extent(self, what: str, most: int) -> int:
        number = int(self.tokens.next("int", what))
        if not 1 <= number <= most:
            raise self.tokens.error(
                f"{what} are from 1 to {most}, not {number}", self.tokens.at - 1
            )
        return number

    def assumptions(self) -> None:
        tokens = self.tokens
        if not tokens.take("assume"):
            return
        tokens.expect("[")
        while not tokens.take("]"):
            left = self.attrs.dim()
            tokens.expect("==")
            right = self.attrs.dim()
            reason = tokens.string("the reason of the assumption in quotes")
            self.function.assumptions[Assumption(left, right, reason)] = None
            if not tokens.is_punct("]"):
                tokens.expect(",")

    def body(self, block: Block) -> None:
        """Parses `{ op... }` into `block`."""
        tokens = self.tokens
        self.depth += 1
        if self.depth > MAX_BLOCK_DEPTH:
            raise tokens.error(f"blocks are nested deeper than {MAX_BLOCK_DEPTH}")
        rewriter = Rewriter(self.function, block)
        tokens.expect("{")
        while not tokens.take("}"):
            self.op(rewriter)
        self.depth -= 1

    def op(self, rewriter: Rewriter) -> None:
        tokens = self.tokens
        keys: dict[str, None] = {}
        while tokens.kind == "value":
            keys[self.fresh_name(keys)] = None
            if not tokens.take(","):
                tokens.expect("=")
                break
        start = tokens.at
        name = tokens.next("word", "the name of an op" if keys else "an op or '}'")
        record = self.record(name, start)
        operands = self.operands()
        attrs = self.attributes(record)
        types, types_at = self.result_types(len(keys))
        origin = ""
        if tokens.take("@"):
            origin = tokens.string("the name of the model's node in quotes")
        attrs = self.check(record, operands, attrs, types, origin, start, types_at)
        blocks: list[Block] = []
        while tokens.is_punct("^"):
            blocks.append(self.inner_block(is_isolated=record.is_isolated))
        op = Op(record, operands, attrs, types, blocks, origin)
        rewriter.insert(op)
        for key, value in zip(keys, op.results, strict=True):
            value.name = "" if key[1].isdecimal() else key[1:]
            self.define(key, value)

    def record(self, name: str, start: int) -> OpRecord:
        try:
            return lookup(name)
        except CompileError as error:
            raise self.tokens.error(str(error), start) from None

    def operands(self) -> list[Value | None]:
        tokens = self.tokens
        operands: list[Value | None] = []
        if not tokens.take("("):
            return operands
        while not tokens.take(")"):
            if operands:
                tokens.expect(",")
            if tokens.take("_"):
                operands.append(None)
                continue
            key = tokens.next("value", "an operand such as '%x' or '_'")
            if key not in self.values:
                raise tokens.error(f"value {key} is not defined before its use", tokens.at - 1)
            operands.append(self.values[key])
        return operands

    def attributes(self, record: OpRecord) -> dict[str, Attr]:
        tokens = self.tokens
        attrs: dict[str, Attr] = {}
        if not tokens.take("{"):
            return attrs
        declared = {a.name: a.type for a in record.attributes}
        while not tokens.take("}"):
            if attrs:
                tokens.expect(",")
            name = tokens.next("word", "the name of an attribute")
            if name in attrs:
                raise tokens.error(f"attribute {name} is given twice", tokens.at - 1)
            tokens.expect("=")
            attrs[name] = self.attrs.attr(declared.get(name, ""))
        return attrs

    def result_types(self, count: int) -> tuple[list[TensorType], int]:
        tokens = self.tokens
        types: list[TensorType] = []
        if not count:
            return types, tokens.at
        tokens.expect(":")
        start = tokens.at
        while True:
            types.append(self.attrs.type())
            if not tokens.take(","):
                break
        if len(types) != count:
            raise tokens.error(f"expected {count} result types, found {len(types)}", start)
        return types, start

    def check(
        self,
        record: OpRecord,
        operands: Sequence[Value | None],
        attrs: Mapping[str, Attr],
        types: Sequence[TensorType],
        origin: str,
        start: int,
        types_at: int,
    ) -> dict[str, Attr]:
        """The op's complete attributes; an error if the record rejects the op or its types."""
        given = [None if v is None else v.type for v in operands]
        is_ruled = record.results_from == "rule"
        try:
            call = (record.call if is_ruled else record.check)(given, attrs, origin)
        except CompileError as error:
            raise self.tokens.error(str(error), start) from None
        if not is_ruled:
            return call.attrs
        if len(call.result_types) != len(types):
            raise self.tokens.error(
                f"{record.name} has {len(call.result_types)} results, the text names {len(types)}",
                start,
            )
        if self.function.kind == "function":
            for assumption in call.assumptions:
                if not self.rule.equalities.are_equal(assumption.left, assumption.right):
                    self.function.assumptions[assumption] = None
                    self.rule.equalities.add(assumption.left, assumption.right)
        for number, (ruled, found) in enumerate(zip(call.result_types, types, strict=True)):
            if not self.rule.accepts(ruled, found):
                which = f" {number}" if len(types) > 1 else ""
                raise self.tokens.error(
                    f"expected type {ruled} for result{which} of {record.name}, found {found}",
                    types_at,
                )
        return call.attrs

    def inner_block(self, is_isolated: bool) -> Block:
        tokens = self.tokens
        tokens.expect("^")
        tokens.expect("(")
        keys: list[str] = []
        types: list[TensorType] = []
        while not tokens.take(")"):
            if keys:
                tokens.expect(",")
            keys.append(self.fresh_name(keys))
            tokens.expect(":")
            types.append(self.attrs.type())
        block = Block(types, ["" if k[1].isdecimal() else k[1:] for k in keys])
        outer, mark = self.values, len(self.defined)
        if is_isolated:
            self.values = {}
        for key, value in zip(keys, block.args, strict=True):
            self.define(key, value)
        self.body(block)
        for key in self.defined[mark:]:
            del self.values[key]
        del self.defined[mark:]
        self.values = outer
        return block
