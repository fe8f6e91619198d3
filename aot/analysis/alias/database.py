"""The alias database of a function: which values may share memory and who writes it, updated as the
function changes.

A database listens to its function: every rewrite through a `Rewriter` updates it, and `AliasDb.of`
returns the one that a function has. Never changes a function.

    what                             lives until
    ops that write                   they are deleted; a function without any has nothing else
    numbers of values, locations     the value is deleted; they are never given again
    answers (`PointsTo`)             a change marks nodes, and the next question settles them
    what an op writes (`WriteDb`)    an answer of a written operand changes; settled with it
    effects of ops with blocks       the next change: they carry the epoch in which they were made

A *location* is memory that a value brings into being. Inputs of one dtype are one location,
*outside*: the caller may give the same memory twice. A state variable is one each. An op of unknown
effect may read and write all that is outside and all that its operands are or keep, and its results
may be any of that. A container keeps values and has no memory of its own.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterable, Iterator, Sequence

from aot.analysis.alias.effects import FRESH, origin, read_operands
from aot.analysis.alias.facts import AliasFacts
from aot.analysis.alias.location_sets import EMPTY, Locations, intersect, union
from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.graph import Block, Function, Listener, Op, Value, walk
from aot.ir.types import TensorType


@dataclass
class AliasCounts:
    """Counts of work on alias databases inside `count_alias`: databases built, solves from scratch,
    and incremental updates (changes of a function that a database processed, except those that
    provably write nothing).
    """

    builds: int = 0
    solves: int = 0
    updates: int = 0


_counts: contextvars.ContextVar[AliasCounts | None] = contextvars.ContextVar(
    "alias_counts", default=None
)


class count_alias:  # noqa: N801 - used like a function
    """A context manager that counts the work on alias databases inside it, as `AliasCounts`."""

    def __enter__(self) -> AliasCounts:
        counts = AliasCounts()
        self._token = _counts.set(counts)
        return counts

    def __exit__(self, *_: object) -> None:
        _counts.reset(self._token)


@dataclass(frozen=True)
class MemoryEffects:
    """The memory that an op reads and writes, ops in its blocks included."""

    reads: Locations
    writes: Locations
    has_side_effects: bool

    def conflicts(self, other: MemoryEffects) -> bool:
        """Whether two ops with these effects must keep their order."""
        return (
            (self.has_side_effects and other.has_side_effects)
            or intersect(self.writes, other.writes)
            or intersect(self.writes, other.reads)
            or intersect(self.reads, other.writes)
        )


class AliasDb(Listener):
    """The alias database of one function, which follows its rewrites. While the function writes no
    memory, queries are answered from the ops alone; values are numbered only when something is
    written, or a query needs more.

    As long as nothing is written it says so from the ops alone: values are numbered, once, when
    something is written or a question goes beyond that.

    Attributes:
        epoch: grows with every change; what is kept outside of the database carries the epoch it
            was made in.
    """

    def __init__(self, facts: AliasFacts) -> None:
        self._facts = facts
        self._is_solved = False
        self._writing: dict[Op, None] = {}
        self._note_writing(facts.function.block)
        self.epoch = 0
        self._summaries: dict[Op, tuple[int, MemoryEffects]] = {}

    @staticmethod
    def of(function: Function) -> AliasDb:
        """The database that listens to `function`, built on first use."""
        for listener in function.listeners:
            if isinstance(listener, AliasDb):
                return listener
        return AliasDb.build(function)

    @staticmethod
    def build(function: Function) -> AliasDb:
        """Builds a new database that listens to `function`, even if another one does."""
        counts = _counts.get()
        if counts is not None:
            counts.builds += 1
        found = AliasDb(AliasFacts(function))
        function.listeners.append(found)
        return found

    @staticmethod
    def where_written(function: Function) -> AliasDb | None:
        """The database of a function that writes memory; None for a function without writes, whose
        rewriters need no alias queries.
        """
        db = AliasDb.of(function)
        return db if db.has_writes else None

    @property
    def function(self) -> Function:
        return self._facts.function

    @property
    def facts(self) -> AliasFacts:
        """The solved facts behind the answers, for checks."""
        if not self._is_solved:
            self._facts.solve()
            self._is_solved = True
            counts = _counts.get()
            if counts is not None:
                counts.solves += 1
        self._facts.settle()
        return self._facts

    @property
    def has_writes(self) -> bool:
        """Whether any op of the function writes to existing memory."""
        return bool(self._writing)

    @property
    def is_solved(self) -> bool:
        """Whether values are numbered and their alias sets are up to date."""
        return self._is_solved

    def _note_writing(self, block: Block) -> None:
        for op in walk(block):
            if op.record.writes or op.record.has_unknown_effects:
                self._writing[op] = None

    # who writes

    def writers(self, value: Value) -> Iterator[Op]:
        """Ops, nested ones included, that may write the memory that `value` is or contains; some
        may be repeated."""
        if not self._writing:
            return iter(())
        locations = self.reached(value)
        is_outside = intersect(locations, self._facts.outside_locations())
        return self._facts.writes.writers(locations, is_outside=is_outside)

    def has_writers(self, subject: Value | Op | None) -> bool:
        """Whether anything may write the memory of a value, or of an op's operands and results.
        None has no writers."""
        if subject is None:
            return False
        if isinstance(subject, Op):
            return any(self.has_writers(v) for v in (*subject.operands, *subject.results))
        return next(self.writers(subject), None) is not None

    def is_repeatable(self, op: Op) -> bool:
        """Whether `op` computes the same wherever it is placed, so that one op may replace several
        equal ones: nothing writes its operands' or its results' memory.
        """
        reads = [v for v in read_operands(op) if self.has_writers(v)]
        made = [v for v in op.results if origin(v) is FRESH and self.has_writers(v)]
        return not reads and not made and not self.effects(op).has_side_effects

    def writes_to_alias(self, op: Op, values: Iterable[Value]) -> bool:
        """Whether `op`, or an op nested in it, may write memory that one of `values` is or
        contains."""
        written = self.written(op)
        return written != EMPTY and any(intersect(written, self.reached(v)) for v in values)

    def effects(self, op: Op) -> MemoryEffects:
        """The memory that `op` and the ops in its blocks read and write."""
        if not op.blocks:
            return self._effects_of_one(op)
        known = self._summaries.get(op)
        if known is not None and known[0] == self.epoch:
            return known[1]
        parts = [self._effects_of_one(op)]
        inside = [inner for block in op.blocks for inner in walk(block)]
        if not op.record.is_isolated or any(
            inner in self._writing or inner.record.has_side_effects for inner in inside
        ):  # else it reads what it is given
            parts += [self.effects(inner) for block in op.blocks for inner in block]
        found = MemoryEffects(
            union(p.reads for p in parts),
            union(p.writes for p in parts),
            any(p.has_side_effects for p in parts),
        )
        self._summaries[op] = (self.epoch, found)
        return found

    def written(self, op: Op) -> Locations:
        """The memory that `op` and the ops in its blocks write."""
        is_one = not op.blocks and op not in self._writing
        return EMPTY if is_one else self.effects(op).writes

    def _effects_of_one(self, op: Op) -> MemoryEffects:
        reads = union([self.reached(v) for v in read_operands(op)])
        writes = self.facts.writes.written_by(op)
        if self._facts.writes.is_unknown(op):
            outside = self._facts.outside_locations()
            reads, writes = union([reads, outside]), union([writes, outside])
        return MemoryEffects(reads, writes, op.record.has_side_effects)

    def reached(self, value: Value) -> Locations:
        """The memory of `value`, including that of all values it contains."""
        facts = self.facts
        node = 2 * facts.number_of(value)
        kept = facts.graph.answers[node + 1]
        own = facts.graph.answers[node]
        return own if kept == EMPTY else union([own, kept])

    # changes; a Rewriter reports them, so that nobody else has to

    def create(self, op: Op) -> None:
        """Updates the database after `op`, with all nested ops, was inserted in the function."""
        if not self._is_attached(op):
            return
        if op.record.writes or op.record.has_unknown_effects:
            self._writing[op] = None
        for block in op.blocks:
            self._note_writing(block)
        if self._is_solved:
            self._facts.add(op)
        self._touch()

    def delete(self, op: Op) -> None:
        """Updates the database before `op`, with all nested ops, is removed from the function."""
        is_unknown = self._is_solved and op.results and op.results[0] not in self._facts.numbers
        if is_unknown or not self._is_attached(op):  # removed with its parent, or never inserted
            return
        for inner in (op, *(i for block in op.blocks for i in walk(block))):
            self._writing.pop(inner, None)
            self._summaries.pop(inner, None)
        if self._is_solved:
            self._facts.remove(op)
        self._touch()

    def replace(self, old: Value, fresh: Value) -> None:
        """Updates the database before `fresh` replaces `old` in all its users.

        Where both are memory of their own they exchange it: what shows `old` then comes to show
        `fresh`, and no answer changes but theirs.
        """
        if self._is_solved:
            self._facts.swap(old, fresh)
        self._touch()

    def copy(self, source: Value, to: Value) -> None:
        """Records that `to`, a value of a block under construction, aliases exactly what `source`
        does. Once the block is in the function, the aliases of `to` are derived from there.
        """
        if to in self.facts.numbers:
            raise InternalError(f"{to!r} is known already")
        self._facts.draft(to, source)
        self._touch()

    def fuse(self, ops: Sequence[Op], group: Op, results: Iterable[tuple[Value, Value]]) -> None:
        """Updates the database before `group`, which is in the function, replaces `ops`.

        Args:
            results: results of `ops` that others use, each with the group's.
        """
        if any(op.parent is not group.parent for op in ops):
            raise InternalError(f"{group} can't take the place of ops of another block")
        for old, fresh in results:
            self.replace(old, fresh)

    def op_created(self, op: Op) -> None:
        self.create(op)

    def op_erased(self, op: Op) -> None:
        self.delete(op)

    def value_replaced(self, old: Value, fresh: Value) -> None:
        self.replace(old, fresh)

    def operand_changed(self, op: Op, index: int, old: Value | None) -> None:
        if self._is_solved and self._is_attached(op):
            self._facts.rewire(op, index, old)
            self._touch()

    def attr_changed(self, op: Op, name: str) -> None:
        if self._is_solved and self._is_attached(op):
            for value in op.results:
                self._facts.constrain(value)
            self._touch()

    def op_moved(self, op: Op) -> None:
        self._touch()

    def input_erased(self, value: Value) -> None:
        if self._is_solved:
            self._facts.forget(value)
        self._touch()

    def op_widened(self, op: Op) -> None:
        if self._is_solved and self._is_attached(op):
            self._facts.widen(op)
        self._touch()

    def type_changed(self, value: Value, old: TensorType) -> None:
        if value in self._facts.numbers:
            self._facts.retype(value)
            self._touch()

    def _touch(self) -> None:
        self.epoch += 1
        counts = _counts.get()
        if counts is not None and self._is_solved:
            counts.updates += 1

    def _is_attached(self, op: Op) -> bool:
        """Whether `op` is in the function, and not in a block still under construction."""
        block = op.parent
        while block is not None and isinstance(block.owner, Op):
            block = block.owner.parent
        return block is not None and block.owner is self.function
