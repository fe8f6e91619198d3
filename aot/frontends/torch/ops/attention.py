"""PyTorch's scaled dot-product attention, by the shared decomposition."""

from __future__ import annotations

from aot.frontends.lib.attention import attention
from aot.frontends.torch.table import Node, UnsupportedNodeError, torch_op
from aot.ir import dims
from aot.ir.graph import Value


@torch_op("aten.scaled_dot_product_attention.default")
def scaled_dot_product_attention(
    n: Node,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    is_grouped: bool = False,
) -> Value:
    if dropout != 0:
        raise UnsupportedNodeError("dropout in training is not supported")
    rank = q.type.rank
    if rank < 4:  # heads and a batch of one
        q, k, v = (n.reshape(x, (*[1] * (4 - rank), *x.type.dims)) for x in (q, k, v))
    elif rank > 4:
        outer = q.type.dims[:-3]
        q, k, v = (n.reshape(x, (dims.product(outer), *x.type.dims[-3:])) for x in (q, k, v))
        if mask is not None and mask.type.rank > 3:
            whole = (*outer, *mask.type.dims[-3:])
            mask = n.reshape(n.broadcast(mask, whole), (dims.product(outer), *whole[-3:]))
    made = attention(n, q, k, v, mask, scale=scale, ahead=0 if is_causal else None)
    return n.reshape(made, n.dims)
