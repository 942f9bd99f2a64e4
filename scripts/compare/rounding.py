"""The finite numbers that another order of operations may give. Any order gives the exact result of inputs
that differ by roundings. So a number is explained if it lies as near to the float64 result as the results of
such inputs do. An element that depends on an extreme number has other reasons too, since a step on the way
may overflow or vanish. A wrong number cannot hide behind an infinity beside it."""

import torch

from . import judge
from .draw import to_torch

MOVES, ROOM = 4, 8  # the moved inputs that are tried, and how much further a number may lie


class Neighbours:
    """PyTorch's float64 answer to a case, its answers to inputs moved by a rounding each, and those with 0
    and with NaN in the place of each extreme number. The NaN reaches all that depends on one."""

    def __init__(self, case, results):
        self.relative = judge.coarsest(case, results)
        run = lambda change: judge.run(case.spec.torch, case.arguments, case.cotangents, change=change)
        self.truth = run(judge.upcast)
        self.moved = [run(self.move(seed)) for seed in range(MOVES)]
        self.without, self.poisoned = run(replace(0.0)), run(replace(float("nan")))

    def move(self, seed):
        generator = torch.Generator().manual_seed(seed)

        def change(position, x):
            leaf, y = judge.upcast(position, x)
            if not y.is_floating_point():
                return leaf, y
            parts = torch.rand(y.shape, generator=generator, dtype=torch.float64) * 2 - 1
            y = (y.detach() * (1 + self.relative * parts)).requires_grad_(x.requires_grad)
            return y, y

        return change

    def explain(self, what, i, a, b):
        """Per element of weft's output or gradient `i` whether it is not finite, or such a number. One that
        depends on an extreme number may also be 0, or the result without that number. Where PyTorch has no
        finite number, nothing is compared."""
        runs = [judge.entry(getattr(run, what), i) for run in (self.truth, self.without, self.poisoned)]
        if any(x is None or x.shape != b.shape for x in runs):
            return ~b.isfinite()
        truth, without, poisoned = (x.double() for x in runs)
        b = b.double()
        room = torch.zeros(b.shape, dtype=torch.float64)
        for moved in (judge.entry(getattr(run, what), i) for run in self.moved):
            if moved is not None and moved.shape == b.shape:
                room = torch.maximum(room, (moved.double() - truth).abs().nan_to_num(0.0, 0.0))
        allowed = ROOM * room + self.relative * truth.abs() + torch.finfo(a.dtype).tiny
        near = (b - truth).abs() <= allowed
        left_out = (b - without).abs() <= self.relative * without.abs() + torch.finfo(a.dtype).tiny
        depends = poisoned.isnan() & (~a.isfinite() | left_out | (b == 0))
        return ~a.isfinite() & ~truth.isfinite() | ~b.isfinite() | near | depends


def extreme(x):
    """Where a number is not finite, or its square would leave the type's range, above or below."""
    return ~x.isfinite() | (x.double().abs() > torch.finfo(x.dtype).max ** 0.5) | vanishing(x)


def replace(number):
    """The change of an input to float64 with another number in the place of each extreme one."""

    def change(position, x):
        leaf, y = judge.upcast(position, x)
        if not y.is_floating_point():
            return leaf, y
        y = torch.where(extreme(x.detach()), number, y.detach()).requires_grad_(x.requires_grad)
        return y, y

    return change


def beyond_root(x):
    """Whether a square of a number would leave the type's range, above or below."""
    return x.is_floating_point() and bool((extreme(x) & x.isfinite()).any())


def leaves_range(x):
    """Whether products of the numbers that are not 0 may leave the type's range."""
    size = x.detach().double().abs().flatten()
    return float(size[size > 0].log2().abs().sum()) > torch.tensor(torch.finfo(x.dtype).max).double().log2()


def vanishing(x):
    """Where the square of a number would be below the type's range."""
    size = x.double().abs()
    return (size < torch.finfo(x.dtype).tiny ** 0.5) & (size > 0)


def largest_cotangent(case):
    numbers = (to_torch(g).double().abs() for g in case.cotangents if g is not None)
    return max((float(x.max()) for x in numbers if x.numel()), default=0.0)


def rounding_of_terms(case, t, leaf):
    """The rounding of the largest terms of the sums that are the gradient to `leaf`, where such sums may
    cancel; 0 for other operations. An infinity is no term, and a huge number one of its own head and column
    alone."""
    name, most = case.spec.name, torch.tensor(largest_cotangent(case), dtype=torch.float64)
    most *= judge.coarsest(case, t.outputs)
    largest = lambda x, *dims: x.abs().nan_to_num(0.0, 0.0).amax(dims, True)
    if name == "scaled_dot_product_attention":
        q, k, v = (to_torch(x).detach().double() for x in case.arguments[:3])
        rows, steepest = max(q.shape[-2], k.shape[-2]), most * largest(v, -1, -2) * v.shape[-1]
        if leaf is case.arguments[2]:
            return most * rows
        if leaf is case.arguments[3]:  # of a mask that broadcasts
            return steepest.sum() * rows
        return steepest * abs(case.arguments[5]) * rows * largest(k if leaf is case.arguments[0] else q, -2)
    if "linear_cross_entropy" in name or name in ("layer_norm", "nn.LayerNorm"):
        inputs = (to_torch(x).detach() for x in judge.leaves(case.arguments) if x.dtype >= 4)
        usual = [x[~extreme(x)].double().abs() for x in inputs]
        return 4 * most * max((float(x.max()) for x in usual if x.numel()), default=0.0)
    return torch.zeros(())


def within_terms(case, t, leaf, a, b):
    """Where two gradients differ by the rounding of their largest terms."""
    if a.shape != b.shape or not a.numel():
        return torch.zeros(a.shape, dtype=torch.bool)
    bound = rounding_of_terms(case, t, leaf).nan_to_num(0.0, 0.0)
    return ((a.double() - b.double()).abs() <= bound).expand(a.shape)


def of_gradients(case, t, parts, numbers_finite):
    """The sentence for gradients whose wrong elements are all explained. `parts`: rules.wrong_elements."""
    inputs = [to_torch(v).detach() for v in judge.leaves(case.arguments)]
    name = None
    if not numbers_finite or any(not bool(x.isfinite().all()) for x in inputs):
        name = "not finite"
    elif any(map(beyond_root, inputs)) or (
        case.spec.name.startswith(("prod", "cumprod")) and leaves_range(inputs[0])
    ):
        name = "range"
    if name is None or any(x is None for _, x, _, _, _ in parts):
        return None
    known = Neighbours(case, t.outputs)
    explained = all(
        bool(known.explain("grads", i, a, b)[wrong].all()) for i, (_, _, a, b, wrong) in enumerate(parts)
    )
    return name if explained else None


def of_outputs(case, t, w):
    """The same for outputs, from inputs whose squares leave the type's range."""
    if not any(map(beyond_root, map(to_torch, judge.leaves(case.arguments)))):
        return None
    known = Neighbours(case, t.outputs)
    for i, (a, part) in enumerate(zip(t.outputs, w.outputs)):
        b = judge.tensor_of(part) if part else None
        if b is None or not a.is_floating_point():
            continue
        wrong = ~judge.agreement(a, b, case.spec.spread, judge.coarsest(case, [a]), None, case.spec.floor)
        if not bool(known.explain("outputs", i, a, b)[wrong].all()):
            return None
    return "range"


def of_steps(case, t, w):
    """Whether weft's parameters differ from PyTorch's by a rounding of those before an optimizer's steps."""
    near = True
    for before, a, part in zip(case.arguments[-2], t.outputs, w.outputs):
        size = a.double().abs() + to_torch(before).double().abs()
        apart = (a.double() - judge.tensor_of(part).double()).abs()
        near = near and bool((apart <= judge.coarsest(case, [a]) * size).all())
    return near
