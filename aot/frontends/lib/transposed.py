"""Transposed convolutions as plain convolutions, without the zeros that the definition inserts
between elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from aot.base.records import dataclass
from aot.frontends.lib.builder import GraphBuilder, static_extents
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value

# the most arithmetic, as a factor, that is worth a whole convolution in place of sums over taps
_WORTH_PHASES = 2.0
# the same where products are of so few channels that sums over taps take longer than they do
_WORTH_SHORT, _SHORT_CHANNELS = 2.5, 64
# so many filters fill the columns of tiles; as many dims at most have convolutions for each phase
_WORTH_APART = 16
_MOST_APART = 2


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution's options, with one number per spatial dim.

    Attributes:
        image: extents of the result.
        begins: how many elements are cut off at the begin of what the definition makes.
    """

    group: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    image: tuple[Dim, ...]
    begins: tuple[Dim, ...]


def transposed_extents(
    extents: Sequence[Dim],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    extra: Sequence[int],
) -> list[Dim]:
    """The extents of a transposed convolution's image before cropping, with `extra` elements at its
    ends."""
    return [
        dims.add(dims.multiply(dims.add(n, -1), s), (k - 1) * d + 1 + more)
        for n, s, k, d, more in zip(extents, strides, kernel, dilations, extra, strict=True)
    ]


def transposed_convolution(
    b: GraphBuilder, x: Value, w: Value, bias: Value | None, options: Transposed
) -> Value:
    """The transposed convolution of x [N, C, spatial...] with w [C, O / group, taps...].

    Raises:
        UnsupportedNodeError: the weight's dims are not known at compile time.
    """
    kernel = static_extents(w.type.dims[2:], "a kernel")
    is_dense = math.prod(options.dilations) == 1
    channels, filters = static_extents(w.type.dims[:2], "a weight")
    is_short = channels // options.group <= _SHORT_CHANNELS
    waste = _padding_waste(kernel, options.strides, filters if options.group == 1 else 0)
    if is_dense and waste <= (_WORTH_SHORT if is_short else _WORTH_PHASES):
        y = _by_phases(b, x, w, options)
    else:
        y = _by_taps(b, x, w, options)
    if bias is None:
        return y
    return b.emit("add", y, b.reshape(bias, (*bias.type.dims, *[1] * len(kernel))))


def _padding_waste(kernel: Sequence[int], strides: Sequence[int], filters: int) -> float:
    """The ratio by which a kernel grows when its extents are padded to multiples of the strides."""
    apart = _apart(kernel, strides, filters)
    return math.prod(
        1 if d in apart else -(-k // s) * s / k
        for d, (k, s) in enumerate(zip(kernel, strides, strict=True))
    )


def _by_phases(b: GraphBuilder, x: Value, w: Value, options: Transposed) -> Value:
    """A transposed convolution by phases: for each element of x, convolutions compute all pixels of
    one stride, which col2im arranges.

    Pixel q * stride + r is the sum over t of x[q - t] * w[t * stride + r]: for each r a
    convolution of its own, with every stride-th tap, in reverse. Phases r that have as many taps
    are columns of one convolution.
    """
    group, strides = options.group, options.strides
    channels, filters, *kernel = static_extents(w.type.dims, "a weight")
    rounds = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    ones = (1,) * len(strides)

    def convolved(w: Value, begins: Sequence[Dim], ends: Sequence[Dim]) -> Value:
        pads = (*begins, *ends)
        return b.emit("conv", x, w, None, strides=ones, dilations=ones, pads=pads, group=group)

    w = _reversed_phases(b, w, group, rounds, strides)
    if math.prod(strides) == 1 and all(
        isinstance(n, int) and n < t for n, t in zip(options.begins, rounds, strict=True)
    ):
        pads = [
            t - 1 - n for t, n in zip(rounds, options.begins, strict=True) if isinstance(n, int)
        ]
        ends = [
            dims.add(n, t - 1 - m - p)
            for n, t, m, p in zip(options.image, rounds, x.type.dims[2:], pads, strict=True)
        ]
        if all(isinstance(n, int) and n >= 0 for n in ends):
            filled = b.reshape(w, (group * filters, channels // group, *rounds))
            return convolved(filled, pads, ends)
    borders = tuple(t - 1 for t in rounds)
    if group > 1 or filters < _WORTH_APART:
        # pixels of a channel side by side, as results in planes want them
        filled = b.reshape(w, (group * filters * math.prod(strides), channels // group, *rounds))
        made = convolved(filled, borders, borders)
        split = b.reshape(made, (x.type.dims[0], group * filters, *strides, *made.type.dims[2:]))
        return _laid_out(b, split, options, ones)
    apart = _apart(kernel, strides, filters)
    parts = []
    for phases in product(*[range(s) if d in apart else (None,) for d, s in enumerate(strides)]):
        part, fewer = _phases(b, w, kernel, strides, phases)
        parts.append(convolved(part, [t - 1 for t in fewer], borders))
    made = parts[0] if len(parts) == 1 else b.emit("concat", *parts, axis=1)
    # channels of a pixel side by side
    outer = [*apart, *[d for d in range(len(strides)) if d not in apart]]
    counts = [strides[d] for d in outer]
    split = b.reshape(made, (x.type.dims[0], *counts, filters, *made.type.dims[2:]))
    perm = (
        0,
        len(strides) + 1,
        *[1 + outer.index(d) for d in range(len(strides))],
        *range(len(strides) + 2, split.type.rank),
    )
    return _laid_out(b, b.emit("transpose", split, perm=perm), options, ones)


def _apart(kernel: Sequence[int], strides: Sequence[int], filters: int) -> list[int]:
    """The spatial dims whose two phases get separate convolutions, as one phase has a tap less:
    padding it with zeros would cost more, if the convolutions have enough filters to fill tiles.
    """
    apart = [
        d
        for d, (k, s) in enumerate(zip(kernel, strides, strict=True))
        if s == 2 and k % 2 and k > 1
    ]
    return apart[:_MOST_APART] if filters >= _WORTH_APART else []


def _phases(
    b: GraphBuilder,
    w: Value,
    kernel: Sequence[int],
    strides: Sequence[int],
    phases: Sequence[int | None],
) -> tuple[Value, list[int]]:
    """(weight [phases * O, C, taps...], taps) of the convolution that computes some phases of a
    transposed one. `w` is one group's weight, split into phases with reversed taps; `phases` has
    the phase of each dim, or None for all.
    """
    spatial = len(strides)
    starts, stops = [0] * w.type.rank, list(static_extents(w.type.dims, "a weight"))
    rounds = []
    for d, (k, s, phase) in enumerate(zip(kernel, strides, phases, strict=True)):
        most = -(-k // s)
        count = most if phase is None else -(-(k - phase) // s)
        if phase is not None:
            starts[2 + d], stops[2 + d] = phase, phase + 1
        starts[3 + spatial + d] = most - count
        rounds.append(count)
    if any(starts) or stops != list(w.type.dims):
        w = b.emit("slice", w, starts=tuple(starts), stops=tuple(stops), steps=(1,) * w.type.rank)
    # [1, O, strides..., C, rounds...] to [strides..., O, C, rounds...]
    w = b.emit(
        "transpose", w, perm=(0, *range(2, 2 + spatial), 1, *range(2 + spatial, w.type.rank))
    )
    *columns, channels = static_extents(w.type.dims[: 3 + spatial], "a weight")
    return b.reshape(w, (math.prod(columns), channels, *rounds)), rounds


def _reversed_phases(
    b: GraphBuilder, w: Value, group: int, rounds: Sequence[int], strides: Sequence[int]
) -> Value:
    """A weight [C, O / group, taps...] rearranged to [group, O / group, strides..., C / group, taps
    per phase...], with the taps of each phase reversed."""
    spatial = len(strides)
    channels, filters, *kernel = static_extents(w.type.dims, "a weight")
    more = [t * s - k for t, s, k in zip(rounds, strides, kernel, strict=True)]
    if any(more):
        w = b.emit("pad", w, pads=(*[0] * (w.type.rank + 2), *more), mode="constant", value=0.0)
    pairs = [n for pair in zip(rounds, strides, strict=True) for n in pair]
    w = b.reshape(w, (group, channels // group, filters, *pairs))
    taps, phases = range(3, 3 + 2 * spatial, 2), range(4, 4 + 2 * spatial, 2)
    if any(t > 1 for t in rounds):
        w = b.emit(
            "slice",
            w,
            starts=tuple(n - 1 if d in taps else 0 for d, n in enumerate(w.type.shape)),
            stops=tuple(-1 if d in taps else n for d, n in enumerate(w.type.shape)),
            steps=tuple(-1 if d in taps else 1 for d in range(w.type.rank)),
        )
    return b.emit("transpose", w, perm=(0, 2, *phases, 1, *taps))


def _by_taps(b: GraphBuilder, x: Value, w: Value, options: Transposed) -> Value:
    """A transposed convolution as one product over channels per tap; col2im adds up each pixel's
    taps."""
    group, spatial = options.group, len(options.strides)
    channels, filters, *kernel = static_extents(w.type.dims, "a weight")
    taps = math.prod(kernel)
    # [C, O/g, taps...] to [g * O/g * taps, C/g, 1...]
    grouped = b.reshape(w, (group, channels // group, filters * taps))
    moved = b.emit("transpose", grouped, perm=(0, 2, 1))
    weight = b.reshape(moved, (group * filters * taps, channels // group, *[1] * spatial))
    ones = (1,) * spatial
    columns = b.emit(
        "conv", x, weight, None, strides=ones, dilations=ones, pads=(0,) * 2 * spatial, group=group
    )
    split = b.reshape(columns, (x.type.dims[0], group * filters, *kernel, *x.type.dims[2:]))
    return _laid_out(b, split, options, options.dilations)


def _laid_out(
    b: GraphBuilder, split: Value, options: Transposed, dilations: Sequence[int]
) -> Value:
    return b.emit(
        "col2im",
        split,
        image=options.image,
        strides=options.strides,
        dilations=tuple(dilations),
        begins=options.begins,
    )
