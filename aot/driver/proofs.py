"""Proofs of a variant's kernels: requested before code generation, cached and counted.

Owns which facts a kernel is proved with, where verdicts are kept, and what a compile says where
there is no proof. Knows nothing of how proofs are found, which is `aot.kernels.proof`.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from aot.analysis.dispatches import dims_of_dispatch, dispatches_of, extents_of_dispatch
from aot.analysis.needs import needs_of_function
from aot.backends import sources
from aot.backends.cpu.object_cache import ObjectCache, key_of
from aot.base.records import dataclass
from aot.errors import CompileError, InternalError, ProofWarning
from aot.ir.bounds import add_bound, add_not_negative
from aot.ir.dims import Dim, Interval, bounds, substitute, symbol, symbols
from aot.ir.equalities import number_of_equal
from aot.ir.graph import Function, Module
from aot.kernels.ir.fingerprint import fingerprint
from aot.kernels.ir.nodes import Kernel
from aot.kernels.ir.text import to_text
from aot.kernels.lowering import root_of
from aot.kernels.proof.bounds import check_bounds
from aot.kernels.proof.extents import is_long
from aot.kernels.proof.walk import Unproved, Verdict
from aot.target.model import Target

FEATURE = "proofs"
WAYS = ("intervals", "strides", "facts", "certificate", "cases")
FEW_SITES = 4  # dispatches of an executable that are looked at one by one
# What a verdict depends on, beside the kernel and the facts.
_SOURCES = ("kernels/proof", "kernels/ir", "ir")


@dataclass(frozen=True)
class Site:
    """A dispatch site: the dim arguments of a dispatch, with the facts that its function assumes.

    Attributes:
        dims: the parameters' names, and what they are.
        extents: those of these parameters that are not negative.
        equal: dims that are equal.
    """

    dims: tuple[tuple[str, Dim], ...]
    extents: frozenset[str]
    equal: tuple[tuple[Dim, Dim], ...]

    def __str__(self) -> str:
        given = ", ".join(
            f"{name}={dim}{'' if name in self.extents else ' of any sign'}"
            for name, dim in self.dims
        )
        return f"{given}; {', '.join(f'{a}=={b}' for a, b in self.equal)}"


@dataclass
class Proofs:
    """The proofs of one variant's kernels, with their statistics.

    Attributes:
        cache: where verdicts are kept, beside the objects.
        ends: how many ends of accesses were proved, by how.
        kernels: how many kernels were proved, by the hardest way that one of its accesses took.
        found: kernels whose verdict the cache had.
        unproved: kernels with open extents that no proof was found for.
    """

    module: Module
    cache: ObjectCache
    ends: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    found: int = 0
    unproved: int = 0
    _done: set[Kernel] = field(default_factory=set)
    _sites: Mapping[str, Sequence[Site]] | None = None

    def prove(self, function: Function, kernel: Kernel, target: Target) -> None:
        """Proves that a kernel of an executable accesses only its own memory.

        Of a kernel with open extents that no proof is found for, a `ProofWarning` has the access.

        Raises:
            InternalError: no proof was found of a kernel whose extents are all known; the message
                has the access and the kernel's text.
            CompileError: the same for a target that the user described.
        """
        if kernel in self._done:
            return
        self._done.add(kernel)
        sites = self._sites_of(function)
        needs = tuple(need.room for need in needs_of_function(function))
        key = _key(kernel, sites, needs, target) if self.cache.folder is not None else ""
        ends = self._kept(key) if key else None
        if ends is None:
            verdict = proof_of(kernel, sites, target, needs)
            if verdict.unproved:
                if not function.dim_names:
                    raise _refusal(function, kernel, target, verdict.unproved)
                self.unproved += 1
                what = _message(function, target, verdict.unproved)
                warnings.warn(f"{what}; please report this", ProofWarning, stacklevel=2)
                return
            ends = Counter(verdict.proved)
            if key:
                self.cache.put(key, json.dumps(dict(sorted(ends.items()))).encode())
        self.ends.update(ends)
        self.kernels[_hardest(ends)] += 1

    def section(self) -> dict[str, Any]:
        """The section on proofs in the statistics."""
        return {
            "kernels": sum(self.kernels.values()),
            "by": {way: self.kernels[way] for way in WAYS},
            "accesses": {way: self.ends[way] for way in WAYS},
            "unproved": self.unproved,
            "cached": self.found,
        }

    def _kept(self, key: str) -> Counter[str] | None:
        data = self.cache.find(key, lambda data: _counts(data) is not None)
        if data is None:
            return None
        self.found += 1
        return _counts(data)

    def _sites_of(self, function: Function) -> Sequence[Site]:
        if not function.dim_names:
            return ()
        if self._sites is None:
            self._sites = _sites(self.module)
        return self._sites.get(function.name, ())


def _counts(data: bytes) -> Counter[str] | None:
    """The counts stored in a cache entry; None if it is damaged."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not set(found) <= set(WAYS):
        return None
    is_counted = all(type(count) is int and count >= 0 for count in found.values())
    return Counter(found) if is_counted else None


def proof_of(
    kernel: Kernel, sites: Sequence[Site], target: Target, needs: Sequence[Dim] = ()
) -> Verdict:
    """The verdict on a kernel: tried for all values of its dim parameters, then for the range of
    all dispatches, then for each dispatch. If dispatches pass only a few numbers, these come first,
    as that is faster.

    Args:
        needs: dims of its parameters that a program has checked not to be negative.
    """
    bits = target.word_bytes * 8
    verdict = Verdict()
    is_open = any(not isinstance(dim, int) for site in sites for _, dim in site.dims)
    if not sites or is_open or len(sites) > FEW_SITES:
        for known in _ranges_to_try(sites):
            verdict = check_bounds(
                kernel, known, index_bits=bits, natural=needs, is_brief=bool(sites)
            )
            if not verdict.unproved:
                return verdict
    for site in sites:
        given, extents = dict(site.dims), sorted(site.extents)
        known = _known(site, [substitute(dim, given) for dim in needs])
        for is_rough in (True, False) if any(map(is_long, given.values())) else (False,):
            verdict = check_bounds(
                *(kernel, known, given, site.equal, bits),
                extents=extents,
                natural=needs,
                is_brief=is_rough,
                is_rough=is_rough,
            )
            if not verdict.unproved:
                break
        if verdict.unproved:
            break
    return verdict


def _ranges_to_try(sites: Sequence[Site]) -> Iterator[dict[str, Interval]]:
    """Ranges of dim parameters to try: any number of the right sign, then the range over all
    dispatches."""
    signed = {name for site in sites for name, _ in site.dims if name not in site.extents}
    yield dict.fromkeys(signed, (None, None))
    if sites:
        yield _ranges(sites)


def _ranges(sites: Sequence[Site]) -> dict[str, Interval]:
    """The range of each dim parameter over all dispatches."""
    found: dict[str, list[Interval]] = {}
    for site in sites:
        known = _known(site)
        for name, dim in site.dims:
            low, high = bounds(dim, known)
            low = max(low or 0, 0) if name in site.extents else low
            found.setdefault(name, []).append((low, high))
    return {
        name: (
            None if any(low is None for low, _ in ends) else min(low or 0 for low, _ in ends),
            None if any(high is None for _, high in ends) else max(high or 0 for _, high in ends),
        )
        for name, ends in found.items()
    }


def _known(site: Site, natural: Iterable[Dim] = ()) -> dict[str, Interval]:
    """Bounds of a site's symbols, derived from its equal dims and its extents.

    Args:
        natural: more dims that are not negative, as extents are.
    """
    known: dict[str, Interval] = {}
    extents = (dim for name, dim in site.dims if name in site.extents)
    for dim in (*extents, *natural):
        add_not_negative(known, dim)
    for left, right in site.equal:
        add_bound(known, left, right)
        found = number_of_equal(left, right)
        if found is not None:
            name, number = found
            known[name] = number, number
    return known


def _sites(module: Module) -> dict[str, list[Site]]:
    """The distinct sites of each executable's dispatches, by name."""
    names = {f.name: f.dim_names for f in module.executables}
    found: dict[str, dict[Site, None]] = {}
    for function in module.entry_points:
        equal = tuple((a.left, a.right) for a in function.assumptions)
        for op, name in dispatches_of(module, function):
            site = _site(dims_of_dispatch(op, names[name]), extents_of_dispatch(op), equal)
            found.setdefault(name, {})[site] = None
    return {name: list(sites) for name, sites in found.items()}


def _site(given: Mapping[str, Dim], extents: set[Dim], equal: Sequence[tuple[Dim, Dim]]) -> Site:
    """The site of a dispatch, with the assumptions about its symbols. Symbols are renamed in order
    of appearance, so that sites which differ only in names are equal."""
    numbers: dict[str, Dim] = {}
    for dim in given.values():
        for name in sorted(symbols(dim)):
            numbers.setdefault(name, symbol(f"s{len(numbers)}"))
    kept: list[tuple[Dim, Dim]] = []
    left = list(equal)
    while True:
        known = [pair for pair in left if not numbers.keys().isdisjoint(_symbols(pair))]
        if not known:
            break
        kept += known
        left = [pair for pair in left if pair not in known]
        for pair in known:
            for name in sorted(_symbols(pair)):
                numbers.setdefault(name, symbol(f"s{len(numbers)}"))
    dims = tuple((name, substitute(dim, numbers)) for name, dim in given.items())
    natural = frozenset(n for n, dim in given.items() if dim in extents or _is_natural(dim))
    return Site(
        dims, natural, tuple((substitute(a, numbers), substitute(b, numbers)) for a, b in kept)
    )


def _is_natural(dim: Dim) -> bool:
    low, _ = bounds(dim, {})
    return low is not None and low >= 0


def _symbols(pair: tuple[Dim, Dim]) -> set[str]:
    return symbols(pair[0]) | symbols(pair[1])


def _key(kernel: Kernel, sites: Sequence[Site], needs: Sequence[Dim], target: Target) -> str:
    facts = "\n".join([*map(str, sites), "needs", *map(str, needs)])
    parts = fingerprint(kernel), facts.encode(), str(target.word_bytes).encode()
    return key_of((b"proof", sources.digest(*_SOURCES), *parts))


def _hardest(ends: Mapping[str, int]) -> str:
    return max((way for way in ends if ends[way]), key=WAYS.index, default=WAYS[0])


def _refusal(
    function: Function, kernel: Kernel, target: Target, unproved: Sequence[Unproved]
) -> InternalError | CompileError:
    what = _message(function, target, unproved)
    if target.file:
        return CompileError(f"{what}: compile for one that comes with aotc, or report this")
    return InternalError(f"{what}; --disable {FEATURE} compiles without proofs\n{to_text(kernel)}")


def _message(function: Function, target: Target, unproved: Sequence[Unproved]) -> str:
    op = root_of(function)
    where = f" ({op.origin})" if op.origin else ""
    more = f", and {len(unproved) - 1} more" if len(unproved) > 1 else ""
    own = f"; the target is {target.file}" if target.file else ""
    return (
        f"executable {function.name}, {op.name}{where}, for {target.name}: no proof that its "
        f"kernel stays inside its memory: {unproved[0]}{more}{own}"
    )
