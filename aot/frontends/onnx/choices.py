"""Backtracking over If nodes whose branch depends on what follows: each combination is tried in a
new import.

Owns the search. What a choice means, and whether an import with it is right, others know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TypeVar

from aot.base.records import dataclass
from aot.errors import CompileError, UnsupportedError

MAX_ATTEMPTS = 32

T = TypeVar("T")


@dataclass
class Choices:
    """The branch choices of one attempt.

    Attributes:
        forced: what is tried, by the choice's name; True is the first branch.
        made: what the attempt came to choose, in order.
    """

    forced: dict[str, bool] = field(default_factory=dict)
    made: dict[str, bool] = field(default_factory=dict)

    def take(self, name: str) -> bool:
        """Whether to take the first of two branches; the same name always gets the same answer."""
        if name not in self.made:
            self.made[name] = self.forced.get(name, True)
        return self.made[name]

    def forget(self, names: Iterable[str]) -> None:
        """Reverts choices whose import was abandoned."""
        for name in names:
            del self.made[name]


def search(attempt: Callable[[Choices], T]) -> T:
    """The result of the only attempt that succeeds, over all combinations of branch choices.

    Raises:
        CompileError, UnsupportedError: as the only attempt does; or none succeeds, or several do.
    """
    found: list[tuple[dict[str, bool], T]] = []
    failed: list[tuple[dict[str, bool], CompileError | UnsupportedError]] = []
    forced: dict[str, bool] = {}
    for _ in range(MAX_ATTEMPTS):
        choices = Choices(forced)
        try:
            found.append((choices.made, attempt(choices)))
        except (CompileError, UnsupportedError) as error:
            failed.append((choices.made, error))
        if len(found) > 1:
            raise _several(found[0][0], found[1][0])
        following = _next(choices.made)
        if following is None:
            break
        forced = following
    else:
        raise CompileError(
            f"more than {MAX_ATTEMPTS} ways to take the branches of Ifs whose conditions depend on "
            f"shapes, such as {next(iter(forced))}: give shapes (--input-shape)"
        )
    if found:
        return found[0][1]
    if len(failed) == 1:
        raise failed[0][1]
    raise _none(failed)


def _next(made: dict[str, bool]) -> dict[str, bool] | None:
    """The choices to try next: the last one still at its first branch takes the second; None if
    there is none."""
    left = list(made.items())
    while left and not left[-1][1]:
        left.pop()
    if not left:
        return None
    return {**dict(left[:-1]), left[-1][0]: False}


def _several(first: dict[str, bool], second: dict[str, bool]) -> CompileError:
    name = next(n for n in first if first[n] != second.get(n))
    return CompileError(
        f"{name}: shapes decide when the model runs which branch is taken, the branches' results "
        "differ in type, and the model could go on with either: give the dims of inputs that the "
        "condition depends on (--input-shape)"
    )


def _none(failed: list[tuple[dict[str, bool], CompileError | UnsupportedError]]) -> CompileError:
    """The error when no branch works: the problems of the first attempts with either branch of the
    first choice."""
    name = next(iter(failed[0][0]))
    texts = []
    for is_first, branch in ((True, "then_branch"), (False, "else_branch")):
        error = next((e for made, e in failed if made.get(name) is is_first), None)
        if error is not None:
            shown = error.items if isinstance(error, UnsupportedError) else [str(error)]
            texts.append(f"with its {branch}: {'; '.join(shown)}")
    return CompileError(
        f"{name}: shapes decide when the model runs which branch is taken, and the model can't go "
        f"on with either; {'; '.join(texts)}"
    )
