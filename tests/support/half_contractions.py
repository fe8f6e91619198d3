"""Contractions whose operands and results are stored as f16, and computed in f32."""

from __future__ import annotations

from tests.support.executables import LAST, PANELS, PLANES, Conv, Product


def conv(channels: int, layout: str = LAST) -> Conv:
    return Conv((channels, 20, 5, 9), 3, 1, 1, left=layout, stored="f16")


def matmul(*sizes: int) -> Product:
    rows, depth, columns = sizes
    return Product((rows, depth, columns), PANELS, stored="f16")


CONTRACTIONS: dict[str, Conv | Product] = {
    "conv": conv(32),
    "conv-dense": conv(32, PLANES),
    "conv-few-channels": conv(3),
    "conv-uneven": conv(37),
    "matmul": matmul(29, 64, 48),
    "matmul-one-row": matmul(1, 300, 33),
    "matmul-in-pieces": matmul(17, 519, 16),
    "matmul-short": matmul(17, 5, 16),
}
