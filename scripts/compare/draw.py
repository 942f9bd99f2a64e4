"""Random cases: shapes, layouts, dtypes, values with the special ones among them, dims, numbers. One Draw per
case, seeded by its number."""

import ctypes
import random

import torch

from .frames import DTYPES, T, Sizes

TORCH = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
INDEX = {dtype: i for i, dtype in enumerate(TORCH)}
FLOATS, INTEGERS, ALL = (4, 5, 6, 7), (1, 2, 3), tuple(range(8))
INT64, FLOAT32, FLOAT64 = 3, 6, 7
LIMITS = {1: (0, 255), 2: (-(2**31), 2**31 - 1), 3: (-(2**63), 2**63 - 1)}


def raw(x):
    """The bytes of a contiguous tensor."""
    return ctypes.string_at(x.data_ptr(), x.numel() * x.element_size()) if x.numel() else b""


def from_bytes(data, dtype):
    return (
        torch.frombuffer(bytearray(data), dtype=TORCH[dtype]) if data else torch.empty(0, dtype=TORCH[dtype])
    )


def to_torch(t):
    """The torch tensor over the same bytes with the same geometry."""
    x = from_bytes(t.data, t.dtype).as_strided(t.sizes, t.strides, t.offset)
    return x.requires_grad_() if t.grad else x


def of_torch(x, grad=False):
    x = x.detach().contiguous()
    return T(INDEX[x.dtype], tuple(x.shape), tuple(x.stride()), 0, raw(x), grad)


def numel(sizes):
    n = 1
    for size in sizes:
        n *= size
    return n


class Draw:
    def __init__(self, seed, case):
        self.r = random.Random(f"{seed}/{case}")
        self.generator = torch.Generator().manual_seed(self.r.getrandbits(62))

    def chance(self, p):
        return self.r.random() < p

    def of(self, *choices):
        return self.r.choice(choices)

    def int(self, low, high):
        return self.r.randint(low, high)

    def flag(self):
        return self.r.random() < 0.5

    # ---- geometry
    def size(self):
        return self.r.choices((0, 1, 2, 3, 4, 5, 7, 8, 17), (1, 5, 8, 8, 4, 4, 2, 2, 1))[0]

    def shape(self, low=0, high=4):
        if self.chance(0.04):
            big = [Sizes(s) for s in ((1031,), (33, 70), (3, 257, 2), (2, 1, 600)) if low <= len(s) <= high]
            if big:
                return self.r.choice(big)
        return Sizes(self.size() for _ in range(self.int(low, high)))

    def partner(self, sizes):
        """Sizes that broadcast with the given ones, with a few that do not."""
        out = list(sizes)
        if self.chance(0.4):
            out = out[self.int(0, len(out)) :]
        out = [1 if self.chance(0.2) else size for size in out]
        if out and self.chance(0.03):
            out[self.int(0, len(out) - 1)] += 1
        return Sizes(out)

    def dim(self, rank):
        n = max(rank, 1)
        return self.of(-n - 1, n, n + 3) if self.chance(0.03) else self.int(-n, n - 1)

    def dims(self, rank):
        """A list of dims, mostly without repetition."""
        n = max(rank, 1)
        if self.chance(0.05):
            return Sizes(self.dim(rank) for _ in range(self.int(0, 3)))
        chosen = self.r.sample(range(n), self.int(0, min(n, 3)))
        return Sizes(d - n if self.flag() else d for d in chosen)

    def layout(self, sizes):
        """Strides, offset and element count of a storage."""
        rank = len(sizes)
        kind = self.r.choices(("dense", "permuted", "gaps", "expanded", "offset"), (8, 4, 3, 2, 2))[0]
        order = list(range(rank))
        if kind == "permuted":
            self.r.shuffle(order)
        strides, step = [0] * rank, self.int(2, 3) if kind == "gaps" else 1
        for d in reversed(order):
            strides[d] = step
            step *= max(sizes[d], 1)
            if kind == "gaps" and self.chance(0.3):
                step += self.int(1, 4)
        if kind == "expanded" and rank:
            for d in self.r.sample(range(rank), self.int(1, rank)):
                strides[d] = 0
        offset = self.int(1, 9) if kind in ("offset", "gaps") else 0
        reach = sum((size - 1) * stride for size, stride in zip(sizes, strides)) if numel(sizes) else -1
        return tuple(strides), offset, offset + reach + 1 + (self.int(0, 3) if kind == "offset" else 0)

    # ---- values
    def floats(self, n, dtype, mode=None):
        mode = (
            mode
            or self.r.choices(("normal", "small", "special", "wide", "one", "unit"), (9, 3, 4, 2, 1, 2))[0]
        )
        if mode == "unit":
            x = torch.rand(n, generator=self.generator, dtype=torch.float64)
        elif mode == "small":
            x = torch.randint(-3, 4, (n,), generator=self.generator).double()
        elif mode == "one":
            x = torch.full((n,), self.of(0.0, 1.0, -2.0, 0.5), dtype=torch.float64)
        else:
            x = torch.randn(n, generator=self.generator, dtype=torch.float64)
        if mode == "wide":
            x *= 10.0 ** self.r.uniform(-6, 6)
        if mode == "fine":
            x *= 0.2
        x = x.to(TORCH[dtype])
        if mode == "special" and n:
            info = torch.finfo(TORCH[dtype])
            special = torch.tensor(
                [
                    float("nan"),
                    float("inf"),
                    -float("inf"),
                    0.0,
                    -0.0,
                    1.0,
                    -1.0,
                    0.5,
                    -2.5,
                    info.max,
                    info.min,
                    info.tiny,
                    -info.tiny,
                    info.smallest_normal * info.eps,
                    info.eps,
                    1.0 + info.eps,
                    88.0,
                    -104.0,
                ],
                dtype=torch.float64,
            ).to(TORCH[dtype])
            pick = torch.randint(0, len(special), (n,), generator=self.generator)
            if self.flag():  # without NaN
                pick = pick.clamp(min=1)
            x = torch.where(torch.rand(n, generator=self.generator) < self.of(0.1, 0.5), special[pick], x)
        return x

    def integers(self, n, dtype):
        low, high = LIMITS[dtype]
        mode = self.r.choices(("small", "wide", "extreme", "one"), (12, 2, 2, 1))[0]
        if mode == "wide":
            return torch.randint(low, high, (n,), generator=self.generator, dtype=torch.int64).to(
                TORCH[dtype]
            )
        x = torch.randint(max(low, -4), 6, (n,), generator=self.generator, dtype=torch.int64)
        if mode == "one":
            x = torch.full((n,), self.int(max(low, -2), 3), dtype=torch.int64)
        if mode == "extreme" and n:
            special = torch.tensor([low, high, low + 1, high - 1, 0, 1], dtype=torch.int64)
            pick = special[torch.randint(0, len(special), (n,), generator=self.generator)]
            x = torch.where(torch.rand(n, generator=self.generator) < 0.3, pick, x)
        return x.to(TORCH[dtype])

    def values(self, n, dtype, mode=None):
        if dtype == 0:
            return torch.randint(0, 2, (n,), generator=self.generator) > 0
        return self.floats(n, dtype, mode) if dtype >= 4 else self.integers(n, dtype)

    # ---- arguments
    def dtype(self, among=ALL):
        """float32 as often as the other ones together."""
        return FLOAT32 if FLOAT32 in among and self.chance(0.4) else self.r.choice(among)

    def tensor(self, sizes, dtype, grad=None, mode=None, plain=False):
        """`grad`: None lets a floating tensor require it half of the time; `plain`: dense memory."""
        strides, offset, count = (
            (torch.empty(sizes, device="meta").stride(), 0, numel(sizes)) if plain else self.layout(sizes)
        )
        data = raw(self.values(count, dtype, mode))
        wants = dtype >= 4 and (self.flag() if grad is None else grad)
        return T(dtype, tuple(sizes), tuple(strides), offset, data, wants)

    def index(self, sizes, limit):
        """An int32 or int64 tensor of indices below `limit`, seldom with one out of range; seldom of another
        dtype."""
        dtype = self.r.choices((INT64, 2, 1, FLOAT32), (60, 30, 2, 2))[0]
        strides, offset, count = self.layout(sizes)
        x = torch.randint(0, max(limit, 1), (count,), generator=self.generator)
        if count and self.chance(0.05):
            x[self.int(0, count - 1)] = self.of(-1, limit, limit + 5, -limit - 1)
        return T(dtype, tuple(sizes), strides, offset, raw(x.to(TORCH[dtype])))

    def number(self, dtype=FLOAT32):
        """A Python int, float or bool; often one that `dtype` holds, at times a fraction for integers, or
        beyond the type."""
        kind = self.r.choices(("int", "float", "special", "bool"), (8, 8, 2, 1))[0]
        if kind == "bool":
            return self.flag()
        if kind == "special":
            low, high = LIMITS.get(dtype, (-(2**31), 2**31) if dtype > 4 else (-60000, 60000))
            return self.of(
                0,
                1,
                -1,
                low,
                high,
                min(high + 1, 2**63 - 1),
                max(low - 1, -(2**63)),
                2.0**40,
                1e30,
                -1e30,
                0.0,
                -0.0,
                1e-30,
                float("inf"),
                -float("inf"),
                float("nan"),
                300,
                -300,
                65520.0,
                0.1,
            )
        if kind == "int":
            return self.int(-3, 5)
        return (
            self.of(0.5, 2.0, -1.0, 1.5, 3.0, self.r.uniform(-3, 3))
            if dtype >= 4
            else self.of(2.0, -1.0, 0.0, 3.0, 0.5)
        )

    def floating(self, *usual):
        """One of the usual values as a float."""
        return float(self.r.choice(usual))


def describe(value):
    """A case's argument as text that Python reads."""
    if isinstance(value, T):
        x = to_torch(T(value.dtype, value.sizes, value.strides, value.offset, value.data))
        plain = (
            tuple(x.contiguous().stride()) == tuple(value.strides)
            and value.offset == 0
            and len(value.data) == x.numel() * x.element_size()
        )
        shown = x.flatten().tolist() if x.numel() <= 24 else x.flatten()[:24].tolist() + ["..."]
        return (
            f"{DTYPES[value.dtype]}{list(value.sizes)}"
            + ("" if plain else f" strides {list(value.strides)} offset {value.offset}")
            + (" grad" if value.grad else "")
            + f" {shown}"
        )
    if isinstance(value, Sizes):
        return str(tuple(value))
    if isinstance(value, list):
        return "[" + "; ".join(map(describe, value)) + "]"
    return repr(value)
