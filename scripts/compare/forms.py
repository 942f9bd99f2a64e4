"""Exact forms of operations whose numbers PyTorch loses: PyTorch's answer to a case in the form of weft."""

import math

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from . import judge


def remainder_of(name, x, divisor):
    """The exact rest of two numbers, with the sign of x for fmod and of the divisor for remainder."""
    if math.isnan(x) or math.isinf(x) or divisor == 0:
        return math.nan
    rest = math.fmod(x, divisor)
    return rest + divisor if name == "remainder" and rest and (rest < 0) != (divisor < 0) else rest


class ExactRemainders(TorchFunctionMode):
    """PyTorch with the C library's fmod. Its own is NaN where the quotient overflows."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "").rstrip("_")
        if name not in ("fmod", "remainder"):
            return function(*args, **(kwargs or {}))
        given = [v.detach().clone() if isinstance(v, torch.Tensor) else v for v in args[:2]]
        y = function(*args, **(kwargs or {}))
        if y.is_floating_point():
            x, divisor = (torch.as_tensor(v).to(y.dtype).expand(y.shape).flatten().tolist() for v in given)
            rests = [remainder_of(name, *pair) for pair in zip(x, divisor)]
            y.data.copy_(torch.tensor(rests, dtype=torch.float64).view(y.shape))
        return y


def logsumexp(x, dim, keep):
    top = x.detach().amax(dim, True)
    y = (x - top).exp().sum(dim, True).log() + top
    return y if keep else y.squeeze(dim)


ATTENTION = ("scaled_dot_product_attention", "nn.MultiheadAttention")


def with_softmax(case):
    """The float64 answer in terms of the softmax, where PyTorch takes exp(x - logsumexp). That is 1 for each
    of several largest numbers whose logsumexp rounds to them. None for other operations."""
    if case.spec.name in ATTENTION:
        with sdpa_kernel(SDPBackend.MATH):
            return judge.run(case.spec.torch, case.arguments, case.cotangents, change=judge.upcast)
    if case.spec.name not in ("logsumexp", "nn.Categorical"):
        return None

    def categorical(x, logits, value):
        return case.spec.torch(x.log_softmax(-1) if logits else x, logits, value)

    form = logsumexp if case.spec.name == "logsumexp" else categorical
    return judge.run(form, case.arguments, case.cotangents, change=judge.upcast)


def by_softmax(case, t, w, kind, text):
    exact = with_softmax(case) if kind == "values" and case.spec.name == "nn.Categorical" else None
    if not exact or len(exact.outputs) != len(t.outputs):
        return None
    for a, part, y in zip(t.outputs, w.outputs, exact.outputs):
        near = judge.agreement(y.to(a.dtype), judge.tensor_of(part), True, judge.coarsest(case, [a]))
        if not bool(near.all()):
            return None
    return "softmax"


def of_softmax(case, t, parts):
    """`parts` (rules.wrong_elements) with fewer wrong elements: without those of the exact softmax."""
    exact = with_softmax(case)
    for i, (v, x, a, b, wrong) in enumerate(parts):
        y = judge.entry(exact.grads, i) if exact else None
        if y is not None and y.shape == b.shape:
            finite = y.isfinite() & b.isfinite()
            relative = judge.coarsest(case, [a, *t.outputs])
            wrong = wrong & ~(finite & judge.agreement(y.to(a.dtype), b, True, relative, None, 1.0))
        yield v, x, a, b, wrong


def visible_attention(q, k, v, mask, causal, scale):
    """Attention whose rows know no key that the mask hides, and no number of such a key."""
    products = scale * (q @ k.transpose(-2, -1))
    shown = torch.ones(products.shape[-2:], dtype=torch.bool).tril() if causal else mask
    products = torch.where(shown, products, -torch.inf)
    shares = torch.where((products == -torch.inf).all(-1, True), 0.0, products.softmax(-1))
    rows = [
        shares[..., i : i + 1, :] @ torch.where(shown[..., i, :, None], v, 0.0) for i in range(q.shape[-2])
    ]
    return torch.cat(rows, -2)


def by_hidden_key(case, t, w, kind, text):
    """Rows of attention that leave a hidden key's infinite number out, where the other side's are NaN."""
    if kind != "values" or case.spec.name != "scaled_dot_product_attention":
        return None
    mask, causal = case.arguments[3:5]
    if not causal and (mask is None or mask.dtype != 0):
        return None
    visible = judge.run(visible_attention, case.arguments, change=judge.upcast).outputs[0]
    a, b = t.outputs[0], judge.tensor_of(w.outputs[0])
    relative = judge.coarsest(case, [a])
    near = lambda x, y: judge.agreement(x.to(a.dtype), y, True, relative, None, case.spec.floor)
    left_out = a.isnan() & near(visible, b) | b.isnan() & near(visible, a)
    return "hidden key" if bool((left_out | near(a, b)).all()) else None
