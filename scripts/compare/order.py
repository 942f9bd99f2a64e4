"""Order, counts and groups."""

import torch
import torch.nn.functional as F

from .draw import FLOATS, numel
from .frames import Sizes
from .pointwise import one, one_floating
from .reductions import along, over_dim, put, ordered, wide
from .table import op

op("argsort", ordered, lambda x, dim, down: torch.argsort(x, dim=dim, descending=down, stable=True))
op("median", one, torch.median, exact=True)
op("median.dim", over_dim, lambda x, dim, keep: list(torch.median(x.clone(), dim, keep)), exact=True)
op("unique", one, lambda x: list(torch.unique(x, return_inverse=True, return_counts=True)), exact=True)


def counted(d):
    n = d.size()
    x = d.index(Sizes((n,)), d.int(1, 9))
    weights = d.tensor(Sizes((n,)), d.dtype(), grad=False) if d.flag() else None
    return [x, weights, d.of(0, 0, 5, 12)]


op("bincount", counted, lambda x, weights, least: torch.bincount(x, weights, least), spread=True)


def repeated(d):
    x, dim, _ = along(d)
    return [x, d.int(0, 3) if d.chance(0.97) else -1, dim]


def counts(d):
    x, dim, size = along(d)
    n = size if d.chance(0.8) else 1
    return [x, d.index(Sizes((n,)), 4), dim]


op("repeat_interleave", repeated, torch.repeat_interleave, exact=True)
op("repeat_interleave.counts", counts, lambda x, n, dim: torch.repeat_interleave(x, wide(n), dim), exact=True)
REDUCES = ("sum", "prod", "mean", "amax", "amin")
op(
    "scatter_reduce",
    lambda d: put(d) + [d.int(0, 4), d.flag()],
    lambda x, dim, index, src, r, own: torch.scatter_reduce(
        x, dim, wide(index), src, REDUCES[r], include_self=own
    ),
    spread=True,
    weight=2,
)


def directions(d):
    x = one_floating(d)[0]
    return [x, d.floating(2, 1, 3, float("inf")), d.dim(len(x.sizes)), d.floating(1e-12, 0.1)]


op("normalize", directions, lambda x, p, dim, eps: F.normalize(x, p, dim, eps), spread=True)
op(
    "diag",
    lambda d: [d.tensor(d.shape(1, 2) if d.chance(0.95) else d.shape(), d.dtype()), d.int(-3, 3)],
    torch.diag,
    exact=True,
)
