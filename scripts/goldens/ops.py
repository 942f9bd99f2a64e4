"""Outputs and gradients of single operations: ops.safetensors, each case named <op>.<case>."""
import math

import torch
from torch.nn import functional as F

from .store import GoldenFile

INF, NAN = math.inf, math.nan
EDGES = [0.0, -0.0, 1e-8, -1e-8, 1.0, -1.0, 5.0, -5.0, 20.0, -20.0, 50.0, -50.0, 88.0, -88.0, 100.0, -100.0,
         1e30, -1e30, INF, -INF, NAN]
COUNT = 37  # two AVX-512 registers and a tail

# name: (function, low, high)
UNARY = {
    "neg": (torch.neg, -3, 3), "exp": (torch.exp, -3, 3), "expm1": (torch.expm1, -2, 2),
    "log": (torch.log, 0.1, 5), "log1p": (torch.log1p, -0.8, 4), "log2": (torch.log2, 0.1, 5),
    "sqrt": (torch.sqrt, 0.1, 5), "rsqrt": (torch.rsqrt, 0.2, 5), "reciprocal": (torch.reciprocal, 0.3, 4),
    "square": (torch.square, -3, 3), "sin": (torch.sin, -7, 7), "cos": (torch.cos, -7, 7),
    "tan": (torch.tan, -1.2, 1.2), "tanh": (torch.tanh, -4, 4), "sigmoid": (torch.sigmoid, -6, 6),
    "log_sigmoid": (F.logsigmoid, -6, 6), "erf": (torch.erf, -3, 3), "gelu": (F.gelu, -4, 4),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), -4, 4), "silu": (F.silu, -6, 6),
    "softplus": (F.softplus, -8, 30), "softplus_beta2": (lambda x: F.softplus(x, beta=2, threshold=5), -4, 4),
    "mish": (F.mish, -4, 4), "hardtanh": (F.hardtanh, -3, 3), "elu": (F.elu, -4, 4),
    "elu_alpha": (lambda x: F.elu(x, 0.7), -4, 4), "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), -3, 3),
}
EDGE_OPS = ["exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid",
            "log_sigmoid", "erf", "gelu", "gelu_tanh", "silu", "softplus", "elu", "leaky_relu"]


class Ops:
    def __init__(self):
        self.file = GoldenFile("ops", "single operations; edge cases and integer results have outputs only")

    def add(self, case, about, compute, grad=True, **inputs):
        self.file.run(case, about, compute, inputs, grad=grad)

    def draw(self, case):
        return self.file.draw(case)


def pointwise(o):
    for name, (op, low, high) in UNARY.items():
        o.add(f"{name}.plain", f"{name}, uniform in [{low}, {high})", op,
              x=o.draw(name).uniform(low, high, COUNT))
    for name in EDGE_OPS:
        o.add(f"{name}.edges", "zeros, tiny, large, infinities, NaN", UNARY[name][0], grad=False,
              x=torch.tensor(EDGES))
    kinks = torch.tensor([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0])
    for name, op in (("relu", torch.relu), ("abs", torch.abs), ("sign", torch.sign),
                     ("leaky_relu", UNARY["leaky_relu"][0]), ("elu", F.elu)):
        o.add(f"{name}.kink", "gradient at zero", op, x=kinks.clone())
    o.add("clamp.boundary", "clamp to [-1, 1]; the gradient is 1 on the boundary", lambda x: x.clamp(-1, 1),
          x=kinks.clone())
    o.add("clamp.low_only", "clamp from below at 0.5", lambda x: x.clamp(min=0.5),
          x=o.draw("clamp").normal(COUNT))
    o.add("clamp.high_only", "clamp from above at 0.5", lambda x: x.clamp(max=0.5),
          x=o.draw("clamp").normal(COUNT))
    halves = torch.tensor([-2.5, -1.5, -0.5, -0.2, 0.0, 0.5, 1.5, 2.5, 2.7, 1e9])
    for name, op in (("floor", torch.floor), ("ceil", torch.ceil), ("round", torch.round),
                     ("trunc", torch.trunc)):
        o.add(f"{name}.halves", f"{name} (round: halves to even)", op, grad=False, x=halves)
    for exponent in (2.0, 3.0, 0.5, -1.0, 0.0, 2.5):
        o.add(f"pow.scalar_{exponent:g}".replace(".5", "_5").replace("-", "minus_"),
              f"x ** {exponent:g}, x positive", lambda x: x ** exponent,
              x=o.draw("pow").uniform(0.2, 3, COUNT))
    o.add("pow.negative_base", "x ** 3, x of both signs", lambda x: x ** 3,
          x=o.draw("pow_negative").away_from_zero(COUNT))
    o.add("pow.zero_base", "0 ** 2, 0 ** 1, 0 ** 0 by tensor exponent", lambda a, b: a ** b, a=torch.zeros(3),
          b=torch.tensor([2.0, 1.0, 0.0]))
    o.add("pow.scalar_base", "2.5 ** x", lambda x: 2.5 ** x, x=o.draw("rpow").uniform(-2, 2, COUNT))
    d = o.draw("pow_tensor")
    o.add("pow.tensor", "a ** b, broadcast [5, 7] and [7]", torch.pow, a=d.uniform(0.2, 3, 5, 7),
          b=d.uniform(-2, 2, 7))


def binary(o):
    d = o.draw("binary")
    shapes = {"same": ((3, 5), (3, 5)), "broadcast": ((3, 1, 7), (5, 1)), "scalar": ((3, 5), ())}
    table = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
             "minimum": torch.minimum, "atan2": torch.atan2, "remainder": torch.remainder}
    for name, op in table.items():
        for label, (sa, sb) in shapes.items():
            o.add(f"{name}.{label}", f"{name}(a, b), {list(sa)} and {list(sb)}", op,
                  a=d.normal(*sa, scale=2.0), b=d.away_from_zero(*sb))
    ties = torch.tensor([1.0, 2.0, -1.0])
    for name in ("maximum", "minimum"):
        o.add(f"{name}.ties", "equal entries share the gradient by halves", table[name], a=ties.clone(),
              b=ties.clone())
    o.add("remainder.integers", "sign of the divisor", torch.remainder, grad=False,
          a=torch.tensor([7, -7, 7, -7, 0]), b=torch.tensor([3, 3, -3, -3, 5]))
    o.add("remainder.signs", "sign of the divisor", torch.remainder, grad=False,
          a=torch.tensor([7.5, -7.5, 7.5, -7.5, 6.0, -6.0]), b=torch.tensor([2.0, 2.0, -2.0, -2.0, 3.0, 3.0]))
    a, b, c = d.normal(3, 5), d.normal(5), d.away_from_zero(3, 1)
    o.add("addcmul.plain", "a + 0.5 * b * c", lambda a, b, c: torch.addcmul(a, b, c, value=0.5), a=a, b=b,
          c=c)
    a, b, c = d.normal(3, 5), d.normal(5), d.away_from_zero(3, 1)
    o.add("addcdiv.plain", "a + 0.5 * b / c", lambda a, b, c: torch.addcdiv(a, b, c, value=0.5), a=a, b=b,
          c=c)
    o.add("lerp.tensor", "a + w * (b - a)", lambda a, b, w: torch.lerp(a, b, w), a=d.normal(3, 5),
          b=d.normal(3, 5), w=d.uniform(0, 1, 3, 5))
    o.add("where.broadcast", "cond [3, 5], a [3, 1], b [5]", torch.where, cond=d.normal(3, 5) > 0,
          a=d.normal(3, 1), b=d.normal(5))
    o.add("masked_fill.plain", "masked entries become -7", lambda x, mask: x.masked_fill(mask, -7.0),
          x=d.normal(3, 5), mask=d.normal(3, 5) > 0)
    o.add("masked_select.plain", "entries where mask, in row-major order",
          lambda x, mask: x.masked_select(mask), x=d.normal(3, 5), mask=d.normal(3, 5) > 0)


def reductions(o):
    d = o.draw("reductions")
    dims = {"all": None, "dim0": 0, "dim1_keep": (1, True), "dims02": (0, 2), "last": -1}
    for name, op in (("sum", torch.sum), ("mean", torch.mean), ("amax", torch.amax), ("amin", torch.amin),
                     ("logsumexp", torch.logsumexp)):
        for label, dim in dims.items():
            keep = label.endswith("keep")
            dim = (0, 1, 2) if dim is None else 1 if keep else dim
            o.add(f"{name}.{label}", f"{name} of [3, 5, 7] over dim {dim} keepdim={keep}",
                  lambda x: op(x, dim=dim, keepdim=keep), x=d.distinct(3, 5, 7))
    for correction in (0, 1):
        for name, op in (("std", torch.std), ("var", torch.var)):
            o.add(f"{name}.all_correction{correction}", f"{name} of all, divisor n - {correction}",
                  lambda x: op(x, dim=(0, 1), correction=correction), x=d.normal(5, 7))
            o.add(f"{name}.dim1_correction{correction}", f"{name} over dim 1, divisor n - {correction}",
                  lambda x: op(x, dim=1, correction=correction), x=d.normal(5, 7))
    for label, p in (("0_5", 0.5), ("1", 1.0), ("2", 2.0), ("3", 3.0), ("inf", INF)):
        o.add(f"norm.p{label}", f"p={p:g} norm of all", lambda x: torch.linalg.vector_norm(x, p),
              x=d.away_from_zero(5, 7))
        o.add(f"norm.p{label}_dim1", f"p={p:g} norm over dim 1",
              lambda x: torch.linalg.vector_norm(x, p, dim=1), x=d.away_from_zero(5, 7))
    o.add("norm.p2_of_zeros", "gradient 0 at the origin", lambda x: torch.linalg.vector_norm(x, 2.0),
          x=torch.zeros(5))
    o.add("prod.all", "product of all", torch.prod, x=d.away_from_zero(3, 5))
    o.add("prod.dim1", "product over dim 1", lambda x: x.prod(dim=1), x=d.away_from_zero(3, 5, 2))
    zeros = torch.tensor([[2.0, 3.0, 4.0], [2.0, 0.0, 4.0], [0.0, 3.0, 0.0]])
    o.add("prod.zeros", "rows with no, one and two zeros, over dim 1", lambda x: x.prod(dim=1), x=zeros)
    for label, dim in (("dim0", 0), ("dim1", 1), ("last", -1)):
        o.add(f"cumsum.{label}", f"cumulative sum of [3, 5, 7] along {dim}", lambda x: x.cumsum(dim),
              x=d.normal(3, 5, 7))
        o.add(f"cumprod.{label}", f"cumulative product of [3, 5, 7] along {dim}", lambda x: x.cumprod(dim),
              x=d.away_from_zero(3, 5, 7))
        for name, op in (("max", torch.max), ("min", torch.min)):
            def both(x):
                values, indices = op(x, dim=dim)
                return {"values": values, "indices": indices}
            o.add(f"{name}.{label}", f"{name} of [3, 5, 7] over {dim}, no ties", both, x=d.distinct(3, 5, 7))
        for name, op in (("argmax", torch.argmax), ("argmin", torch.argmin)):
            o.add(f"{name}.{label}", f"{name} of [3, 5, 7] over {dim}, no ties", lambda x: op(x, dim=dim),
                  grad=False, x=d.distinct(3, 5, 7))
    o.add("max.all", "largest of all, no ties", torch.max, x=d.distinct(3, 5))
    o.add("min.all", "smallest of all, no ties", torch.min, x=d.distinct(3, 5))
    ties = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    o.add("amax.ties", "equal maxima share the gradient", lambda x: x.amax(dim=1), x=ties.clone())
    o.add("logsumexp.huge", "rows of size 1000, of minus infinity alone, and with one plus infinity",
          lambda x: x.logsumexp(1), grad=False,
          x=torch.tensor([[1000.0, 1000.0], [-1000.0, -1001.0], [-INF, -INF], [INF, 0.0]]))
    for name, op in (("any", torch.any), ("all", torch.all)):
        o.add(f"{name}.dim1", f"{name} over dim 1", lambda x: op(x, dim=1), grad=False,
              x=torch.tensor([[True, False], [True, True], [False, False]]))
    o.add("sum.int64", "integers stay int64", torch.sum, grad=False, x=d.integers(-9, 9, 5, 7))


def matrices(o):
    d = o.draw("matrices")
    shapes = {"matrix_matrix": ((3, 5), (5, 7)), "matrix_vector": ((3, 5), (5,)),
              "vector_matrix": ((3,), (3, 5)), "dot": ((7,), (7,)), "batch": ((2, 3, 5), (2, 5, 7)),
              "batch_by_matrix": ((2, 3, 5), (5, 7)), "broadcast_batch": ((2, 1, 3, 5), (7, 5, 3))}
    for label, (sa, sb) in shapes.items():
        o.add(f"matmul.{label}", f"{list(sa)} by {list(sb)}", torch.matmul, a=d.normal(*sa), b=d.normal(*sb))
    o.add("matmul.transposed", "a^T b^T with a [5, 3], b [7, 5]", lambda a, b: a.t() @ b.t(),
          a=d.normal(5, 3), b=d.normal(7, 5))
    o.add("matmul.larger", "[67, 71] by [71, 73]: crosses kernel tiles", lambda a, b: a @ b, grad=False,
          a=d.normal(67, 71), b=d.normal(71, 73))
    o.add("bmm.plain", "[3, 2, 5] by [3, 5, 7]", torch.bmm, a=d.normal(3, 2, 5), b=d.normal(3, 5, 7))
    for label, bias, beta, alpha in (("plain", (3, 7), 1.0, 1.0), ("row_bias", (7,), 1.0, 1.0),
                                     ("scaled", (3, 7), 0.5, -2.0)):
        o.add(f"addmm.{label}", f"{beta:g} * c + {alpha:g} * a b, c {list(bias)}",
              lambda c, a, b: torch.addmm(c, a, b, beta=beta, alpha=alpha), c=d.normal(*bias),
              a=d.normal(3, 5), b=d.normal(5, 7))
    o.add("outer.plain", "[3] and [5]", torch.outer, a=d.normal(3), b=d.normal(5))
    for name, op in (("tril", torch.tril), ("triu", torch.triu)):
        for k in (0, 1, -2):
            o.add(f"{name}.k{k}".replace("-", "minus_"), f"[2, 5, 3], diagonal {k}", lambda x: op(x, k),
                  x=d.normal(2, 5, 3))
    o.add("layer_norm.affine", "[3, 5, 7] over the last dim, eps 1e-5",
          lambda x, weight, bias: F.layer_norm(x, (7,), weight, bias), x=d.normal(3, 5, 7),
          weight=d.normal(7), bias=d.normal(7))
    o.add("layer_norm.plain", "[5, 7] over the last dim, no weight, eps 1e-5",
          lambda x: F.layer_norm(x, (7,)), x=d.normal(5, 7))
    o.add("layer_norm.offset", "float64; rows far from zero: mean 1000, spread 1; x is exact in float32",
          lambda x: F.layer_norm(x, (37,)), x=(d.normal(3, 37) + 1000).double())


def indexing(o):
    d = o.draw("indexing")
    for dim in (0, 1, 2):
        shape = [3, 5, 7]
        count = [2, 4, 6][dim]
        o.add(f"index_select.dim{dim}", f"[3, 5, 7] along {dim}, repeated indices",
              lambda x, index: x.index_select(dim, index), x=d.normal(*shape),
              index=d.integers(0, shape[dim], count + 3))
        sizes = shape[:dim] + [count] + shape[dim + 1:]
        o.add(f"gather.dim{dim}", f"[3, 5, 7] along {dim}, index {sizes}",
              lambda x, index: x.gather(dim, index), x=d.normal(*shape),
              index=d.integers(0, shape[dim], *sizes))
        o.add(f"scatter_add.dim{dim}", f"src {sizes} added into [3, 5, 7] along {dim}",
              lambda x, index, src: x.scatter_add(dim, index, src), x=d.normal(*shape),
              index=d.integers(0, shape[dim], *sizes), src=d.normal(*sizes))
        o.add(f"index_add.dim{dim}", f"slices added into [3, 5, 7] along {dim}, repeated indices",
              lambda x, index, src: x.index_add(dim, index, src), x=d.normal(*shape),
              index=d.integers(0, shape[dim], count + 3),
              src=d.normal(*(shape[:dim] + [count + 3] + shape[dim + 1:])))
        rows = torch.stack([torch.from_numpy(d.rng.permutation(shape[dim]))
                            for _ in range(105 // shape[dim])])
        index = rows.reshape([105 // shape[dim] // math.prod(shape[dim + 1:])] + shape[dim + 1:]
                             + [shape[dim]])
        index = index.movedim(-1, 1).reshape(shape).contiguous()
        o.add(f"scatter.dim{dim}", f"src written into [3, 5, 7] along {dim}, each target once",
              lambda x, index, src: x.scatter(dim, index, src), x=d.normal(*shape), index=index,
              src=d.normal(*shape))
        for label, largest in (("largest", True), ("smallest", False)):
            def top(x):
                values, indices = x.topk(2, dim=dim, largest=largest, sorted=True)
                return {"values": values, "indices": indices}
            o.add(f"topk.{label}_dim{dim}", f"two {label} of [3, 5, 7] along {dim}, sorted", top,
                  x=d.distinct(*shape))
        for label, descending in (("ascending", False), ("descending", True)):
            def order(x):
                values, indices = x.sort(dim=dim, descending=descending, stable=True)
                return {"values": values, "indices": indices}
            o.add(f"sort.{label}_dim{dim}", f"[3, 5, 7] along {dim}", order, x=d.distinct(*shape))
    for label, descending in (("ascending", False), ("descending", True)):
        o.add(f"sort.stable_{label}", "equal entries keep their order",
              lambda x: dict(zip(("values", "indices"), x.sort(descending=descending, stable=True))),
              x=torch.tensor([2.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0]))
    o.add("nonzero.plain", "coordinates in row-major order", torch.nonzero, grad=False,
          x=d.integers(0, 2, 3, 5))


def shapes(o):
    d = o.draw("shapes")
    for dim in (0, 1):
        a, b = ((2, 5), (3, 5)) if dim == 0 else ((5, 2), (5, 3))
        o.add(f"cat.dim{dim}", f"{list(a)} and {list(b)}", lambda a, b: torch.cat([a, b], dim),
              a=d.normal(*a), b=d.normal(*b))
        o.add(f"stack.dim{dim}", "two [3, 5]", lambda a, b: torch.stack([a, b], dim), a=d.normal(3, 5),
              b=d.normal(3, 5))
    o.add("flip.dim1", "[3, 5]", lambda x: x.flip(1), x=d.normal(3, 5))
    o.add("roll.dim1", "[3, 5] by 2", lambda x: x.roll(2, 1), x=d.normal(3, 5))
    o.add("repeat.plain", "[3, 5] repeated (2, 3)", lambda x: x.repeat(2, 3), x=d.normal(3, 5))
    o.add("permute.sum_of_views",
          "x.permute(2, 0, 1).narrow(0, 1, 3) * x.select(1, 0)[:, 1:4].t().unsqueeze(2)",
          lambda x: x.permute(2, 0, 1).narrow(0, 1, 3) * x.select(1, 0)[:, 1:4].t().unsqueeze(2),
          x=d.normal(3, 5, 7))
    numbers = torch.tensor(EDGES + [65504.0, 65519.9, 65520.0, 6.1e-5, 5.96e-8, 2.9e-8, 3.0e-8, 0.1, 1 / 3,
                                    1 + 2 ** -11, 1 + 3 * 2 ** -11, 1 + 2 ** -8, 1 + 3 * 2 ** -8])
    o.add("convert.float16", "float32 to float16, nearest even", lambda x: x.half(), grad=False, x=numbers)
    o.add("convert.bfloat16", "float32 to bfloat16, nearest even", lambda x: x.bfloat16(), grad=False,
          x=numbers)
    o.add("convert.int64", "float32 to int64 cuts towards zero", lambda x: x.long(), grad=False,
          x=torch.tensor([0.0, 0.9, -0.9, 1.5, -1.5, 1e9, -1e9]))


def files():
    o = Ops()
    for part in (pointwise, binary, reductions, matrices, indexing, shapes):
        part(o)
    yield o.file
