"""Views, copies, arrangements and factories."""

import torch
import torch.nn.functional as F

from .draw import FLOATS, TORCH, numel
from .frames import Sizes, TypeNumber
from .pointwise import number, one
from .table import op


def viewed(name, draw, function, **options):
    op(name, draw, function, exact=True, zeros=True, view=True, **options)


def resized(d):
    x = one(d)[0]
    n, sizes = numel(x.sizes), []
    while n > 1 and d.chance(0.7):
        divisors = [k for k in range(1, n + 1) if n % k == 0][:12]
        sizes.append(d.r.choice(divisors))
        n //= sizes[-1]
    if n != 1 or d.flag():
        sizes.insert(d.int(0, len(sizes)), n)
    if sizes and d.chance(0.2):
        sizes[d.int(0, len(sizes) - 1)] = -1
    if d.chance(0.03):
        sizes.append(d.of(2, -1, -2, 0))
    return [x, Sizes(sizes[:8])]


viewed("view", resized, lambda x, s: x.view(tuple(s)))
viewed("reshape", resized, lambda x, s: x.reshape(tuple(s)))


def two_dims(d):
    x = one(d)[0]
    return [x, d.dim(len(x.sizes)), d.dim(len(x.sizes))]


viewed("flatten", two_dims, torch.flatten)
viewed("transpose", two_dims, torch.transpose)


def order(d):
    x = one(d)[0]
    dims = list(range(len(x.sizes)))
    d.r.shuffle(dims)
    dims = [k - len(dims) if d.chance(0.3) else k for k in dims]
    if dims and d.chance(0.05):
        dims[0] = d.of(dims[-1], 9)
    return [x, Sizes(dims)]


viewed("permute", order, lambda x, dims: x.permute(tuple(dims)))


def expanded(d):
    sizes = d.shape()
    x = d.tensor(Sizes(1 if d.chance(0.4) else s for s in sizes[d.int(0, len(sizes)) :]), d.dtype())
    sizes = [-1 if d.chance(0.1) else s for s in sizes]
    return [x, Sizes(sizes)]


viewed("expand", expanded, lambda x, s: x.expand(tuple(s)))
viewed("squeeze", one, torch.squeeze)


def one_dim(d):
    x = one(d)[0]
    return [x, d.dim(len(x.sizes))]


viewed("squeeze.dim", one_dim, torch.squeeze)
viewed("unsqueeze", lambda d: (lambda x: [x, d.dim(len(x.sizes) + 1)])(one(d)[0]), torch.unsqueeze)


def span(d):
    x, dim = one_dim(d)
    size = x.sizes[dim] if -len(x.sizes) <= dim < len(x.sizes) else 1
    start = d.int(0, size)
    length = d.int(0, size - start)
    if d.chance(0.06):
        start, length = d.of((-1, 1), (start, size + 1), (size + 1, 0), (start, -1), (-size - 1, 1))
    return x, dim, size, start, length


viewed(
    "narrow", lambda d: (lambda x, dim, size, start, length: [x, dim, start, length])(*span(d)), torch.narrow
)


def picked(d):
    x, dim, size, *_ = span(d)
    return [x, dim, d.int(-size, size - 1) if size and d.chance(0.95) else d.of(size, -size - 1)]


viewed("select", picked, lambda x, dim, i: x.select(dim, i))


def sliced(d):
    x, dim, size, start, length = span(d)
    ends = [d.int(-size - 2, size + 2) if d.chance(0.7) else d.of(0, size, 2**62, -(2**62)) for _ in range(2)]
    return [x, dim, *ends, d.of(1, 1, 2, 3, 2**40) if d.chance(0.97) else d.of(0, -1)]


viewed("slice", sliced, lambda x, dim, start, end, step: torch.ops.aten.slice(x, dim, start, end, step))


def pieces(d):
    x, dim = one_dim(d)
    return [x, d.int(1, 5) if d.chance(0.95) else d.of(0, -1), dim]


viewed("split", pieces, lambda x, n, dim: list(torch.split(x, n, dim)))
viewed("chunk", pieces, lambda x, n, dim: list(torch.chunk(x, n, dim)))


def lengths(d):
    x, dim, size, *_ = span(d)
    out = []
    while sum(out) < size and len(out) < 6:
        out.append(d.int(0, size - sum(out)))
    out.append(max(size - sum(out), 0) + (1 if d.chance(0.05) else 0))
    return [x, Sizes(out), dim]


viewed("split.lengths", lengths, lambda x, n, dim: list(torch.split(x, list(n), dim)))
viewed("unbind", one_dim, lambda x, dim: list(torch.unbind(x, dim)))


def strided(d):
    x = d.tensor(d.shape(), d.dtype(), plain=True)
    n = numel(x.sizes)
    rank = d.int(0, 3)
    sizes, strides, left = [], [], n - 1
    offset = d.int(0, max(left // 2, 0))
    left -= offset
    for _ in range(rank):
        stride = d.of(0, 1, 1, 2, 3)
        size = d.int(0, 3)
        if size > 1 and stride * (size - 1) > left:
            size = 1
        left -= stride * max(size - 1, 0)
        sizes.append(size)
        strides.append(stride)
    if d.chance(0.05) and rank:
        strides[0] = d.of(2**61, 1000, -1)
        sizes[0] = d.of(2, 5)
    if d.chance(0.03):
        offset = n + 3
    return [x, Sizes(sizes), Sizes(strides), offset]


viewed("as_strided", strided, lambda x, sizes, strides, offset: x.as_strided(sizes, strides, offset))


def diagonal(d):
    x = d.tensor(d.shape(2 if d.chance(0.9) else 0, 4), d.dtype())
    d0, d1 = (0, 1) if d.flag() else (d.dim(len(x.sizes)), d.dim(len(x.sizes)))
    return [x, d.int(-3, 3), d0, d1]


viewed("diagonal", diagonal, torch.diagonal)

# ---- copies and arrangements
op("contiguous", one, torch.Tensor.contiguous, exact=True, zeros=True, view=True)
op("clone", one, torch.clone, exact=True, zeros=True, view=True)


def converted(d):
    return one(d) + [TypeNumber(d.int(0, 7))]


op(
    "to",
    converted,
    lambda x, dtype: x.to(TORCH[dtype]),
    exact=True,
    zeros=True,
    view=True,
    types="convert",
    weight=3,
)


def joined(d):
    count, sizes, dtype = d.int(1, 4), d.shape(), d.dtype()
    dim = d.dim(len(sizes))
    xs = []
    for _ in range(count):
        own = list(sizes)
        if own and -len(own) <= dim < len(own):
            own[dim] = d.size()
        if own and d.chance(0.02):
            own[0] += 1
        if d.chance(0.02):
            own = [0]
        xs.append(d.tensor(Sizes(own), dtype if d.chance(0.85) else d.dtype()))
    return [xs, dim]


def stacked(d):
    count, sizes, dtype = d.int(1, 4), d.shape(0, 3), d.dtype()
    return [
        [
            d.tensor(sizes if d.chance(0.98) else Sizes((*sizes, 1)), dtype if d.chance(0.9) else d.dtype())
            for _ in range(count)
        ],
        d.dim(len(sizes) + 1),
    ]


op("cat", joined, torch.cat, exact=True, zeros=True, types="meet")
op("stack", stacked, torch.stack, exact=True, zeros=True, types="meet")


def repeated(d):
    x = d.tensor(d.shape(0, 3), d.dtype())
    times = Sizes(d.int(0, 3) for _ in range(len(x.sizes) + d.of(0, 0, 1)))
    if times and d.chance(0.03):
        times = Sizes(d.of(times[1:], (*times[1:], -1)))
    return [x, times]


op("repeat", repeated, lambda x, times: x.repeat(tuple(times)), exact=True, zeros=True)
op(
    "flip",
    lambda d: (lambda x: [x, d.dims(len(x.sizes))])(one(d)[0]),
    lambda x, dims: x.flip(tuple(dims)),
    exact=True,
    zeros=True,
)
op(
    "roll",
    lambda d: (lambda x, dim: [x, d.of(0, 1, -1, 5, -7, 2**40 + 1), dim])(*one_dim(d)),
    torch.roll,
    exact=True,
    zeros=True,
)
op(
    "roll.all",
    lambda d: [one_dim(d)[0], d.of(0, 1, -1, 5, -7, 2**40 + 1)],
    torch.roll,
    exact=True,
    zeros=True,
)


def triangle(d):
    return [
        d.tensor(d.shape(2 if d.chance(0.95) else 0, 4), d.dtype()),
        d.int(-4, 4) if d.chance(0.95) else d.of(2**40, -(2**40)),
    ]


op("tril", triangle, torch.tril, exact=True, zeros=True)
op("triu", triangle, torch.triu, exact=True, zeros=True)


def padded(d):
    x = one(d)[0]
    pads = Sizes(d.int(-1 if d.chance(0.2) else 0, 3) for _ in range(2 * d.int(0, len(x.sizes))))
    if d.chance(0.04):
        pads = Sizes(d.of((1,), (1, 1) * min(len(x.sizes) + 1, 4)))
    return [x, pads, d.number(x.dtype) if d.flag() else 0]


op("pad", padded, lambda x, pads, value: F.pad(x, tuple(pads), value=value), exact=True, zeros=True)
op(
    "dropout",
    lambda d: one(d) + [d.of(0.0, 0.5, 1.0), False],
    lambda x, p, training: F.dropout(x, p, training),
    exact=True,
)



def dropped(x, p):
    """The outputs of the row where each element is 0 or x / (1 - p), and its gradient 0 or 1 / (1 - p)."""
    true = torch.ones_like(x, dtype=torch.bool)
    return [true, true, (F.dropout(x, p, True) * 0).detach()]


op(
    "dropout.training",
    lambda d: [d.tensor(d.shape(), d.dtype(FLOATS), grad=False, mode="normal"), d.of(0.0, 0.25, 0.5, 1.0)],
    dropped,
    exact=True,
)

# ---- factories
op(
    "full",
    lambda d: (lambda t: [d.shape(0, 2), d.number(t), TypeNumber(t)])(d.int(0, 7)),
    lambda sizes, value, dtype: torch.full(tuple(sizes), value, dtype=TORCH[dtype]),
    exact=True,
    zeros=True,
)
op("full_like", number, torch.full_like, exact=True, zeros=True)


def counted(d):
    start, end = (d.of(0, 1, -3, 0.5, 2.5, 10) for _ in range(2))
    return [start, end, d.of(1, 2, 0.5, 0.3, -1, 3, 0), TypeNumber(d.int(1, 7))]


op("arange", counted, lambda a, b, s, dtype: torch.arange(a, b, s, dtype=TORCH[dtype]), spread=True)
op(
    "linspace",
    lambda d: [
        d.floating(0, 1, -2.5, 1e3),
        d.floating(0, 1, 7, -1e3),
        d.of(0, 1, 2, 5, 100, -1),
        TypeNumber(d.int(4, 7)),
    ],
    lambda a, b, n, dtype: torch.linspace(a, b, n, dtype=TORCH[dtype]),
    spread=True,
)
op(
    "eye",
    lambda d: [d.int(0, 9) if d.chance(0.95) else -1, TypeNumber(d.int(0, 7))],
    lambda n, dtype: torch.eye(n, dtype=TORCH[dtype]),
)
op(
    "item",
    lambda d: [d.tensor(Sizes(d.of((), (1,), (1, 1), (2,), (0,))), d.dtype())],
    lambda x: float(x.item()),
)
