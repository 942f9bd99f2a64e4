"""Writes in place, masked writes and index lists."""

import torch

from .draw import INT64, TORCH, numel, of_torch, to_torch
from .frames import Sizes, T
from .pointwise import clamped, exponent, masked, number, number_but_bool, one, whole, whole_number, whole_one
from .reductions import added_rows, distinct, put as put_at, wide
from .table import SPECS, op


def in_place(name, draw, method, **options):
    def on_memory(d):
        arguments = draw(d)
        for x in arguments:
            if isinstance(x, T):
                x.grad = False
        return arguments

    def on_history(d):
        arguments = draw(d)
        return [arguments[0], d.flag(), *arguments[1:]]

    def recorded(write):
        def run(x, through_view, *more):
            copy = x.clone(memory_format=torch.contiguous_format)
            part = copy.narrow(0, 1, x.shape[0] - 1) if through_view and x.dim() and x.shape[0] > 1 else copy
            write(part, *more)
            return [copy, part]

        return run

    def plain(write):
        def run(x, *more):
            base = x._base
            write(x, *more)
            return [x, base]

        return run

    op(name + "_", on_memory, plain(method), rebuild=plain, **options)
    op(name + "_.recorded", on_history, recorded(method), rebuild=recorded, **options)
    SPECS[-1].method = SPECS[-2].method = method


def other(d):
    x = one(d)[0]
    y = d.tensor(d.partner(x.sizes), x.dtype if d.chance(0.7) else d.dtype())
    return [x, y]


in_place("zero", one, torch.Tensor.zero_, exact=True)
in_place("relu", one, torch.relu_, exact=True)
in_place("fill", number, torch.Tensor.fill_, exact=True, zeros=True)
for name in ("add", "sub", "mul", "div"):
    in_place(
        name + ".number",
        number if name != "sub" else lambda d: (lambda x: x + [number_but_bool(d, x[0].dtype)])(one(d)),
        getattr(torch.Tensor, name + "_"),
        types="into",
    )
in_place("clamp", clamped, torch.Tensor.clamp_, types="into")
in_place("copy", other, torch.Tensor.copy_, exact=True, zeros=True)
in_place(
    "add",
    lambda d: other(d) + [1 if d.flag() else number_but_bool(d)],
    lambda x, y, s: x.add_(y, alpha=s),
    types="into",
    spread=True,
)
for name in ("sub", "mul", "div"):
    in_place(name, other, getattr(torch.Tensor, name + "_"), types="into", spread=True)


def other_bits(d):
    x = whole_one(d)[0]
    return [x, d.tensor(d.partner(x.sizes), x.dtype if d.chance(0.8) else whole(d))]


for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    in_place(name, other_bits, getattr(torch.Tensor, name + "_"), types="into")
    in_place(name + ".number", whole_number, getattr(torch.Tensor, name + "_"), types="into")
in_place("exp", one, torch.Tensor.exp_, types="into")
in_place("neg", one, torch.Tensor.neg_, exact=True, zeros=True, types="into")
in_place("pow.number", lambda d: one(d) + [exponent(d)], torch.Tensor.pow_, types="into")
in_place("remainder.number", number, torch.Tensor.remainder_, types="into")
for name in ("pow", "remainder"):
    in_place(name, other, getattr(torch.Tensor, name + "_"), types="into", spread=True)
in_place("scatter", distinct, lambda x, d, i, src: x.scatter_(d, wide(i), src), exact=True)
in_place("scatter_add", put_at, lambda x, d, i, src: x.scatter_add_(d, wide(i), src), spread=True)
in_place("index_add", added_rows, torch.Tensor.index_add_, spread=True)


# ---- masks
def scattered(d):
    sizes, dtype = d.shape(), d.dtype()
    count = numel(sizes) + d.int(0, 3) if d.chance(0.9) else d.int(0, 3)
    return [
        d.tensor(sizes, dtype),
        d.tensor(d.partner(sizes), 0 if d.chance(0.95) else d.dtype()),
        d.tensor(Sizes((count,)) if d.flag() else Sizes((1, count)), dtype if d.chance(0.95) else d.dtype()),
    ]


op("masked_scatter", scattered, torch.masked_scatter, exact=True, zeros=True)
in_place("masked_scatter", scattered, torch.Tensor.masked_scatter_, exact=True, zeros=True)
in_place(
    "masked_fill", masked, torch.Tensor.masked_fill_, exact=True, zeros=True, types="into", meets=(0,)
)


# ---- index lists: a text of entries that commas separate (tests/support/compare/writes.cpp), and the tensors
# that it calls `t`
def entries(text, tensors):
    left = iter(tensors)
    words = {"None": lambda: None, "...": lambda: Ellipsis, "t": lambda: next(left)}
    bound = lambda part: int(part) if part else None
    return tuple(
        words[word]() if word in words
        else slice(*map(bound, word.split(":"))) if ":" in word
        else int(word)
        for word in filter(None, text.split(","))
    )  # fmt: skip


def positions(d, sizes, limit, distinct):
    """Positions below `limit`, of which some count from the end; distinct ones have one dim."""
    if distinct:
        order = torch.randperm(max(limit, 1), generator=d.generator)[: numel(sizes)]
        return of_torch(order.to(TORCH[d.of(2, INT64)]))
    x = d.index(sizes, limit)
    if x.dtype == INT64 and limit and d.chance(0.3):
        low = torch.randint(-limit, limit, tuple(sizes), generator=d.generator)
        return of_torch(low)
    return x


def mask(d, sizes):
    if d.chance(0.04):
        sizes = Sizes((*sizes[:-1], sizes[-1] + 1)) if sizes else Sizes((2,))
    return d.tensor(sizes, 0)


def index_list(d, x, distinct=False, plain=False):
    """An index of x. `distinct`: positions that name no element twice; `plain`: positions and whole dims
    alone."""
    rank, at, words, tensors = len(x.sizes), 0, [], []
    shared = Sizes((d.int(0, 4),)) if distinct else d.shape(0 if d.chance(0.2) else 1, 2)
    while at < rank and d.chance(0.85):
        size = x.sizes[at]
        kind = d.r.choices(("number", "slice", "new", "rest", "mask", "positions"), (3, 4, 2, 1, 2, 5))[0]
        if plain and kind in ("number", "new", "rest"):
            kind = "slice"
        if kind == "new":
            words.append("None")
            continue
        if kind == "rest":
            if "..." in words and not d.chance(0.05):
                break
            words.append("...")
            at += d.int(0, rank - at)
            continue
        if kind == "number":
            words.append(str(d.int(-size, size - 1) if size and d.chance(0.95) else d.of(size, -size - 1)))
        elif kind == "slice" and plain:
            words.append(":")
        elif kind == "slice":
            ends = ["" if d.flag() else str(d.int(-size - 1, size + 1)) for _ in range(2)]
            words.append(":".join(ends + ([str(d.of(1, 2, 3))] if d.chance(0.3) else [])))
        elif kind == "mask":
            if distinct and tensors:
                continue
            dims = d.int(1, min(rank - at, 2))
            words.append("t")
            tensors.append(mask(d, Sizes(x.sizes[at : at + dims])))
            at += dims - 1
            if distinct:
                break
        else:
            if distinct and (tensors or shared[0] > size):
                break
            sizes = shared if d.chance(0.8) or distinct else Sizes(1 for _ in shared)
            if not distinct and not plain and d.chance(0.15):
                sizes = Sizes(())
            words.append("t")
            tensors.append(positions(d, sizes, size, distinct))
        at += 1
    return ",".join(words), tensors


def indexed(d):
    x = one(d)[0]
    return [x, *index_list(d, x)]


op("index", indexed, lambda x, at, tensors: x[entries(at, tensors)], exact=True, zeros=True)


def stored(d):
    x, accumulate = one(d)[0], d.chance(0.4)
    at, tensors = index_list(d, x, distinct=not accumulate, plain=accumulate)
    try:
        result = tuple(to_torch(x).detach()[entries(at, [to_torch(t) for t in tensors])].shape)
    except (IndexError, RuntimeError, ValueError):
        result = x.sizes
    values = d.tensor(d.partner(result), x.dtype if d.chance(0.95) else d.dtype())
    return [x, at, tensors, values, accumulate]


def put_into(x, at, tensors, values, accumulate):
    where = entries(at, tensors)
    if not accumulate:
        x[where] = values
    elif tensors:
        torch.ops.aten.index_put_(x, [None if isinstance(e, slice) else e for e in where], values, True)
    else:
        x[where].add_(values)


def put(x, *more):
    y = x.clone()
    put_into(y, *more)
    return y


def stored_number(d):
    x, at, tensors, _, accumulate = stored(d)
    return [x, at, tensors, d.number(x.dtype), accumulate]


def put_number(x, at, tensors, value, accumulate):
    exact = torch.float64 if isinstance(value, float) else None
    put_into(x, at, tensors, torch.tensor(value, dtype=exact).to(x.dtype), accumulate)


op("index_put", stored, put, spread=True)
in_place("index_put", stored, put_into, spread=True)
in_place("index_put.number", stored_number, put_number, spread=True)


# ---- overlapping memory
def sequence(d):
    n = d.of(2, 3, 5, 17, 600, 2000)
    rest = Sizes(d.of((), (3,), (2, 2)))
    return [d.tensor((n, *rest), d.dtype(), grad=False, plain=d.flag()), d.int(1, min(n, 3))]


def late_and_early(x, gap):
    return x.narrow(0, gap, x.shape[0] - gap), x.narrow(0, 0, x.shape[0] - gap).clone()


def add_overlapping(x, gap):
    late, early = late_and_early(x, gap)
    late.add_(early)
    return x


def copy_overlapping(x, gap):
    late, early = late_and_early(x, gap)
    late.copy_(early)
    return x


op("add_.overlapping", sequence, add_overlapping)
op("copy_.overlapping", sequence, copy_overlapping, exact=True)


def square(d):
    n = d.of(1, 2, 3, 7, 40)
    return [d.tensor((n, n), d.dtype(), grad=False, plain=True)]


op("copy_.transposed_onto_itself", square, lambda x: x.copy_(x.t().clone()), exact=True)


