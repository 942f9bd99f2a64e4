"""Reductions, matrix products, softmax and normalisation, indexing."""

import torch
import torch.nn.functional as F

from .draw import ALL, FLOATS, INT64, numel
from .frames import Sizes
from .pointwise import one, one_floating
from .table import op


def over_dims(d, draw=one):
    x = draw(d)[0]
    return [x, d.dims(len(x.sizes)), d.flag()]


def over_dim(d, draw=one):
    x = draw(d)[0]
    return [x, d.dim(len(x.sizes)), d.flag()]


def floating_dims(d):
    return over_dims(d, one_floating)


def all_dims(x, dims):
    """No dims mean all of them, for the functions of PyTorch where they mean none."""
    return tuple(dims) if dims else tuple(range(x.dim()))


def sum_to(x, sizes):
    return x.sum_to_size(sizes)


def to_smaller(d):
    x = one(d)[0]
    return [x, d.partner(x.sizes)]


op("sum", one, torch.sum, spread=True, types="sum")
op("sum.dims", over_dims, lambda x, dims, keep: x.sum(dims, keep), spread=True, types="sum")
op("sum_to", to_smaller, sum_to, spread=True, types="sum")
op("mean", one_floating, torch.mean, spread=True)
op("mean.dims", floating_dims, lambda x, dims, keep: x.mean(all_dims(x, dims), keep), spread=True)
op("prod", one, torch.prod, types="sum")
op("prod.dim", over_dim, lambda x, dim, keep: x.prod(dim, keep), types="sum")
for name in ("max", "min"):
    op(name, one, getattr(torch, name), exact=True)
    op(
        name + ".dim",
        over_dim,
        lambda x, dim, keep, f=getattr(torch, name): list(f(x, dim, keep)),
        exact=True,
    )
    op(
        "a" + name,
        over_dims,
        lambda x, dims, keep, f=getattr(torch, "a" + name): f(x, tuple(dims), keep),
        exact=True,
    )
    op("arg" + name, over_dim, lambda x, dim, keep, f=getattr(torch, "arg" + name): f(x, dim, keep))
for name in ("any", "all"):
    op(name, one, lambda x, f=getattr(torch, name): f(x).bool(), types="test")
    op(
        name + ".dims",
        over_dims,
        lambda x, dims, keep, f=getattr(torch, name): f(x, all_dims(x, dims), keep).bool(),
        types="test",
    )


def correction(d):
    return d.of(0.0, 1.0, 1.0, 2.0, 0.5, 1.5)


op("var", lambda d: one_floating(d) + [correction(d)], lambda x, c: x.var(correction=c), spread=True, floor=1)
op("std", lambda d: one_floating(d) + [correction(d)], lambda x, c: x.std(correction=c), spread=True, floor=1)


def dims_correction(d):
    x, dims, keep = floating_dims(d)
    return [x, dims, correction(d), keep]


op(
    "var.dims",
    dims_correction,
    lambda x, dims, c, keep: x.var(all_dims(x, dims), correction=c, keepdim=keep),
    spread=True,
    floor=1,
)
op(
    "std.dims",
    dims_correction,
    lambda x, dims, c, keep: x.std(all_dims(x, dims), correction=c, keepdim=keep),
    spread=True,
    floor=1,
)


def power(d):
    return d.floating(2, 1, 0, float("inf"), 3, 1.5, 0.5)


def norm_dims(d):
    x, dims, keep = floating_dims(d)
    return [x, power(d), dims, keep]


op("norm", lambda d: one_floating(d) + [power(d)], torch.linalg.vector_norm, spread=True)
op(
    "norm.dims",
    norm_dims,
    lambda x, p, dims, keep: torch.linalg.vector_norm(x, p, all_dims(x, dims), keep),
    spread=True,
)
op("logsumexp", lambda d: over_dim(d, one_floating), lambda x, dim, keep: x.logsumexp(dim, keep), spread=True)
op("cumsum", lambda d: over_dim(d)[:2], torch.cumsum, spread=True, types="sum")
op("cumprod", lambda d: over_dim(d)[:2], torch.cumprod, spread=True, types="sum")


# ---- products
def inner(d):
    return d.r.choices((0, 1, 2, 3, 5, 8, 17, 64, 130), (1, 4, 4, 4, 4, 2, 2, 1, 1))[0]


def matrix(d, *sizes, dtype=None):
    return d.tensor(
        Sizes(sizes),
        d.dtype(FLOATS if d.chance(0.8) else ALL) if dtype is None else dtype,
        mode=None if d.chance(0.2) else "normal",
    )


def product(*forms):
    def draw(d):
        sizes = {"m": inner(d), "k": inner(d), "n": inner(d), "b": d.int(0, 3), "c": d.int(1, 2), "1": 1}
        form = d.of(*forms)
        a = matrix(d, *(sizes[c] for c in form[0]))
        dtype = a.dtype if d.chance(0.93) else d.dtype()
        b_sizes = [sizes[c] for c in form[1]]
        if b_sizes and d.chance(0.04):
            b_sizes[d.int(0, len(b_sizes) - 1)] += 1
        return [a, matrix(d, *b_sizes, dtype=dtype)]

    return draw


op(
    "matmul",
    product(
        ("mk", "kn"),
        ("k", "k"),
        ("k", "kn"),
        ("mk", "k"),
        ("bmk", "kn"),
        ("mk", "bkn"),
        ("bmk", "bkn"),
        ("cbmk", "bkn"),
        ("1mk", "bkn"),
        ("k", "bkn"),
        ("bmk", "k"),
        ("", "k"),
        ("c1mk", "1bkn"),
    ),
    torch.matmul,
    spread=True,
    types="product",
    rough=8,
    weight=2,
)
op("mm", product(("mk", "kn")), torch.mm, spread=True, types="product", rough=8)
op("mv", product(("mk", "k")), torch.mv, spread=True, types="product", rough=8)
op("dot", product(("k", "k")), torch.dot, spread=True, types="product", rough=8)
op("bmm", product(("bmk", "bkn")), torch.bmm, spread=True, types="product", rough=8)
op("outer", product(("m", "n")), torch.outer, types="arith")


def added(d):
    a, b = product(("mk", "kn"))(d)
    c = matrix(d, *d.partner((a.sizes[0], b.sizes[1])), dtype=a.dtype if d.chance(0.95) else None)
    return [c, a, b, *(1 if d.flag() else d.of(0, 2, -1, 0.5, 1.5) for _ in range(2))]


op(
    "addmm",
    added,
    lambda c, a, b, beta, alpha: torch.addmm(c, a, b, beta=beta, alpha=alpha),
    spread=True,
    types="product",
    rough=8,
)


def affine(d):
    x, weight = product(("mk", "nk"), ("k", "nk"), ("bmk", "nk"), ("cbmk", "nk"))(d)
    return [x, weight, matrix(d, weight.sizes[0], dtype=weight.dtype) if d.chance(0.7) else None]


op("linear", affine, F.linear, spread=True, types="product", rough=8)
op("linear_relu", affine, lambda x, w, b: F.linear(x, w, b).relu(), spread=True, types="product", rough=8)


def tanh_gelu(x):
    return F.gelu(x, approximate="tanh")


def two_layers(d):
    x, weight, bias = affine(d)
    second = matrix(d, d.size(), weight.sizes[0], dtype=weight.dtype)
    last = matrix(d, second.sizes[0], dtype=weight.dtype) if d.chance(0.7) else None
    return [x, weight, bias, second, last]


op("linear_gelu_tanh", affine, lambda x, w, b: tanh_gelu(F.linear(x, w, b)), spread=True, types="real",
   rough=8)
op("feed_forward", two_layers, lambda x, w, b, v, c: F.linear(tanh_gelu(F.linear(x, w, b)), v, c),
   spread=True, types="real", rough=16)

EQUATIONS = (
    "ij,jk->ik",
    "ij,jk",
    "bij,bjk->bik",
    "ij->ji",
    "ii->i",
    "ii",
    "ij->",
    "i,j->ij",
    "bij,kj->bik",
    "ij,ij->i",
    "abc,cd,de->abe",
    "...ij,...jk->...ik",
    "i,i->",
    "ij,kl->ijkl",
    "ba,b->a",
    "iij->j",
    "ij,j",
    "i->ii",
    "ij-k",
    "ij,jk->iz",
    "i...->...",
    " i j , j k -> i k",
)


def summed(d):
    equation = d.of(*EQUATIONS)
    size, dtype = {}, d.dtype(FLOATS if d.chance(0.8) else ALL)
    xs = []
    for letters in equation.split("->")[0].split(","):
        sizes = []
        for letter in letters.replace("...", "." * d.int(0, 2)).replace(" ", ""):
            sizes.append(d.of(1, 3) if letter == "." else size.setdefault(letter, inner(d) % 9))
        if sizes and d.chance(0.03):
            sizes[0] += 1
        xs.append(matrix(d, *sizes, dtype=dtype))
    return [equation, xs]


op("einsum", summed, lambda equation, xs: torch.einsum(equation, *xs), spread=True, types="product", rough=8)


# ---- softmax and normalisation
op("softmax", lambda d: over_dim(d, one_floating)[:2], torch.softmax)
op("log_softmax", lambda d: over_dim(d, one_floating)[:2], torch.log_softmax, spread=True)


def normalised(d):
    x = one_floating(d)[0]
    last = Sizes(x.sizes[len(x.sizes) - d.int(1, 2) :] if x.sizes else (1,))
    if d.chance(0.03):
        last = Sizes((*last[:-1], last[-1] + 1))
    affine = [d.tensor(last, x.dtype) if d.chance(0.6) else None for _ in range(2)]
    return [x, last, *affine, d.floating(1e-5, 1e-3, 0.1)]


op("layer_norm", normalised, F.layer_norm, spread=True, rough=50, floor=1)


# ---- indexing
def table(d):
    weight = d.tensor(Sizes((inner(d), inner(d))), d.dtype(FLOATS if d.chance(0.8) else ALL))
    padding = d.of(-1, -1, 0, 1)
    return [weight, d.index(d.shape(0, 3), weight.sizes[0]), padding]


def embedding(weight, ids, padding):
    return F.embedding(ids, weight, None if padding == -1 else padding)


op("embedding", table, embedding, exact=True)


def along(d):
    x = one(d)[0]
    dim = d.dim(len(x.sizes))
    size = x.sizes[dim] if -len(x.sizes) <= dim < len(x.sizes) else 1
    return x, dim, size


def selected(d):
    x, dim, size = along(d)
    return [x, dim, d.index(Sizes((d.size(),)) if d.chance(0.95) else Sizes(), size)]


op("index_select", selected, lambda x, dim, index: torch.index_select(x, dim, index), exact=True)


def gathered(d, slack=0.05):
    x, dim, size = along(d)
    sizes = list(x.sizes)
    for i, s in enumerate(sizes):
        sizes[i] = d.int(0, s) if d.chance(0.3) else s
    if sizes and -len(sizes) <= dim < len(sizes):
        sizes[dim] = d.size()
    if sizes and d.chance(slack):
        sizes[d.int(0, len(sizes) - 1)] += 1
    return [x, dim, d.index(Sizes(sizes), size)]


op(
    "gather",
    gathered,
    lambda x, dim, index: torch.gather(x, dim, index.long() if index.dtype == torch.int32 else index),
    exact=True,
)


def taken(d):
    x, dim, index = gathered(d, 0)
    sizes = list(x.sizes)
    if sizes and -len(sizes) <= dim < len(sizes):
        sizes[dim] = index.sizes[dim]
    sizes = [1 if d.chance(0.2) else s for s in sizes]
    return [x, d.index(Sizes(sizes), x.sizes[dim] if -len(sizes) <= dim < len(sizes) else 1), dim]


op(
    "take_along",
    taken,
    lambda x, index, dim: torch.take_along_dim(x, index.long() if index.dtype == torch.int32 else index, dim),
    exact=True,
)


def put(d):
    x, dim, index = gathered(d)
    src = d.tensor(
        index.sizes if d.chance(0.9) else Sizes(s + d.int(0, 1) for s in index.sizes),
        x.dtype if d.chance(0.95) else d.dtype(),
    )
    return [x, dim, index, src]


def distinct(d):
    """Indices that do not meet: with equal ones PyTorch leaves open which source wins."""
    x, dim, size = along(d)
    sizes = list(x.sizes)
    if sizes and -len(sizes) <= dim < len(sizes):
        sizes[dim] = d.int(0, size)
    order = torch.rand(
        [size if i == dim % len(sizes) else s for i, s in enumerate(x.sizes)], generator=d.generator
    )
    index = d.index(Sizes(sizes), size)
    if sizes and -len(sizes) <= dim < len(sizes) and index.dtype in (2, INT64):
        from .draw import TORCH, of_torch

        index = of_torch(order.argsort(dim).narrow(dim, 0, sizes[dim]).to(TORCH[index.dtype]))
    return [x, dim, index, d.tensor(Sizes(sizes), x.dtype if d.chance(0.95) else d.dtype())]


def wide(index):
    return index.long() if index.dtype == torch.int32 else index


op("scatter", distinct, lambda x, dim, index, src: torch.scatter(x, dim, wide(index), src), exact=True)
op("scatter_add", put, lambda x, dim, index, src: torch.scatter_add(x, dim, wide(index), src), spread=True)


def added_rows(d):
    x, dim, size = along(d)
    count = d.size()
    sizes = list(x.sizes)
    if sizes and -len(sizes) <= dim < len(sizes):
        sizes[dim] = count
    return [
        x,
        dim,
        d.index(Sizes((count,)), size),
        d.tensor(Sizes(sizes), x.dtype if d.chance(0.95) else d.dtype()),
    ]


op("index_add", added_rows, lambda x, dim, index, src: torch.index_add(x, dim, index, src), spread=True)


def chosen(d):
    x = one(d)[0]
    return [x, d.tensor(d.partner(x.sizes), 0 if d.chance(0.95) else d.dtype())]


op("masked_select", chosen, torch.masked_select, exact=True)
op("nonzero", one, torch.nonzero)
op(
    "one_hot",
    lambda d: [d.index(d.shape(0, 3), 5), d.of(5, 5, 7, 1)],
    lambda ids, classes: F.one_hot(wide(ids), classes),
)


def ordered(d):
    x, dim, _ = over_dim(d)
    return [x, dim, d.flag()]


op(
    "sort",
    ordered,
    lambda x, dim, down: list(torch.sort(x, dim=dim, descending=down, stable=True)),
    exact=True,
)


def top(d):
    x, dim, size = along(d)
    return [x, d.int(0, size) if d.chance(0.95) else size + 1, dim, d.flag()]


def topk(x, k, dim, largest):
    """The first k of the stable order, which weft answers; torch.topk leaves the order of equals open."""
    torch.topk(x, k, dim, largest)
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    return [v.narrow(dim, 0, k) if v.dim() else v for v in (values, indices)]


op("topk", top, topk, exact=True)
