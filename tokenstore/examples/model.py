"""A small GPT for packed rows, and three ways to isolate the documents of a row.

A row holds several documents. No document may attend to another, and positions count from 0 in each. Then the model sees every
document as if it were alone. The loader reports where documents are; one of these functions turns this into `attend`:

    by_mask(document_ids)                one mask, for any device; costs L x L per row
    by_flex(document_ids)                FlexAttention: skips masked blocks; its backward needs a GPU
    by_pieces(cu_seqlens, max_seqlen)    one call per document; on a GPU in half precision one kernel call for all

Empty rows, and the padding after documents, count as documents, so every position has something to attend to.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # q, k, v -> out, all float[B, heads, L, D]


def by_mask(document_ids: torch.Tensor) -> Attend:
    """Attention by document. document_ids: int64[B, L] of the batch."""
    mask = (document_ids[:, :, None] == document_ids[:, None, :]).tril()[:, None]
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def by_flex(document_ids: torch.Tensor) -> Attend:
    """Attention by document. document_ids: int64[B, L] of the batch."""
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(b: torch.Tensor, _head: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q >= k) & (document_ids[b, q] == document_ids[b, k])

    rows, length = document_ids.shape
    mask = create_block_mask(sees, rows, None, length, length, device=document_ids.device)
    return lambda q, k, v: _flex(q.is_cuda)(q, k, v, block_mask=mask)


@cache
def _flex(compiled: bool) -> Callable[..., torch.Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    attention: Any = flex_attention  # its annotation always includes the log-sum-exp
    return torch.compile(attention) if compiled else attention


def by_pieces(cu_seqlens: torch.Tensor, max_seqlen: int) -> Attend:
    """Attention by document. cu_seqlens: int32[n + 1] of the batch; max_seqlen: the longest piece."""
    sizes = cu_seqlens.diff().tolist()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shape = q.transpose(1, 2).shape  # [B, L, heads, D]
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # [B x L, heads, D]: the rows joined
        if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16):
            from torch.nn.attention.varlen import varlen_attn

            out: Any = varlen_attn(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, window_size=(-1, 0))
        else:
            pieces = zip(*(x.transpose(0, 1).split(sizes, 1) for x in (q, k, v)), strict=True)
            out = torch.cat([causal(*piece) for piece in pieces], 1).transpose(0, 1)
        result: torch.Tensor = out.reshape(shape).transpose(1, 2)
        return result

    return attend


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention in rows of one document each, or without isolation."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Apply the block to x: float[B, L, width]."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        x = x + self.out(attend(q, k, v).transpose(1, 2).flatten(-2))
        result: torch.Tensor = x + self.feed(self.norms[1](x))
        return result


class GPT(nn.Module):
    """A GPT with the same initial weights each time. `length` is the longest document in a row."""

    def __init__(self, vocabulary: int, length: int, width: int = 64, heads: int = 4, layers: int = 2):
        torch.manual_seed(0)
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, position_ids: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Logits of the next tokens, float[B, L, vocabulary], for ids int64[B, L] and positions int64[B, L] or int64[L]."""
        x = self.tokens(ids) + self.positions(position_ids)
        for block in self.blocks:
            x = block(x, attend)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits
