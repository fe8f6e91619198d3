"""Random graphs in which nearly every op reads what another made, so that fusion has a say in all.

Images and sequences of few shapes, of open batch or not, that convolutions, pools, normalisations,
attention-like products, concats, slices, shuffles and elementwise chains lead between. Choices come
from a function, so that hypothesis can shrink them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aot.builder import Builder
from aot.ir.graph import Module, Value

Choose = Callable[[int], int]  # a number below the one given
Array = np.ndarray[Any, Any]

CHANNELS, HEIGHT, WIDTH = 8, 5, 6
UNARY = ("relu", "neg", "tanh", "sigmoid", "abs", "hard_swish", "gelu")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
MOST_VALUES = 24  # that one op may choose from: recent ones, so that chains are long


class FusedGraph:
    """One function, as it is made.

    Attributes:
        batch: the open dim, or a number.
        images, rows: values of [batch, channels, height, width], and of [batch, steps, channels].
    """

    def __init__(self, choose: Choose, size: int) -> None:
        self.choose = choose
        self.b = Builder()
        self.batch: str | int = ("N", 1, 2)[choose(3)]
        n = self.batch
        self.images = [self.b.input("x", f"f32[{n}, {CHANNELS}, {HEIGHT}, {WIDTH}]")]
        self.rows = [self.b.input("s", f"f32[{n}, {HEIGHT * WIDTH}, {CHANNELS}]")]
        self.rng = np.random.default_rng(choose(4))
        self.extra: list[Value] = []
        makers = (
            self.elementwise, self.elementwise, self.elementwise, self.convolve, self.convolve,
            self.pool, self.excite, self.halves, self.shuffle, self.turn, self.project,
            self.attend, self.normalise, self.narrow, self.choice, self.counted,
        )  # fmt: skip
        for _ in range(size):
            makers[choose(len(makers))]()
        self.end()
        self.module: Module = self.b.module()

    def end(self) -> None:
        values = [*self.images, *self.rows, *self.extra]
        unused = [v for v in values if not v.uses and v.op is not None] or values[-1:]
        for number, value in enumerate(unused[-4:]):
            self.b.output(f"y{number}", value)

    def inputs(self, seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        n = self.batch if isinstance(self.batch, int) else 1 + seed % 3
        shapes = {"x": (n, CHANNELS, HEIGHT, WIDTH), "s": (n, HEIGHT * WIDTH, CHANNELS)}
        return {k: rng.uniform(-2, 2, shape).astype(np.float32) for k, shape in shapes.items()}

    # values

    def pick(self, values: Sequence[Value]) -> Value:
        recent = values[-MOST_VALUES:]
        return recent[-1 - self.choose(len(recent))]

    def image(self) -> Value:
        return self.pick(self.images)

    def pool_of(self) -> list[Value]:
        return (self.images, self.rows)[self.choose(2)]

    def constant(self, *shape: int) -> Value:
        return self.b.constant(self.rng.uniform(-0.5, 0.5, shape).astype(np.float32))

    # ops

    def elementwise(self) -> None:
        b, values = self.b, self.pool_of()
        kind = self.choose(4)
        if kind == 0:
            found = b.op(UNARY[self.choose(len(UNARY))], self.pick(values))
        elif kind == 1:
            shape = (CHANNELS, 1, 1) if values is self.images else (CHANNELS,)
            found = b.op(BINARY[self.choose(5)], self.pick(values), self.constant(*shape))
        else:
            found = b.op(BINARY[self.choose(5)], self.pick(values), self.pick(values))
        values.append(found)

    def convolve(self) -> None:
        kind, window = self.choose(3), {"strides": (1, 1), "dilations": (1, 1)}
        if kind == 0:
            weight, pads, group = self.constant(CHANNELS, CHANNELS, 1, 1), (0, 0, 0, 0), 1
        elif kind == 1:
            weight, pads, group = self.constant(CHANNELS, CHANNELS, 3, 3), (1, 1, 1, 1), 1
        else:
            weight, pads, group = self.constant(CHANNELS, 1, 3, 3), (1, 1, 1, 1), CHANNELS
        bias = self.constant(CHANNELS) if self.choose(2) else None
        made = self.b.op("conv", self.image(), weight, bias, pads=pads, group=group, **window)
        self.images.append(made)

    def pool(self) -> None:
        name = ("max_pool", "average_pool")[self.choose(2)]
        window = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
        self.images.append(self.b.op(name, self.image(), **window))

    def excite(self) -> None:
        b, x = self.b, self.image()
        mean = b.op("reduce_mean", x, axes=(2, 3))
        window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
        small = b.op("relu", b.op("conv", mean, self.constant(2, CHANNELS, 1, 1), **window))
        gate = b.op("sigmoid", b.op("conv", small, self.constant(CHANNELS, 2, 1, 1), **window))
        self.images.append(b.op("mul", x, gate))

    def halves(self) -> None:
        b, x, half = self.b, self.image(), CHANNELS // 2
        n = x.type.dims[0]
        parts = [
            b.op(
                "slice",
                x,
                starts=(0, first, 0, 0),
                stops=(n, first + half, HEIGHT, WIDTH),
                steps=(1, 1, 1, 1),
            )
            for first in (0, half)
        ]
        for number in range(2):
            kind = self.choose(3)
            if kind == 1:
                parts[number] = b.op("relu", parts[number])
            elif kind == 2:
                window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
                weight = self.constant(half, half, 1, 1)
                parts[number] = b.op("conv", parts[number], weight, **window)
        if self.choose(2):
            parts.reverse()
        self.images.append(b.op("concat", *parts, axis=1))

    def shuffle(self) -> None:
        b, x = self.b, self.image()
        n = x.type.dims[0]
        split = b.op("reshape", x, shape=(n, 2, CHANNELS // 2, HEIGHT, WIDTH))
        moved = b.op("transpose", split, perm=(0, 2, 1, 3, 4))
        self.images.append(b.op("reshape", moved, shape=x.type.dims))

    def turn(self) -> None:
        """An image as rows, or rows as an image."""
        b = self.b
        if self.choose(2):
            x = self.image()
            flat = b.op("reshape", x, shape=(x.type.dims[0], CHANNELS, HEIGHT * WIDTH))
            self.rows.append(b.op("transpose", flat, perm=(0, 2, 1)))
        else:
            x = b.op("transpose", self.pick(self.rows), perm=(0, 2, 1))
            shape = (x.type.dims[0], CHANNELS, HEIGHT, WIDTH)
            self.images.append(b.op("reshape", x, shape=shape))

    def project(self) -> None:
        b, x = self.b, self.pick(self.rows)
        made = [
            b.op("matmul", x, self.constant(CHANNELS, CHANNELS)) for _ in range(1 + self.choose(3))
        ]
        if self.choose(2):
            made = [b.op("add", m, self.constant(CHANNELS)) for m in made]
        self.rows += made

    def attend(self) -> None:
        b, keys = self.b, self.pick(self.rows)
        scores = b.op("matmul", self.pick(self.rows), b.op("transpose", keys, perm=(0, 2, 1)))
        if self.choose(2):
            scores = b.op("mul", scores, b.constant(np.float32(0.35)))
        weights = b.op("softmax", scores, axis=2)
        self.rows.append(b.op("matmul", weights, self.pick(self.rows)))

    def normalise(self) -> None:
        b, kind = self.b, self.choose(3)
        if kind == 0:
            self.rows.append(b.op("softmax", self.pick(self.rows), axis=2))
        elif kind == 1:
            scale, bias = self.constant(CHANNELS), self.constant(CHANNELS)
            self.rows.append(b.op("layer_norm", self.pick(self.rows), scale, bias, axis=2))
        else:
            x = self.image()
            away = b.op("sub", x, b.op("reduce_mean", x, axes=(2, 3)))
            spread = b.op("reduce_mean", b.op("mul", away, away), axes=(2, 3))
            root = b.op("sqrt", b.op("add", spread, b.constant(np.float32(1e-3))))
            self.images.append(b.op("div", away, root))

    def narrow(self) -> None:
        values = self.pool_of()
        half = self.b.op("cast", self.pick(values), to="f16")
        values.append(self.b.op("cast", half, to="f32"))

    def choice(self) -> None:
        values = self.pool_of()
        a, other = self.pick(values), self.pick(values)
        values.append(self.b.op("where", self.b.op("less", a, other), self.pick(values), other))

    def counted(self) -> None:
        """What places and dims give, and a reduction that others may read."""
        b, x = self.b, self.pick(self.rows)
        if self.choose(2):
            place = b.op("cast", b.op("range", size=CHANNELS), to="f32")
            self.rows.append(b.op("mul", x, place))
        else:
            largest = b.op("reduce_max", x, axes=(1,))
            self.extra.append(largest)
            self.rows.append(b.op("sub", x, largest))
