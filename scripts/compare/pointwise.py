"""Operations of one and two tensors, comparisons."""

import torch
import torch.nn.functional as F

from .draw import ALL, FLOATS, INTEGERS
from .table import op


def one(d):
    return [d.tensor(d.shape(), d.dtype())]


def one_floating(d):
    return [d.tensor(d.shape(), d.dtype(FLOATS if d.chance(0.9) else ALL))]


def two(d):
    sizes, dtype = d.shape(), d.dtype()
    other = dtype if d.chance(0.7) else d.dtype()
    pair = [d.tensor(sizes, dtype), d.tensor(d.partner(sizes), other)]
    return pair if d.flag() else pair[::-1]


def number(d):
    x = one(d)
    return x + [d.number(x[0].dtype)]


def whole(d):
    """A dtype for operations on bits, seldom a floating one."""
    return d.dtype((0, *INTEGERS)) if d.chance(0.95) else d.dtype()


def whole_one(d):
    return [d.tensor(d.shape(), whole(d))]


def whole_two(d):
    sizes, dtype = d.shape(), whole(d)
    pair = [d.tensor(sizes, dtype), d.tensor(d.partner(sizes), dtype if d.chance(0.7) else whole(d))]
    return pair if d.flag() else pair[::-1]


def whole_number(d):
    x = whole_one(d)[0]
    return [x, d.int(-3, 300) if d.chance(0.8) else d.number(x.dtype)]


def from_number(d):
    return number(d)[::-1]


def remainder_of_number(s, x):
    """torch.remainder of a number has no gradient, of a tensor without dims it has."""
    if not x.requires_grad:
        return torch.remainder(s, x)
    line = x.reshape(1) if x.dim() == 0 else x  # which counts for the type
    return torch.remainder(torch.tensor(s, dtype=torch.float64), line).reshape(x.shape)


def three(d):
    a, b = two(d)
    return [a, b, d.tensor(d.partner(a.sizes), a.dtype if d.chance(0.8) else d.dtype())]


def with_mask(d):
    sizes = d.shape()
    return [
        d.tensor(d.partner(sizes), 0 if d.chance(0.95) else d.dtype()),
        *[d.tensor(d.partner(sizes), t) for t in [d.dtype()] * 2],
    ]


def masked(d):
    sizes, dtype = d.shape(), d.dtype()
    return [
        d.tensor(sizes, dtype),
        d.tensor(d.partner(sizes), 0 if d.chance(0.95) else d.dtype()),
        d.number(dtype),
    ]


def mask_and_number(d):
    x, mask, number = masked(d)
    return [mask, x, number]


def number_and_mask(d):
    x, mask, number = masked(d)
    return [mask, number, x]


def mask_and_numbers(d):
    return [d.tensor(d.shape(), 0 if d.chance(0.95) else d.dtype()), number_but_bool(d), number_but_bool(d)]


def clamped(d):
    x = one(d)[0]
    return [x, d.number(x.dtype), d.number(x.dtype)]


def number_but_bool(d, dtype=6):
    s = d.number(dtype)
    return int(s) if isinstance(s, bool) else s


def alpha(d):
    a, b = two(d)
    return [a, b, 1 if d.flag() else number_but_bool(d, a.dtype)]


def exponent(d):
    return d.of(0, 1, 2, 3, -1, -2, 2.0, 0.5, -0.5, 1.5, 0.0, d.r.uniform(-4, 4))


for name in ("add", "sub"):
    op(name, alpha, lambda a, b, s, f=getattr(torch, name): f(a, b, alpha=s), types="arith", spread=True)
for name in ("mul", "maximum", "minimum", "remainder"):
    op(name, two, getattr(torch, name), types="arith")
op("fmod", two, torch.fmod, types="arith")
op("floor_divide", two, torch.floor_divide, types="arith")
for name in ("div", "atan2"):
    op(name, two, getattr(torch, name), types="real")
op("pow", two, torch.pow, types="arith")
op("where", with_mask, torch.where, exact=True, zeros=True, types="meet", meets=(1, 2))
op(
    "where.number",
    mask_and_number,
    lambda m, x, s: x.masked_fill(~m, s),
    exact=True,
    zeros=True,
    types="meet",
    meets=(1,),
)
op(
    "where.from",
    number_and_mask,
    lambda m, s, x: x.masked_fill(m, s),
    exact=True,
    zeros=True,
    types="meet",
    meets=(2,),
)
op("where.numbers", mask_and_numbers, torch.where, exact=True, zeros=True)
op(
    "masked_fill",
    masked,
    lambda x, m, s: x.masked_fill(m, s),
    exact=True,
    zeros=True,
    types="meet",
    meets=(0,),
)
op(
    "addcmul",
    lambda d: three(d) + [number_but_bool(d)],
    lambda x, a, b, s: torch.addcmul(x, a, b, value=s),
    spread=True,
    types="arith",
)
op(
    "addcdiv",
    lambda d: three(d) + [number_but_bool(d)],
    lambda x, a, b, s: torch.addcdiv(x, a, b, value=s),
    spread=True,
    types="real",
)
op("lerp", three, torch.lerp, spread=True, types="real")
op("lerp.number", lambda d: two(d) + [number_but_bool(d)], torch.lerp, spread=True, types="real")
for name in ("add", "sub", "mul"):
    op(name + ".number", number, getattr(torch, name), types="arith")
op("div.number", number, torch.div, types="real")
op("pow.number", lambda d: one(d) + [exponent(d)], torch.pow, types="real")
op("fmod.number", number, torch.fmod, types="arith")
op("floor_divide.number", number, torch.floor_divide, types="arith")
op("remainder.number", number, torch.remainder, types="arith")
op("remainder.from", from_number, remainder_of_number, types="arith")
op("add.from", from_number, lambda s, x: s + x, types="arith")
op("mul.from", from_number, lambda s, x: s * x, types="arith")
op("sub.from", from_number, lambda s, x: torch.rsub(x, s), types="arith")
op("div.from", from_number, lambda s, x: s / x, types="real")
op("pow.from", from_number, torch.pow, types="arith")
op("floor_divide.from", from_number, lambda s, x: s // x, types="arith")
op("maximum.number", number, lambda x, s: torch.clamp(x, min=s), types="arith")
op("minimum.number", number, lambda x, s: torch.clamp(x, max=s), types="arith")
op("maximum.from", from_number, lambda s, x: torch.clamp(x, min=s), types="arith")
op("minimum.from", from_number, lambda s, x: torch.clamp(x, max=s), types="arith")
op("clamp", clamped, torch.clamp, types="arith")
op(
    "clamp.tensors",
    three,
    lambda x, a, b: torch.minimum(torch.maximum(x, a), b),
    types="arith",
)

for name in ("neg", "abs"):
    op(name, one, getattr(torch, name), exact=True, zeros=True, types="arith")
for name in ("sign", "relu"):
    op(name, one, getattr(torch, name), exact=True, types="arith")
for name in ("floor", "ceil", "round", "trunc"):
    op(name, one, getattr(torch, name), exact=True, zeros=True, types="whole")
op("square", one, torch.square, types="arith")
for name in (
    "exp",
    "expm1",
    "log",
    "log1p",
    "log2",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sigmoid",
    "erf",
):
    op(name, one, getattr(torch, name), types="real", zeros=True)
op("log_sigmoid", one, F.logsigmoid, types="real")
op("leaky_relu", lambda d: one(d) + [d.floating(0.01, 0.0, 0.3, 2.0, -0.5)], F.leaky_relu, types="real",
   zeros=True)
op("elu", lambda d: one(d) + [d.floating(1.0, 0.5, 2.0, 0.0)], F.elu, types="real", zeros=True)


def gelu_of_torch(x):
    """PyTorch's own: that of oneDNN, which it takes for float32, makes 0 of -0."""
    with torch.backends.mkldnn.flags(enabled=False):
        return F.gelu(x)


op("gelu", one, gelu_of_torch, types="real", zeros=True, spread=True, floor=1)
op("gelu_tanh", one, lambda x: F.gelu(x, approximate="tanh"), types="real", zeros=True, spread=True, floor=1)
op("silu", one, F.silu, types="real", zeros=True)
op("softplus", one, lambda x: F.softplus(x, threshold=40), types="real")

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
for name in COMPARISONS:
    op(name, two, getattr(torch, name), types="compare")
    op(name + ".number", number, getattr(torch, name), types="compare")
for name in ("logical_and", "logical_or", "logical_xor"):
    op(name, two, getattr(torch, name))
for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    op(name, whole_two, getattr(torch, name), types="meet")
    op(name + ".number", whole_number, getattr(torch, name), types="meet")
op("bitwise_not", whole_one, torch.bitwise_not)
for name in ("logical_not", "isnan", "isfinite", "isinf"):
    op(name, one, getattr(torch, name))


def nearly(d):
    a = one(d)[0]
    b = d.tensor(a.sizes, a.dtype) if d.chance(0.3) else a
    return [a, b]


op(
    "allclose",
    lambda d: nearly(d) + [d.floating(1e-5, 0, 1), d.floating(1e-8, 0, 1)],
    lambda a, b, r, t: torch.allclose(a, b, r, t),
)
op("equal", nearly, torch.equal)


def replaced(d):
    x = one(d)[0]
    return [x, d.of(0, 1.5, -2), d.flag(), d.of(7, 1e3), d.of(-7, -1e3)]


def nan_to_num(x, nan, bounds, high, low):
    return torch.nan_to_num(x, nan, high, low) if bounds else torch.nan_to_num(x, nan)


op("nan_to_num", replaced, nan_to_num, exact=True)
