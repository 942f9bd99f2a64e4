"""PyTorch's answer to a case, and whether weft's is the same: exactly for integers, bools and moves, within a
few roundings otherwise."""

import dataclasses

import torch

from .draw import INDEX, TORCH, numel, of_torch, to_torch
from .frames import BACKWARD_ERROR, CALL_ERROR, MALFORMED, T

# Relative error allowed per dtype, about 16 units in the last place: functions of a real number differ
# between libraries.
RELATIVE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 4e-6, torch.float64: 2e-13}


@dataclasses.dataclass
class Result:
    """Detached outputs and gradients, or the error's text. `stage` says where it was thrown: "call" or
    "backward"."""

    outputs: list = dataclasses.field(default_factory=list)
    grads: list = dataclasses.field(default_factory=list)
    needs: list = dataclasses.field(default_factory=list)  # per output: requires grad
    shares: list = dataclasses.field(default_factory=list)  # per output: shares the first tensor's storage
    error: str = None
    stage: str = None
    cotangents: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Case:
    spec: object
    number: int
    arguments: list
    cotangents: list = None  # None: drawn once PyTorch's outputs are known
    seed: int = 0


def leaves(arguments):
    """The tensor arguments in their order, lists opened."""
    for value in arguments:
        yield from (v for v in (value if isinstance(value, list) else [value]) if isinstance(v, T))


def converted(arguments, change=None):
    """PyTorch's form of the arguments, and the leaves that require grad. `change`: (position, tensor) ->
    (leaf, the tensor to use)."""
    wanted = []

    def one(position, value):
        if not isinstance(value, T):
            return value
        leaf = x = to_torch(value)
        if change:
            leaf, x = change(position, x)
        if value.grad:
            wanted.append(leaf)
        return x

    return [
        [one(i, v) for v in value] if isinstance(value, list) else one(i, value)
        for i, value in enumerate(arguments)
    ], wanted


def upcast(_, x):
    """The same numbers as float64, with grad where it was asked for."""
    x = x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
    return x, x


def run(function, arguments, cotangents=None, generator=None, change=None):
    """Calls PyTorch. With `generator`, cotangents are drawn for the outputs that require grad."""
    result = Result()
    try:
        given, wanted = converted(arguments, change)
        outputs = function(*given)
    except Exception as e:  # any error of PyTorch counts as its refusal
        return Result(error=f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}", stage="call")
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    outputs = [
        (
            o
            if o is None or isinstance(o, torch.Tensor)
            else torch.tensor(o, dtype=torch.bool if isinstance(o, bool) else torch.float64)
        )
        for o in outputs
    ]
    negative = next((o for o in outputs if o is not None and any(d < 0 for d in o.shape)), None)
    if negative is not None:  # a tensor without dims expands to -1 beside a 0
        return Result(error=f"RuntimeError: a tensor of the sizes {list(negative.shape)}", stage="call")
    result.needs = [o is not None and o.requires_grad for o in outputs]
    first = next(
        (x for v in given for x in (v if isinstance(v, list) else [v]) if isinstance(x, torch.Tensor)), None
    )
    place = None if first is None else first.untyped_storage().data_ptr()
    result.shares = [
        o is not None and first is not None and o.numel() > 0 and o.untyped_storage().data_ptr() == place
        for o in outputs
    ]
    result.outputs = [None if o is None else o.detach() for o in outputs]
    if generator is not None:
        cotangents = [
            of_torch(torch.randn(o.shape, generator=generator).to(o.dtype)) if need else None
            for o, need in zip(outputs, result.needs)
        ]
    result.cotangents = cotangents or []
    roots = [
        (o, to_torch(g).to(o.dtype))
        for o, g in zip(outputs, result.cotangents)
        if g is not None and o is not None and o.requires_grad
    ]
    if roots and wanted:
        try:
            result.grads = torch.autograd.grad(
                [o for o, _ in roots], wanted, [g for _, g in roots], allow_unused=True
            )
        except Exception as e:
            return Result(
                error=f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}",
                stage="backward",
                outputs=result.outputs,
                needs=result.needs,
                shares=result.shares,
                cotangents=result.cotangents,
            )
    result.grads = [
        torch.zeros_like(x) if g is None else g.detach()
        for x, g in zip(wanted, result.grads or [None] * len(wanted))
    ]
    return result


def tensor_of(part):
    flags, dtype, sizes, data = part
    if not data:
        return torch.empty(sizes, dtype=TORCH[dtype])
    return torch.frombuffer(bytearray(data), dtype=TORCH[dtype]).view(sizes)


def same_numbers(a, b):
    """Bit for bit, but for NaNs and the sign of zero."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    return bool(torch.all((a == b) | (a.isnan() & b.isnan())))


def same_signs_of_zero(a, b):
    zero = (a == 0) & (b == 0)
    return bool(torch.all(a.signbit()[zero] == b.signbit()[zero]))


def agreement(t, w, spread, relative, truth=None, floor=0.0):
    """Per element whether the numbers agree. `spread`: rounding errors count against the largest number of
    the tensor, not against each. `truth`: PyTorch's float64 answer, which excuses weft where it is about
    as near as PyTorch. Below the smallest normal number all agree."""
    limit, tiny = torch.finfo(t.dtype).max, torch.finfo(t.dtype).tiny
    a, b = t.double(), w.double()
    finite = a.isfinite() & b.isfinite()
    scale = max(float(a[finite].abs().max()) if finite.any() else 0.0, floor) if spread else 0.0
    good = torch.where(
        finite, (a - b).abs() <= relative * (a.abs() + scale) + tiny, (a == b) | (a.isnan() & b.isnan())
    )
    # At the border of the type one side may round to infinity.
    good |= (a.isinf() & (b.abs() > 0.98 * limit) | b.isinf() & (a.abs() > 0.98 * limit)) & (
        a.sign() == b.sign()
    )
    if truth is None or truth.shape != a.shape or bool(good.all()):
        return good
    truth = truth.double()
    overflow = b.isinf() & (truth.abs() > 0.98 * limit) & (truth.sign() == b.sign())
    allowed = relative * (truth.abs() + scale) + 4 * (a - truth).abs().nan_to_num(0.0, 0.0)
    nearer = truth.isfinite() & ((b - truth).abs() <= allowed)
    return good | nearer | overflow | (truth.isnan() & b.isnan()) | (truth == b)


def difference(case, t, w, truth=None):
    """None, or the kind of difference and a text. `t`: PyTorch's Result; `w`: an Answer, or the text of the
    program's end; `truth()`: PyTorch's Result of the same case in float64."""
    if isinstance(w, str):
        return "crash", w
    if w.status == MALFORMED:
        return "protocol", w.error[1]
    if w.status in (CALL_ERROR, BACKWARD_ERROR) and w.error[0] not in ERRORS:
        return "foreign error", f"{w.error[0]}: {w.error[1]}"
    stage = {CALL_ERROR: "call", BACKWARD_ERROR: "backward"}.get(w.status)
    if (t.stage == "call") != (stage == "call"):
        return (
            ("only PyTorch refuses", t.error)
            if t.stage == "call"
            else ("only weft refuses", f"{w.error[0]}: {w.error[1]}")
        )
    if t.stage == "call":
        return None
    if len(t.outputs) != len(w.outputs):
        return "number of outputs", f"{len(t.outputs)} and {len(w.outputs)}"
    exact, spread, lazy = case.spec.exact, case.spec.spread, Lazy(truth)
    for i, (a, part) in enumerate(zip(t.outputs, w.outputs)):
        if (a is None) != (part is None):
            return "defined", f"output {i}"
        if a is None:
            continue
        told = tensors_differ(
            f"output {i}",
            a,
            part,
            exact,
            spread,
            coarsest(case, [a]),
            lambda: entry(lazy.get().outputs, i),
            case.spec.floor,
        )
        if told:
            return told
        if case.spec.zeros and a.is_floating_point() and not same_signs_of_zero(a, tensor_of(part)):
            return "sign of zero", f"output {i}: PyTorch {show(a)}, weft {show(tensor_of(part))}"
        if bool(part[0] & 1) != t.needs[i] and a.is_floating_point():
            return "requires grad", f"output {i}: PyTorch {t.needs[i]}, weft {bool(part[0] & 1)}"
        if case.spec.view and a.numel() and bool(part[0] & 2) != t.shares[i]:
            return "shared storage", f"output {i}: PyTorch {t.shares[i]}, weft {bool(part[0] & 2)}"
    if t.stage != stage:
        return (
            ("only PyTorch refuses backward", t.error)
            if t.stage
            else ("only weft refuses backward", f"{w.error[0]}: {w.error[1]}")
        )
    for i, (a, part) in enumerate(zip(t.grads, w.grads)):
        if part is None:
            if not bool((a == 0).all()):
                return "gradient", f"gradient {i}: PyTorch {show(a)}, weft undefined"
            continue
        told = tensors_differ(
            f"gradient {i}",
            a,
            part,
            False,
            True,
            coarsest(case, [a, *t.outputs]),
            lambda: entry(lazy.get().grads, i),
            1.0,
        )
        if told:
            return ("gradient" if told[0] == "values" else "gradient " + told[0]), told[1]
    return None


ERRORS = {
    "ShapeError",
    "DTypeError",
    "DeviceError",
    "IndexError",
    "ValueError",
    "AutogradError",
    "OutOfMemoryError",
}


def coarsest(case, results):
    """The relative error allowed for the floating dtype of fewest digits among the arguments and the given
    results."""
    dtypes = {TORCH[v.dtype] for v in leaves(case.arguments)} | {x.dtype for x in results if x is not None}
    return case.spec.rough * max(
        (RELATIVE[dtype] for dtype in dtypes if dtype in RELATIVE), default=RELATIVE[torch.float64]
    )


class Lazy:
    def __init__(self, make):
        self.make, self.value = make, None

    def get(self):
        if self.value is None:
            self.value = self.make()
        return self.value


def entry(list_, i):
    return list_[i] if i < len(list_) else None


def tensors_differ(name, a, part, exact, spread, relative, truth, floor=0.0):
    if INDEX.get(a.dtype) != part[1]:
        return "dtype", f"{name}: PyTorch {str(a.dtype)[6:]}, weft {str(TORCH[part[1]])[6:]}"
    if tuple(a.shape) != tuple(part[2]):
        return "sizes", f"{name}: PyTorch {list(a.shape)}, weft {list(part[2])}"
    b = tensor_of(part)
    good = same_numbers(a, b)
    if not good and not exact and a.is_floating_point():
        good = bool(agreement(a, b, spread, relative, None, floor).all())
        if not good and relative > 1e-9:
            reference = truth()
            good = reference is not None and bool(agreement(a, b, spread, relative, reference, floor).all())
    return None if good else ("values", f"{name}: PyTorch {show(a)}, weft {show(b)}")


def show(x):
    """The numbers, or the first ones."""
    flat = x.flatten()
    text = ", ".join(f"{v:.9g}" if isinstance(v, float) else str(v) for v in flat[:12].tolist())
    return f"[{text}{', ...' if len(flat) > 12 else ''}]"
