"""Calls of PyTorch, by family: what the rules are held against, interpreted and as native code."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # has the operators of quantized models registered
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils import _pytree as pytree

from tilewright.frontends.torch.program import Imported
from tilewright.frontends.torch.tensors import array_of
from tilewright.graph import interpret
from tilewright.graph.verify import verify

aten, quantized = torch.ops.aten, torch.ops.quantized_decomposed
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def _f(*shape: int, of: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.testing.make_tensor(shape, dtype=of, device="cpu", low=-2, high=2)


def _i(*shape: int, low: int = -9, high: int = 9) -> torch.Tensor:
    return torch.randint(low, high, shape)


def _b(*shape: int) -> torch.Tensor:
    return torch.rand(shape) > 0.5


X, Y = _f(3, 5), _f(3, 5)
NAN = torch.tensor([1.0, float("nan"), -0.0, float("inf"), -float("inf"), 2.5])
IMAGE = _f(2, 4, 9, 8)
HEADS = (_f(1, 3, 5, 8), _f(1, 3, 5, 8), _f(1, 3, 5, 8))
I64, BITS = _i(3, 5), _b(3, 5)

SPAN = torch.linspace(-20, 20, 41)
SQUARE = _f(2, 4, 4)
POSITIVE = SQUARE @ SQUARE.mT + 2 * torch.eye(4)
COMPLEX, COMPLEX2 = torch.complex(X, Y), torch.complex(Y + 3, X)
torch.manual_seed(0)
LAYER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False)
ATTENTION = nn.MultiheadAttention(8, 2, batch_first=True).eval().requires_grad_(False)


def _projections(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What does not depend on the signs of singular vectors."""
    u, s, v = torch.linalg.svd(a, full_matrices=True)
    values, vectors = torch.linalg.eigh(a.mT @ a)
    return u @ u.mT, s, (u[:, :3] * s) @ v, values, (vectors * values) @ vectors.mT


def _packed(*shape: int) -> torch.Tensor:
    codes = torch.randint(0, 16, shape, dtype=torch.int32)
    return aten._convert_weight_to_int4pack_for_cpu(codes, 1)


def _small(*shape: int) -> torch.Tensor:
    return _f(*shape).to(torch.float8_e4m3fn)


INT4 = _packed(32, 64)  # a constant of the trace, as weights are
SLOPES = _f(2)


def _sloped(score: torch.Tensor, b: Any, h: Any, m: Any, n: Any) -> torch.Tensor:
    return score + SLOPES[h] * (m - n)


def _attended(
    score: Callable[..., torch.Tensor] | None = None,
    mask: Callable[..., torch.Tensor] | None = None,
    lengths: tuple[int, int] = (5, 5),
) -> Callable[..., Any]:
    blocks = None if mask is None else create_block_mask(mask, None, None, *lengths, device="cpu")

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it runs without torch.compile
            return flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True)

    return run


def _masked(mask: Callable[..., torch.Tensor]) -> Case:
    return _attended(None, mask, (9, 12)), (_f(2, 4, 9, 8), _f(2, 2, 12, 8), _f(2, 2, 12, 8))


DOCUMENTS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2])


FAMILIES: dict[str, dict[str, Case]] = {
    "quantized": {
        "per tensor": (
            lambda a: quantized.quantize_per_tensor(a, 0.05, 3, -128, 127, torch.int8),
            (X,),
        ),
        "to a part of the range": (
            lambda a: quantized.quantize_per_tensor(a, 0.01, 0, -127, 100, torch.int8),
            (X,),
        ),
        "scales that are computed": (
            lambda a, s, z: quantized.quantize_per_tensor.tensor(a, s, z, 0, 255, torch.uint8),
            (X, torch.tensor(0.1), torch.tensor(9)),
        ),
        "and back": (
            lambda a: quantized.dequantize_per_tensor(a, 0.05, 100, 0, 255, torch.uint8),
            (torch.arange(0, 256, 10, dtype=torch.uint8),),
        ),
        "per channel": (
            lambda a, s, z: quantized.dequantize_per_channel(
                quantized.quantize_per_channel(a, s, z, 1, -128, 127, torch.int8),
                *(s, z, 1, -128, 127, torch.int8),
            ),
            (X, torch.rand(5) + 0.01, _i(5)),
        ),
        "per group": (
            lambda a, s, z: quantized.dequantize_per_channel_group(
                quantized.quantize_per_channel_group(a, s, z, -8, 7, torch.int8, 4),
                *(s, z, -8, 7, torch.int8, 4, torch.float32),
            ),
            (_f(3, 8), torch.rand(3, 2) + 0.1, torch.zeros(3, 2)),
        ),
        "per token": (
            lambda a: quantized.quantize_per_token(
                a,
                *quantized.choose_qparams_per_token_asymmetric(a, torch.int8),
                *(-128, 127, torch.int8),
            ),
            (X,),
        ),
        "the range that is there": (
            lambda a: quantized.choose_qparams.tensor(a, 0, 255, 1e-7, torch.uint8),
            (X,),
        ),
        "and one around zero": (
            lambda a: quantized.choose_qparams_symmetric.tensor(a, -128, 127, 1e-7, torch.int8),
            (X,),
        ),
        "weights of eight bits": (
            aten._weight_int8pack_mm,
            (_f(3, 64), _i(32, 64, low=-128, high=127).to(torch.int8), torch.rand(32)),
        ),
        "weights of four bits": (
            lambda a, s: aten._weight_int4pack_mm_for_cpu(a, INT4, 32, s),
            (_f(3, 64), torch.rand(2, 32, 2)),
        ),
        "floats of eight bits": (
            lambda a, b, s, t: torch._scaled_mm(a, b.t(), s, t, out_dtype=torch.float32),
            (_small(16, 32), _small(16, 32), torch.tensor(2.0), torch.tensor(0.5)),
        ),
    },
    "flex attention": {
        "scores with slopes, heads that share keys": (
            _attended(_sloped),
            (_f(2, 2, 6, 8), _f(2, 1, 7, 8), _f(2, 1, 7, 8)),
        ),
        "scores that are capped": (
            _attended(lambda score, b, h, i, j: 20 * torch.tanh(score / 20)),
            HEADS,
        ),
        "scores and a number of each head": (
            _attended(lambda score, b, h, i, j: score + 0.1 * h),
            HEADS,
        ),
        "slopes that are computed": (
            _attended(lambda score, b, h, i, j: score + torch.exp2(-(h + 1) * 8.0 / 2) * (i - j)),
            HEADS,
        ),
        "a mask in the scores": (
            _attended(lambda score, b, h, i, j: torch.where(i >= j, score + 0.1 * h, -torch.inf)),
            HEADS,
        ),
        "a mask that hides": (
            _attended(lambda score, b, h, i, j: torch.where(i < j, -torch.inf, score * 2) - 0.5),
            HEADS,
        ),
        "scores that are squared": (_attended(lambda score, b, h, i, j: score * score), HEADS),
        "scores without a name for all": (_attended(), HEADS),
        "no later keys": _masked(lambda b, h, i, j: i >= j),
        "earlier keys alone": _masked(lambda b, h, i, j: i > j),
        "later keys alone": _masked(lambda b, h, i, j: j - i >= 1),
        "all but the last keys": _masked(lambda b, h, i, j: j <= i + 2),
        "a window": _masked(lambda b, h, i, j: (i >= j) & (i - j < 4)),
        "a window on both sides": _masked(lambda b, h, i, j: (i - j).abs() <= 2),
        "a narrow window": _masked(lambda b, h, i, j: (j - i).abs() < 1),
        "a window that is shifted": _masked(lambda b, h, i, j: (j - i - 1).abs() <= 2),
        "a prefix that all see": _masked(lambda b, h, i, j: (i >= j) | (j < 3)),
        "keys that a buffer tells": _masked(
            lambda b, h, i, j: (DOCUMENTS[i] == DOCUMENTS[j]) & (i >= j)
        ),
        "masks of heads": _masked(lambda b, h, i, j: (i >= j) & (j >= h) & (i >= 2)),
        "masks of batches": _masked(lambda b, h, i, j: j < 3 * (b + 1)),
        "a mask and slopes": (
            _attended(
                lambda score, b, h, i, j: score + (j - i) * torch.exp2(-(h + 1.0)),
                lambda b, h, i, j: (i >= j) & (DOCUMENTS[i] == DOCUMENTS[j]),
            ),
            HEADS,
        ),
    },
    "elementwise": {
        "promotion of int and float": (lambda a, b: a + b, (I64, X)),
        "promotion of bool": (lambda a, b: a * b + 2, (BITS, I64)),
        "bool plus bool": (lambda a, b: a + b, (BITS, _b(3, 5))),
        "a float scalar": (lambda a: a * 1.5, (I64,)),
        "alpha": (lambda a, b: torch.sub(a, b, alpha=2), (X, Y)),
        "no alpha for bools": (lambda a, b: torch.add(a, b, alpha=False), (BITS, _b(3, 5))),
        "a range made whole": (
            lambda a: a[0, :4] + torch.arange(2.1, -2.9, -1, dtype=torch.int64),
            (I64,),
        ),
        "true division of ints": (lambda a: a / 4, (I64,)),
        "floor division": (lambda a: torch.div(a, 4, rounding_mode="floor"), (I64,)),
        "truncated division": (lambda a: torch.div(a, -4, rounding_mode="trunc"), (I64,)),
        "floor division of floats": (lambda a, b: a // b, (X, Y)),
        "remainders": (lambda a: (torch.remainder(a, 4), torch.fmod(a, 4)), (I64,)),
        "remainders of floats": (lambda a: (torch.remainder(a, -0.7), torch.fmod(a, 0.7)), (X,)),
        "rounds half to even": (torch.round, (torch.tensor([0.5, 1.5, 2.5, -0.5]),)),
        "round of ints": (torch.round, (I64,)),
        "sqrt of ints": (lambda a: a.abs().sqrt(), (I64,)),
        "nan in extremes": (lambda a: (a.clamp(-1, 1), torch.maximum(a, a.flip(0))), (NAN,)),
        "isnan, isinf": (lambda a: (a.isnan(), a.isinf()), (NAN,)),
        "comparison with promotion": (lambda a: (a > 0.5, a == 1), (I64,)),
        "comparison of bools": (lambda a, b: (a < b, a != b), (BITS, _b(3, 5))),
        "bits": (lambda a, b: (a & b, a | 3, a ^ b, ~a), (I64, _i(3, 5))),
        "logic": (lambda a, b: (torch.logical_and(a, b), torch.logical_not(a)), (I64, X)),
        "shifts": (lambda a: (a << 3, a >> 2, a << 70), (I64,)),
        "where": (lambda c, a, b: torch.where(c, a, b), (BITS, X, I64)),
        "powers": (lambda a: (a**2, a.abs() ** 0.5, a.abs() ** 1.7, 2**a), (X,)),
        "powers of ints": (lambda a: (a**3, 2.0**a), (I64,)),
        "clamp": (lambda a: (a.clamp(min=-0.5), a.clamp(max=1), a.clamp(-1, 1)), (X,)),
        "casts": (lambda a: (a.to(torch.int32), a.to(torch.bool), a.half()), (X,)),
        "functions": (lambda a: (a.exp(), a.erf(), a.log1p(), a.atan(), a.expm1()), (X.abs(),)),
        "signs": (lambda a: (a.sign(), a.abs(), -a), (NAN,)),
        "bfloat16": (lambda a: (a * a + 1).sigmoid(), (X.bfloat16(),)),
    },
    "activation": {
        "gelu": (lambda a: (F.gelu(a), F.gelu(a, approximate="tanh")), (X,)),
        "hard": (lambda a: (F.hardtanh(a), F.hardswish(a), F.hardsigmoid(a)), (3 * X,)),
        "soft": (lambda a: (F.softplus(a), F.silu(a), F.mish(a), F.elu(a, 0.7)), (X,)),
        "leaky": (lambda a: (F.leaky_relu(a, 0.2), F.relu6(a), F.selu(a)), (X,)),
        "softmax": (lambda a: (F.softmax(a, 1), F.log_softmax(a, 0)), (X,)),
        "softmax of a scalar": (lambda a: F.softmax(a, 0), (torch.tensor(2.0),)),
        "drawn slopes": (lambda a: F.rrelu(a, 0.2, 0.2, training=True), (X,)),
        "glu": (lambda a: F.glu(a, 0), (_f(4, 3),)),
    },
    "shape": {
        "views": (lambda a: (a.view(5, 3), a.flatten(), a.unsqueeze(1), a[None]), (X,)),
        "order": (lambda a: (a.t(), a.permute(1, 0), a.transpose(0, 1).contiguous()), (X,)),
        "slices": (lambda a: (a[1:, ::2], a[-2:], a[:, -3:-1], a[1], a[:, -1]), (X,)),
        "cat and stack": (lambda a, b: (torch.cat([a, b], 1), torch.stack([a, b], 1)), (X, Y)),
        "cat promotes": (lambda a, b: torch.cat([a, b]), (X, I64)),
        "splits": (lambda a: (*a.split(2, 1), *a.chunk(2, 0), *a.unbind(0)), (X,)),
        "repeats": (lambda a: (a.repeat(2, 1, 3), a.expand(2, 3, 5)), (X,)),
        "flip and roll": (lambda a: (a.flip(0, 1), a.roll(2, 1), a.roll((1, -1), (0, 1))), (X,)),
        "pads": (lambda a: (F.pad(a, (1, 2), value=3), F.pad(a, (-1, 1, 2, 0))), (X,)),
        "mirrored pads": (
            lambda a: (F.pad(a, (2, 1, 1, 3), "reflect"), F.pad(a, (2, 1, 1, 3), "replicate")),
            (IMAGE,),
        ),
        "diagonals": (lambda a: (a.diagonal(), a.diagonal(1), a.diagonal(-1)), (X,)),
        "as_strided": (lambda a: a.as_strided((2, 2), (1, 3), 1), (X,)),
        "as_strided of everything in order": (
            lambda a: (
                a.as_strided((3, 1, 5, 1), (5, 99, 1, 7)),
                a.as_strided((5, 3), (3, 1)),
                a.as_strided((5, 3), (1, 5)),
                a.as_strided((2, 5), (5, 1)),
            ),
            (X,),
        ),
        "unfold": (lambda a: a.unfold(1, 3, 2), (X,)),
        "tril and triu": (lambda a: (a.tril(), a.triu(1)), (X,)),
        "an empty tensor": (lambda a: (a[:0], a[:0].sum(), torch.cat([a[:0], a])), (X,)),
    },
    "creation": {
        "full": (lambda a: (torch.full((2, 3), 7), torch.zeros_like(a), a.new_ones(2)), (X,)),
        "ranges": (lambda a: (torch.arange(5) + a[0], torch.arange(0, 1, 0.3)), (X,)),
        "whole ends": (
            lambda a, b: (
                torch.linspace(4.7, -3.2, 9, dtype=torch.int64),
                torch.linspace(a, b, 9, dtype=torch.int64),
            ),
            (torch.tensor(4.7), torch.tensor(-3.2)),
        ),
        "linspace and eye": (lambda a: (torch.linspace(0, 1, 5) + a, torch.eye(3)), (X,)),
    },
    "reduction": {
        "sums": (lambda a: (a.sum(), a.sum(0), a.sum(1, keepdim=True), a.mean(1)), (X,)),
        "of ints and bools": (lambda a, b: (a.sum(), b.sum(1), b.any(), b.all(0)), (I64, BITS)),
        "products": (lambda a: (a.prod(), a.prod(1), a.prod(1, dtype=torch.bool)), (X,)),
        "extremes": (lambda a: (a.amax(1), a.amin(0), a.max(), *a.max(1), *a.min(0)), (X,)),
        "places": (lambda a: (a.argmax(), a.argmax(1), a.argmin(0, keepdim=True)), (X,)),
        "places of nan": (lambda a: (a.argmax(), a.max(), a.max(0)[1]), (NAN,)),
        "moments": (lambda a: (a.var(1), a.std(0), a.var(unbiased=False)), (X,)),
        "both moments": (lambda a: torch.var_mean(a, 1, correction=0), (X,)),
        "running": (lambda a: (a.cumsum(1), a.cumprod(0)), (X,)),
        "norms": (lambda a: (a.norm(), torch.linalg.vector_norm(a, 1, 1)), (X,)),
        "distances": (lambda a, b: torch.cdist(a, b), (X, _f(4, 5))),
        "of a scalar": (
            lambda a: (a.sum(), a.max(), a.argmax(), a.cumsum(0)),
            (torch.tensor(2.0),),
        ),
    },
    "indexing": {
        "embedding": (lambda w, i: F.embedding(i, w), (X, _i(2, 4, low=0, high=3))),
        "one list": (lambda a, i: (a[i], a[:, i]), (_f(4, 4), _i(2, 3, low=-4, high=4))),
        "two lists": (
            lambda a, i, j: (a[i, j], a[i, :, j]),
            (IMAGE, _i(3, low=0, high=2), _i(3, low=0, high=4)),
        ),
        "two lists with a gap": (lambda a, i: a[:, i, :, i], (IMAGE, _i(3, low=0, high=4))),
        "gather": (lambda a, i: a.gather(1, i), (X, _i(2, 4, low=0, high=5))),
        "rows of a greatest norm": (
            lambda w, i: tuple(aten.embedding_renorm(w, i, 1.5, p) for p in (1.0, 2.0)),
            (Y, torch.tensor([[2, 0], [2, 2]])),
        ),
        "distinct": (
            lambda i: (torch.unique(i), *torch.unique(i, return_counts=True, dim=0)),
            (torch.tensor([3, 1, 3, 3]),),
        ),
        "distinct of none": (
            lambda a: torch.unique(a, return_inverse=True, return_counts=True, dim=1),
            (_f(3, 0, 2),),
        ),
        "runs of equal slices": (
            lambda i: torch.unique_consecutive(i, return_inverse=True, return_counts=True, dim=1),
            (torch.tensor([[3, 3, 1, 1, 1], [4, 4, 4, 4, 5]]),),
        ),
        "gather nothing": (lambda a, i: (a[0].gather(0, i), a.gather(1, i)), (X, _i(2, 0))),
        "masked_scatter to the shape of the mask": (
            lambda a, m, s: a.masked_scatter(m, s),
            (_f(5), _b(3, 5), _f(3, 5)),
        ),
        "index_select": (lambda a, i: a.index_select(1, i), (X, _i(4, low=0, high=5))),
        "put": (lambda a, i: a.index_put((i,), torch.ones(5)), (X, torch.tensor([2, 0]))),
        "put and add": (
            lambda a, i: a.index_put((i, i), torch.tensor(2.0), accumulate=True),
            (X, torch.tensor([1, 1, 2])),
        ),
        "masked fill": (lambda a, m: (a.masked_fill(m, 0.5), torch.where(m, a, 0)), (X, BITS)),
        "scatter": (
            lambda a, i, s: (a.scatter(1, i, s), a.scatter(1, i, 2.0), a.scatter_add(1, i, s)),
            (X, torch.tensor([[0, 1], [2, 0], [4, 3]]), Y),
        ),
        "scatter_reduce": (
            lambda a, i, s: tuple(
                a.scatter_reduce(1, i, s, kind, include_self=keeps)
                for kind in ("sum", "prod", "mean", "amax", "amin")
                for keeps in (True, False)
            ),
            (X, torch.tensor([[0, 0, 1], [2, 0, 0], [4, 3, 4]]), Y),
        ),
        "scatter_reduce of booleans": (
            lambda a, i, s: tuple(
                a.scatter_reduce(1, i, s, kind, include_self=keeps)
                for kind in ("sum", "prod", "amax", "amin")
                for keeps in (True, False)
            ),
            (BITS, torch.tensor([[0, 0, 1], [2, 0, 0], [4, 3, 4]]), _b(3, 5)),
        ),
        "take": (
            lambda a, i: (a.take(i), a.take(i[0, 0]), a[0, 0].take(i[1:, 1:] * 0)),
            (X, torch.tensor([[14, 0], [-1, 7]])),
        ),
        "gradients of repeated borders": (
            lambda g, a: (
                aten.replication_pad2d_backward(g, a, (2, 1, 0, 3)),
                aten.replication_pad1d_backward(g[0, :, :4], a[0], (4, -1)),
            ),
            (_f(2, 3, 7, 8), _f(2, 3, 4, 5)),
        ),
        "indices of triangles": (
            lambda a: a[tuple(torch.tril_indices(3, 5, 1))] + torch.triu_indices(3, 4).sum(),
            (X,),
        ),
        "slice_scatter": (
            lambda a, s: (a.slice_scatter(s, 1, 1, 3), a.select_scatter(s[:, 0], 1, -1)),
            (X, _f(3, 2)),
        ),
        "slice_scatter with a step": (lambda a, s: a.slice_scatter(s, 1, 0, 5, 2), (X, _f(3, 3))),
        "masked_scatter": (lambda a, m, s: a.masked_scatter(m, s), (X, BITS, _f(20))),
        "index_add": (lambda a, i, s: a.index_add(0, i, s), (X, torch.tensor([2, 2]), _f(2, 5))),
    },
    "linalg": {
        "products": (lambda a, b: (a @ b.T, a.mv(b[0]), a[0].dot(b[1])), (X, Y)),
        "stacks": (lambda a, b: (a @ b, torch.bmm(a[0], b[0])), (_f(2, 3, 4, 5), _f(2, 3, 5, 2))),
        "addmm": (lambda c, a, b: torch.addmm(c, a, b.T, beta=0.5, alpha=2), (_f(3, 3), X, Y)),
        "linear": (lambda a, w, b: F.linear(a, w, b), (_f(2, 3, 5), _f(4, 5), _f(4))),
        "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), (_f(2, 3, 5), _f(2, 4, 5))),
        "integers": (lambda a, b: a @ b.T, (I64, _i(3, 5))),
        "groups of rows": (
            lambda a, w, ends: torch._grouped_mm(a, w, offs=ends),
            (_f(8, 8).bfloat16(), _f(3, 8, 8).bfloat16(), torch.tensor([2, 2, 8]).int()),
        ),
    },
    "attention": {
        "plain": (F.scaled_dot_product_attention, (_f(2, 3, 5, 8), _f(2, 3, 7, 8), _f(2, 3, 7, 8))),
        "one batch of queries for all": (
            F.scaled_dot_product_attention,
            (_f(3, 5, 8), _f(2, 3, 7, 8), _f(2, 3, 7, 8)),
        ),
        "causal": (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            (_f(2, 3, 5, 8), _f(2, 3, 5, 8), _f(2, 3, 5, 8)),
        ),
        "masked, of rank 3": (
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3),
            (_f(3, 5, 8), _f(3, 7, 8), _f(3, 7, 8), _f(3, 5, 7)),
        ),
        "shared heads": (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            (_f(2, 4, 5, 8), _f(2, 2, 5, 8), _f(2, 2, 5, 8)),
        ),
    },
    "conv": {
        "2d": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), (IMAGE, _f(6, 4, 3, 3), _f(6))),
        "groups, dilated": (
            lambda x, w: F.conv2d(x, w, None, 1, 2, 2, groups=2),
            (IMAGE, _f(6, 2, 3, 3)),
        ),
        "same": (lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE, _f(6, 4, 5, 3))),
        "1d and 3d": (
            lambda x, w, y, v: (F.conv1d(x, w), F.conv3d(y, v, padding=1)),
            (_f(2, 3, 9), _f(4, 3, 3), _f(1, 2, 4, 5, 3), _f(3, 2, 3, 3, 3)),
        ),
        "transposed": (
            lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1, dilation=1),
            (IMAGE, _f(4, 3, 3, 3)),
        ),
        "gradients": (
            lambda g, x, w: aten.convolution_backward(
                g, x, w, [6], [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]
            ),
            (_f(2, 6, 5, 4), IMAGE, _f(6, 4, 3, 3)),
        ),
        "gradients of groups": (
            lambda g, x, w: aten.convolution_backward(
                g, x, w, None, [1, 1], [1, 1], [2, 2], False, [0, 0], 2, [True, True, False]
            ),
            (_f(2, 6, 7, 6), IMAGE, _f(6, 2, 3, 3)),
        ),
        "gradients of the transpose": (
            lambda g, x, w: aten.convolution_backward(
                g, x, w, [3], [2, 2], [1, 1], [1, 1], True, [1, 1], 1, [True, True, True]
            ),
            (_f(2, 3, 18, 16), IMAGE, _f(4, 3, 3, 3)),
        ),
    },
    "pool": {
        "max": (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
        "max with places": (
            lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True),
            (IMAGE,),
        ),
        "mean": (
            lambda x: (
                F.avg_pool2d(x, 3, 2, 1),
                F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
                F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
                F.avg_pool2d(x, 2, divisor_override=3),
            ),
            (IMAGE,),
        ),
        "adaptive": (
            lambda x: (
                F.adaptive_avg_pool2d(x, 1),
                F.adaptive_avg_pool2d(x, (3, 4)),
                F.adaptive_avg_pool2d(x, (4, 5)),
                F.adaptive_max_pool2d(x, (3, 2)),
            ),
            (IMAGE,),
        ),
        "fractional": (
            lambda x, y, u, v: (
                F.fractional_max_pool2d_with_indices(x, (3, 2), (4, 3), _random_samples=u),
                F.fractional_max_pool2d_with_indices(x, (9, 2), (1, 3), _random_samples=u),
                F.fractional_max_pool3d(y, 2, (2, 3, 4), _random_samples=v),
            ),
            (IMAGE, _f(2, 3, 4, 5, 6), torch.rand(2, 4, 2), torch.rand(2, 3, 3)),
        ),
        "of one and three axes": (
            lambda x, y: (F.avg_pool1d(x, 2), F.max_pool1d(x, 2), F.max_pool3d(y, 2)),
            (_f(2, 3, 9), _f(2, 2, 4, 4, 5)),
        ),
        "gradients of three axes": (
            lambda g, x: (
                aten.avg_pool3d_backward(g, x, [2, 2, 2], [2, 2, 2], [1, 0, 1], False, True, None),
                aten._adaptive_avg_pool3d_backward(g, x),
                aten.max_pool3d_with_indices_backward(
                    *(g, x, [2, 2, 2], [2, 2, 2], [1, 0, 1], [1, 1, 1], False),
                    aten.max_pool3d_with_indices(x, [2, 2, 2], [2, 2, 2], [1, 0, 1])[1],
                ),
                aten.adaptive_max_pool3d_backward(g, x, aten.adaptive_max_pool3d(x, [3, 2, 3])[1]),
            ),
            (_f(2, 2, 3, 2, 3), _f(2, 2, 5, 4, 5)),
        ),
        "gradients": (
            lambda g, x: (
                aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [1, 1], False, False, None),
                aten._adaptive_avg_pool2d_backward(g, x),
            ),
            (_f(2, 4, 5, 4), IMAGE),
        ),
    },
    "norm": {
        "layer": (
            lambda x, w, b: (F.layer_norm(x, (5,), w, b), F.layer_norm(x, (3, 5))),
            (X, _f(5), _f(5)),
        ),
        "group": (lambda x, w, b: F.group_norm(x, 2, w, b), (IMAGE, _f(4), _f(4))),
        "group of no batch": (
            lambda x, w, b: aten.native_group_norm(x, w, b, 0, 4, 1, 2, 1e-5),
            (_f(0, 4), _f(4), _f(4)),
        ),
        "batch": (
            lambda x, m, v, w, b: F.batch_norm(x, m, v.abs() + 1, w, b),
            (IMAGE, _f(4), _f(4), _f(4), _f(4)),
        ),
        "by the batch": (lambda x: F.batch_norm(x, None, None, training=True), (IMAGE,)),
        "instance": (lambda x: F.instance_norm(x), (IMAGE,)),
        "rms": (lambda x, w: F.rms_norm(x, (5,), w, 1e-5), (X, _f(5))),
        "gradients of layer norm": (
            lambda g, x, m, r, w: aten.native_layer_norm_backward(
                g, x, [5], m, r, w, None, [True, True, False]
            ),
            (_f(3, 5), X, _f(3, 1), _f(3, 1).abs(), _f(5)),
        ),
        "local response": (lambda x: F.local_response_norm(x, 3), (IMAGE,)),
    },
    "image": {
        "nearest": (lambda x: F.interpolate(x, scale_factor=2), (IMAGE,)),
        "linear": (
            lambda x: (
                F.interpolate(x, (12, 5), mode="bilinear"),
                F.interpolate(x, (12, 5), mode="bilinear", align_corners=True),
            ),
            (IMAGE,),
        ),
        "cubic": (lambda x: F.interpolate(x, (12, 11), mode="bicubic"), (IMAGE,)),
        "scaled, corners on corners": (
            lambda x: (
                F.interpolate(x, scale_factor=1.7, mode="bilinear", align_corners=True),
                F.interpolate(x, scale_factor=0.8, mode="bicubic", align_corners=True),
            ),
            (IMAGE,),
        ),
        "scaled, to sizes of its own": (
            lambda x: (
                aten._upsample_bilinear2d_aa(x, [3, 3], False, 1.7, 0.9),
                aten._upsample_bilinear2d_aa(x, [12, 5], True),
                aten._upsample_bicubic2d_aa(x, [4, 2], True),
            ),
            (IMAGE,),
        ),
        "exact": (lambda x: F.interpolate(x, (12, 5), mode="nearest-exact"), (IMAGE,)),
        "sampled": (
            lambda x, g: (
                F.grid_sample(x, g, align_corners=False),
                F.grid_sample(x, g, "nearest", "border", align_corners=True),
            ),
            (IMAGE, _f(2, 5, 6, 2)),
        ),
        "shuffled": (lambda x: (F.pixel_shuffle(x, 2), F.unfold(x, 3)), (IMAGE,)),
        "folded": (lambda x: F.fold(x, (6, 6), 3), (_f(2, 18, 16),)),
    },
    "special": {
        "gamma": (lambda a: (a.lgamma(), a.digamma(), torch.polygamma(2, a.abs())), (X,)),
        "erfinv": (lambda a: (a / 2.5).erfinv(), (X,)),
        "signs": (lambda a: (a.signbit(), torch.copysign(torch.ones(6), a)), (NAN,)),
        "extremes without nan": (lambda a: (torch.fmax(a, a.flip(0)), torch.fmin(a, -a)), (NAN,)),
        "hypot": (lambda a, b: (torch.hypot(a, b), torch.ldexp(a, torch.tensor(3))), (X, Y)),
    },
    "bessel": {
        "i": (lambda a: (a.i0(), torch.special.i0e(a), torch.special.i1(a)), (SPAN,)),
        "k": (
            lambda a: (
                torch.special.modified_bessel_k0(a),
                torch.special.scaled_modified_bessel_k1(a),
            ),
            (SPAN.abs(),),
        ),
        "j": (lambda a: (torch.special.bessel_j0(a), torch.special.bessel_j1(a)), (SPAN,)),
        "y": (
            lambda a: (torch.special.bessel_y0(a), torch.special.bessel_y1(a)),
            (SPAN.abs() + 0.1,),
        ),
        "airy": (torch.special.airy_ai, (SPAN,)),
        "errors": (lambda a: (torch.special.erfcx(a / 4), torch.special.log_ndtr(a)), (SPAN,)),
        "quantiles": (torch.special.ndtri, (torch.tensor([0, 1e-9, 0.1, 0.5, 0.99, 1.0]),)),
    },
    "recurrences": {
        "chebyshev": (
            lambda a, n: (
                torch.special.chebyshev_polynomial_t(a, n),
                torch.special.shifted_chebyshev_polynomial_w(a, n),
            ),
            (X, torch.tensor([-1, 0, 1, 2, 5])),
        ),
        "others": (
            lambda a: (
                torch.special.hermite_polynomial_h(a, 4),
                torch.special.laguerre_polynomial_l(a, 3),
                torch.special.legendre_polynomial_p(a, 5),
            ),
            (X,),
        ),
        "gamma": (
            lambda a, b: (torch.special.gammainc(a, b), torch.special.gammaincc(a, b)),
            (X.abs() * 4, Y.abs() * 4),
        ),
        "zeta": (torch.special.zeta, (X.abs() + 1.1, Y.abs() + 0.1)),
        "divisors": (lambda a: (torch.gcd(a, a.flip(0)), torch.lcm(a, a.flip(0))), (I64,)),
    },
    "factors": {
        "cholesky": (lambda a: (torch.linalg.cholesky(a), torch.cholesky_inverse(a)), (POSITIVE,)),
        "solve": (
            lambda a, b: (torch.linalg.solve(a, b), torch.linalg.solve(a, b[0], left=True)),
            (POSITIVE, _f(2, 4, 3)),
        ),
        "inverse": (lambda a: (torch.linalg.inv(a), a.det(), *a.slogdet()), (POSITIVE,)),
        "lu": (lambda a: torch.linalg.lu(a), (_f(2, 5, 3),)),
        "qr": (
            lambda a: (*torch.linalg.qr(a), *torch.linalg.qr(a, mode="complete")),
            (_f(2, 5, 3),),
        ),
        "triangles": (
            lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
            (POSITIVE, _f(2, 4, 3)),
        ),
        "spectra": (
            lambda a: (torch.linalg.eigvalsh(a), torch.linalg.svdvals(a), torch.linalg.pinv(a)),
            (POSITIVE,),
        ),
        "projections": (lambda a: _projections(a), (_f(5, 3),)),
        "exponential": (torch.linalg.matrix_exp, (_f(2, 4, 4),)),
    },
    "complex": {
        "to its own type": (lambda x: x.to(torch.cfloat).mul(2).abs(), (COMPLEX,)),
        "arithmetic": (lambda a, b: (a * b, a / b, a + 2, a - 1j, a @ b.mT), (COMPLEX, COMPLEX2)),
        "parts": (lambda a: (a.real, a.imag, a.abs(), a.angle(), a.conj() * 1), (COMPLEX,)),
        "functions": (lambda a: (a.exp(), a.log(), a.sqrt(), a**3, a.reciprocal()), (COMPLEX,)),
        "waves": (lambda a: (a.sin(), a.cos(), a.sinh(), a.cosh(), a.tanh()), (COMPLEX,)),
        "norms": (lambda a: (a.norm(), torch.linalg.vector_norm(a, 3, 1), a.isinf()), (COMPLEX,)),
        "roots near an axis": (
            lambda a: torch.view_as_real(a.sqrt()) * torch.tensor([1.0, 1e4]),
            (torch.tensor([1 + 1e-4j, 4 - 1e-5j, -1 + 1e-4j, -9 - 1e-4j, 0j, 2j, -4 + 0j]),),
        ),
        "roots at the ends": (
            torch.sqrt,
            (torch.tensor([complex(-1.0, -0.0), 3e38 + 1j, 1 - math.inf * 1j, 0.0 + 1e-30j]),),
        ),
        "quotients whose squares overflow or vanish": (
            lambda a, b: (a / b, b.reciprocal()),
            (
                torch.tensor([1e-30 + 1e-30j, 1e25 - 2e25j, 0j, 3 + 4j]),
                torch.tensor([1e-30 - 2e-30j, 3e25 + 1e25j, 1e-20 + 1j, 1e20 + 0j]),
            ),
        ),
        "moved": (lambda a: (a.t().flatten(), a[1:, ::2], torch.cat([a, a]), a.sum(0)), (COMPLEX,)),
        "made": (
            lambda a, b: (torch.complex(a, b), torch.polar(a.abs(), b), a.to(torch.cfloat)),
            (X, Y),
        ),
        "transforms": (
            lambda a, c: (
                torch.fft.fft(a, norm="ortho"),
                torch.fft.rfft2(a),
                torch.fft.irfft(c, 7),
                torch.fft.ifftn(c),
                torch.fft.hfft(c),
            ),
            (X, COMPLEX),
        ),
        "short time": (
            lambda x: torch.stft(x, 8, window=torch.hann_window(8), return_complex=True).abs(),
            (_f(2, 40),),
        ),
    },
    "rounded as by quantization": {
        # A level more or less would be seen: 16 bits are computed in f32.
        "of bf16": (
            lambda a: torch.fake_quantize_per_tensor_affine(a, 0.1, 3, -8, 7),
            (torch.arange(-1.2, 0.5, 0.01).bfloat16(),),
        ),
        "by a scale": (lambda a: torch.fake_quantize_per_tensor_affine(a, 0.1, 3, -8, 7), (NAN,)),
        "by a tensor": (
            lambda a, scale, zero: torch.fake_quantize_per_tensor_affine(a, scale, zero, 0, 15),
            (X, torch.tensor(0.13), torch.tensor(2, dtype=torch.int32)),
        ),
        "by channels": (
            lambda a, scale, zero: torch.fake_quantize_per_channel_affine(a, scale, zero, 0, -8, 7),
            (_f(3, 5), torch.tensor([0.1, 0.2, 0.37]), torch.tensor([0, 4, -3]).int()),
        ),
    },
    "counting": {
        "mode": (lambda a: (a.mode(1)[0], a.mode(0)[0]), (I64,)),
        "median without nan": (lambda a: (a.nanmedian(), *a.nanmedian(0)), (NAN,)),
        "histograms": (lambda a: (a.histc(4, -2, 2), *torch.histogram(a, 5)), (X,)),
        "histograms of samples": (
            lambda a, w: (
                torch.histogramdd(a, [2, 3], weight=w),
                torch.histogramdd(a, [2, 3], range=[-1.0, 1.0, -2.0, 2.0], density=True),
                torch.histogramdd(a, (torch.tensor([-1.0, 0.0, 1.5]), torch.tensor([-1.0, 1.0]))),
            ),
            (_f(9, 2), torch.rand(9)),
        ),
        "bits of numbers": (lambda a: (*a.frexp(), a.nextafter(a.flip(0))), (X,)),
        "edges out of order": (
            lambda a: torch.histogramdd(a, (torch.tensor([-3.0, 0.5, -1.0, 2.0]),))[0],
            (_f(9, 1),),
        ),
        "hash": (lambda a: (a.hash_tensor(), a.hash_tensor(1, keepdim=True)), (X,)),
        "numbers counted down": (
            lambda a, b: torch.linspace(a, b, 50, dtype=torch.int64),
            (torch.tensor(50), torch.tensor(1)),
        ),
        "segments": (
            lambda a: torch.segment_reduce(a, "max", lengths=torch.tensor([1, 0, 2]), axis=0),
            (X,),
        ),
        "segments by offsets": (
            lambda a: (
                torch.segment_reduce(a, "mean", offsets=torch.tensor([0, 2, 3]), axis=0),
                torch.segment_reduce(
                    a, "sum", lengths=torch.tensor([[1, 3], [4, 0], [2, 2]]), axis=1
                ),
            ),
            (_f(3, 4),),
        ),
        "places of what counts": (lambda a: torch.nonzero_static(a, size=9), (BITS,)),
        "means of integers": (lambda a: F.avg_pool2d(a, 2), (_i(1, 2, 4, 4),)),
        "convolution of integers": (lambda a, w: F.conv2d(a, w), (_i(1, 2, 4, 4), _i(3, 2, 2, 2))),
        "running extremes of booleans": (lambda a: a.cummax(1), (BITS,)),
    },
    "encoder": {
        "layer": (
            lambda x: nn.functional.relu(LAYER(x)),
            (_f(2, 5, 8),),
        ),
        "attention with weights": (lambda x: ATTENTION(x, x, x), (_f(2, 5, 8),)),
    },
    "search": {
        "searchsorted": (
            lambda s, v: (torch.searchsorted(s, v), torch.bucketize(v, s, right=True)),
            (torch.tensor([-1.0, 0.0, 0.5, 2.0]), X),
        ),
        "running": (lambda a: (*a.cummax(1), *a.cummin(0), a.logcumsumexp(1)), (X,)),
        "isin": (lambda a: torch.isin(a, torch.tensor([1, 2, 3])), (I64,)),
        "bags": (
            lambda w, i: F.embedding_bag(i, w, torch.tensor([0, 2, 2, 5]), mode="mean"),
            (X, torch.tensor([0, 2, 1, 1, 2, 0, 0])),
        ),
        "put": (
            lambda a: (a.put(torch.tensor([1, 4]), a.flatten()[:2]), a.diagonal_scatter(a[0, :3])),
            (X,),
        ),
        "uneven pools": (lambda x: F.adaptive_max_pool2d(x, (4, 5), return_indices=True), (IMAGE,)),
    },
    "sorting": {
        "sort": (lambda a: (*a.sort(1), *a.sort(0, descending=True)), (X,)),
        "sort of nan": (lambda a: (a.sort()[0], a.sort(descending=True)[0]), (NAN,)),
        "topk": (lambda a: (*a.topk(3, 1), *a.topk(2, 0, largest=False)), (X,)),
        "of ints": (lambda a: a.sort(stable=True, dim=1), (I64,)),
        "kthvalue and median": (lambda a: (*a.kthvalue(2, 1), a.median()), (X,)),
        "argsort": (lambda a: a.argsort(1), (X,)),
    },
}


class Recurrent(nn.Module):
    """All recurrent layers, stacked and in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(12, 5)
        self.rnn = nn.RNN(5, 3, nonlinearity="relu", bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        x, (h, c) = self.lstm(x)
        x, last = self.gru(x)
        return *self.rnn(x), h, c, last


class Family(nn.Module):
    """All cases of a family in one model: one trace serves them all."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.cases = FAMILIES[name]

    def forward(self, *inputs: torch.Tensor) -> dict[str, Any]:
        rest = iter(inputs)
        return {
            name: function(*(next(rest) for _ in tensors))
            for name, (function, tensors) in self.cases.items()
        }

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(x.clone() for _, tensors in self.cases.values() for x in tensors)


def interpreted(imported: Imported, inputs: tuple[torch.Tensor, ...]) -> Any:
    """What an imported model gives, by the interpreter, in its own structure."""
    verify(imported.module)
    with np.errstate(all="ignore"):
        given = (torch.view_as_real(x) if x.is_complex() else x for x in inputs)
        made = interpret(imported.module, *(array_of(x) for x in given), check=True)
    return imported.structure.restored([_tensor(np.array(array, order="C")) for array in made])


def _tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def differences(made: dict[str, Any], want: dict[str, Any]) -> list[str]:
    """What is not as PyTorch has it, by the names of cases."""
    found = []
    for name, expected in want.items():
        pairs = zip(pytree.tree_leaves(made[name]), pytree.tree_leaves(expected), strict=True)
        for at, (a, b) in enumerate(pairs):
            if b is None or (a.shape == b.shape and a.dtype == b.dtype and _is_close(a, b)):
                continue
            found.append(f"{name} {at}: {a} where PyTorch has {b}")
    return found


def _is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    loose = b.dtype in (torch.bfloat16, torch.float16)
    rtol, atol = (1e-2, 1e-2) if loose else (2e-5, 2e-5)
    if b.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    return torch.allclose(a.double(), b.double(), rtol=rtol, atol=atol, equal_nan=True)
