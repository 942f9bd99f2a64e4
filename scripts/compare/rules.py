"""Differences that docs/ops.md states. A rule is kept narrow. Most rules repeat the case in PyTorch under
weft's stated types and want weft's very numbers. The others want weft's own refusal and the arguments that it
names."""

import os
import re

import torch

from . import forms, judge, rounding
from .draw import FLOAT32, FLOAT64, INT64, TORCH, to_torch
from .frames import T
from .refusals import by_refusal, fits, meeting, numbers_of, promote

BOUNDED = ("clamp", "maximum.number", "minimum.number", "maximum.from", "minimum.from")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SENTENCES = {
    "wider": "Two tensors meet in the wider type",
    "bool": "in arithmetic and `maximum`",
    "negated alpha": "`sub` takes every `alpha` that fits; PyTorch negates it first, which may overflow.",
    "number": "A number never promotes a tensor",
    "unfit": "A number that meets a tensor, or an element that becomes a number (`item`, `to_vector`), may"
    " not fit the type.",
    "exact comparison": "A comparison takes every number. An integer tensor meets its exact value",
    "real": "Functions of real numbers (`exp`, `sqrt`, `div`, ...) take integers as float32.",
    "refused types": "`mean`, `var`, `std`, `norm`, `logsumexp`, `softmax`, `dropout` and"
    " the losses refuse integers.",
    "more types": "an operation that PyTorch lacks for a type works here by the same rules",
    "saturation": "A floating number becomes an integer by truncation, held to the type's range; "
    "NaN gives 0.",
    "empty range": "`clamp` refuses a low bound above the high one.",
    "bool in place": "Arithmetic in place refuses a bool tensor.",
    "expanded": "Writes in place refuse an expanded tensor.",
    "lost gradient": "`copy_` of a tensor that requires grad into an integer one is refused.",
    "negative pad": "`pad` and `repeat` refuse negative numbers.",
    "exact pad": "`pad` of integers takes every value of their type.",
    "mask": "`masked_scatter` does not widen x to the mask.",
    "indices": "Indices are int64 or int32 everywhere.",
    "equal sizes": "Losses of two tensors want equal sizes.",
    "layer sizes": "Sizes of layers begin at 1.",
    "einsum": "`einsum` wants its result spelled out, knows no ellipsis and broadcasts no letter.",
    "negative start": "`narrow` counts from the front alone.",
    "repeated dim": "A tensor without dims takes a dim named twice.",
    "empty arange": "`arange` away from its end is empty.",
    "sign of NaN": "`sign` of NaN is NaN.",
    "count": "`norm` with p = 0 counts and has no gradient.",
    "at a bound": "At a bound `clamp`, `maximum` and `minimum` with a number pass the gradient on.",
    "not finite": "Where an input is not finite, a gradient that is NaN or infinite here "
    "may be another number there",
    "no spread": "`var` and `std` of equal numbers are 0, and so is their gradient",
    "wide norm": "It sums in float64, so that a norm is finite where PyTorch's is not.",
    "few samples": "The gradient of `var` and `std` of too few numbers",
    "plateau": "`ReduceOnPlateau` takes its relative threshold of the metric's magnitude",
    "empty norm": "`clip_grad_norm` takes empty gradients for 0, and scales nothing by a norm that is NaN.",
    "condition": "The condition of `where` is bool.",
    "cat": "`cat` wants equal ranks, of empty tensors too.",
    "bool product": "bool is refused by matrix products.",
    "whole numbers": "`floor_divide` and `unique` have no gradient.",
    "own share": "Without `include_self` the gradient of `scatter_reduce` goes to src alone.",
    "bincount": "`bincount` answers in the type of its weights, in float64 for integer ones",
    "src sizes": "`scatter_add` and `scatter_reduce` want src of the index's sizes.",
    "order of NaNs": "NaNs each, in its own order, is a value of `unique`.",
    "second Ellipsis": "`index` refuses a second Ellipsis.",
    "empty view": "`as_strided` holds the offset of an empty view to the memory too.",
    "empty median": "`median` of nothing is refused.",
    "zero divisor": "`fmod`, `remainder` and `floor_divide` of integers refuse a divisor of 0.",
    "sum_to": "`sum_to` of integers is always int64.",
    "half": "The half types are storage: arithmetic runs in float32 and rounds once per operation",
    "weight": "`linear` wants a weight of 2 dims.",
    "values' type": "`index_put` wants values of x's type.",
    "wider bits": "`&=`, `|=` and `^=` refuse a wider integer.",
    "negative weights": "`Categorical` refuses each negative weight. PyTorch refuses those whose sum has"
    " the other sign.",
    "bool number": "bool takes every number, as `!= 0`",
    "allclose": "`allclose` compares in float64, PyTorch in the type of its tensors.",
    "largest terms": "The gradients of `layer_norm`, `linear_cross_entropy` and"
    " `scaled_dot_product_attention` are sums that may cancel."
    " Their rounding is that of the largest terms.",
    "half power": "`pow` by 0.5 or -0.5 follows the C library at -0 and -infinity. PyTorch takes roots.",
    "one direction": "`normalize` over one number has a gradient of 0 but for a rounding.",
    "index": "An index out of range is refused, in a dim of size 1, in an empty tensor and beside an"
    " empty index too",
    "large logit": "`binary_cross_entropy_with_logits` keeps its digits at large negative logits",
    "empty index": "`gather` and the scatters hold an empty index to the sizes of any other.",
    "no dims": "Dim 0 and -1 of a tensor without dims mean the number itself.",
    "empty roll": "`roll` wants a dim in range, of an empty tensor too.",
    "new dim": "`expand` refuses -1 for a dim that x lacks.",
    "one number": "`topk` of a tensor without dims takes k = 1 alone",
    "range": "Beyond the root of a type's range, and in products that leave it, the order of operations"
    " decides which numbers overflow or vanish.",
    "exact remainder": "`fmod` and `remainder` hold at every quotient. PyTorch's are NaN where it overflows.",
    "softmax": "The gradients of `logsumexp` and attention, and the numbers of `Categorical`, are those of"
    " the softmax.",
    "hidden key": "`scaled_dot_product_attention` may leave out the infinite numbers of a key that a mask"
    " hides.",
    "cancelled step": "A step of an optimizer that cancels most of a parameter has the rounding of the"
    " parameter before it.",
    "layouts of PyTorch": "PyTorch refuses some layouts of memory",
}


def missing_sentences():
    """The sentences that the page has no more."""
    with open(os.path.join(ROOT, "docs", "ops.md"), encoding="utf-8") as file:
        text = " ".join(file.read().split())
    return [
        f"docs/ops.md does not say: {sentence}" for sentence in SENTENCES.values() if sentence not in text
    ]


NUMBERED = (
    "arith",
    "real",
    "into",
    "compare",
    "meet",
)  # operations whose numbers are numbers, not dims or flags


def documented(case, t, w):
    """PyTorch's answer in the types that docs/ops.md names, the same from float64, and the sentence that says
    so."""
    refused = t.stage == "call"
    types, found = case.spec.types or ("meet" if refused else ""), meeting(case)
    if not types or not found:
        return None, None, None
    common = promote([dtype for _, dtype in found])
    name = "wider"
    if types in ("arith", "into") and common == 0:
        common, name = INT64, "bool"
    if types == "real" and common < 4:
        common, name = FLOAT32, "real"
    arguments, positions = list(case.arguments), {i for i, _ in found}
    for i, value in enumerate(arguments):
        if type(value) in (int, float, bool) and case.spec.types in NUMBERED:
            if common < 4 and fits(value, common) and type(value) is not int:
                arguments[i], name = int(value), "number"
            elif common >= 4 and type(value) is bool and case.spec.rebuild is None:
                arguments[i] = int(value)

    def run(dtype, function):
        def change(i, x):
            return x, x.to(TORCH[dtype]) if i in positions else x

        def write(x, *more):
            y = x.to(TORCH[dtype]).clone()
            case.spec.method(y, *more)
            x.copy_(y)

        if types == "into":
            leave = lambda i, x: (x, x) if i == 0 else change(i, x)
            return judge.run(case.spec.rebuild(write), arguments, case.cotangents, change=leave)
        out = judge.run(function, arguments, case.cotangents, change=change)
        if dtype != common:  # where weft answers in the common type
            answered = [part and part[1] for part in w.outputs]
            out.outputs = [
                o if o is None or d != common else o.to(TORCH[d]) for o, d in zip(out.outputs, answered)
            ]
        return out

    function = case.spec.torch
    t = run(common, function)
    for dtype in (FLOAT32,) if common in (4, 5) else (INT64, FLOAT64):
        if t.stage == "call" and lacks(t.error):
            t, name = run(dtype, function), "more types"
    return t, lambda: run(FLOAT64, function), name


LACKS = re.compile(
    r"not implemented for|not supported|does not support|Integer division with addcdiv|"
    r"must have the same dtype|expected dtype|same dtype|"
    r"expected scalar type|result type \w+ can't be cast|to have the same dtype"
)


def lacks(error):
    return bool(LACKS.search(error or ""))


def narrow(error):
    """Whether PyTorch's type, the first tensor's, does not hold a number that the wider one may hold."""
    return "value cannot be converted to type" in (error or "")


def by_types(case, t, w, kind, text):
    if isinstance(w, str) or t.stage == "call" and not (lacks(t.error) or narrow(t.error)):
        return None
    model, truth, name = documented(case, t, w)
    if model is None:
        return None
    if t.stage == "call" and name == "wider" and lacks(t.error):
        name = "more types"
    model.needs = [bool(part and part[0] & 1) for part in w.outputs]
    model.shares = [bool(part and part[0] & 2) for part in w.outputs]
    if not any(model.needs) and model.stage == "backward":
        model.stage = None  # weft has no gradient there
    told = judge.difference(case, model, w, truth)
    return (by_gradient(case, model, w, *told) or by_range(case, model, w, *told)) if told else name


def by_comparison(case, t, w, kind, text):
    """The exact comparison of every element with the number."""
    if (
        case.spec.types != "compare"
        or not case.spec.name.endswith(".number")
        or isinstance(w, str)
        or w.error
    ):
        return None
    x, s = case.arguments
    test = getattr(int if isinstance(s, int) else float, f"__{case.spec.name[:2]}__")
    import operator

    test = getattr(operator, case.spec.name[:2])
    right = torch.tensor([test(v, s) for v in to_torch(x).flatten().tolist()], dtype=torch.bool).view(x.sizes)
    return "exact comparison" if torch.equal(right, judge.tensor_of(w.outputs[0])) else None


def wrong_elements(case, t, w):
    """(leaf, input, PyTorch's gradient, weft's, where they differ) of each gradient."""
    given = [v for v in judge.leaves(case.arguments) if v.grad]
    truth = judge.run(case.spec.torch, case.arguments, case.cotangents, change=judge.upcast).grads
    for i, (v, a, part) in enumerate(zip(given, t.grads, w.grads)):
        b = torch.zeros_like(a) if part is None else judge.tensor_of(part)
        if a.shape != b.shape:
            yield v, None, a, b, torch.ones_like(a, dtype=torch.bool)
            continue
        relative = judge.coarsest(case, [a, *t.outputs])
        wrong = ~judge.agreement(a, b, True, relative,
                                 judge.entry(truth, i) if relative > 1e-9 else None, 1.0)
        yield v, to_torch(T(v.dtype, v.sizes, v.strides, v.offset, v.data)), a, b, wrong


def by_gradient(case, t, w, kind, text):
    if kind != "gradient":
        return None
    parts = [p for p in wrong_elements(case, t, w) if bool(p[4].any())]
    if not parts:
        return None
    if over_one_number(case) and all(bool((b[wrong] == 0).all()) for _, _, _, b, wrong in parts):
        return "no spread"
    if case.spec.name == "normalize" and over_one_number(case) and all(
        bool((b.abs() <= rounding_of(case, t, x))[wrong].all()) for _, x, _, b, wrong in parts
    ):
        return "one direction"
    within = lambda v, a, b: rounding.within_terms(case, t, v, a, b)
    if all(bool(within(v, a, b)[wrong].all()) for v, _, a, b, wrong in parts):
        return "largest terms"
    if case.spec.name.startswith(("var", "std")):
        dims = case.arguments[1] if case.spec.name.endswith(".dims") else ()
        x = to_torch(case.arguments[0]).detach()
        dims = tuple(dims) or tuple(range(x.dim()))
        even = (x.amax(dims, True) == x.amin(dims, True)).expand(x.shape)
        if all(bool(even[wrong].all()) for _, _, _, _, wrong in parts):
            return "no spread"
    if case.spec.name.split("_.")[0] in BOUNDED:
        bounds = [float(v) for v in numbers_of(case)]
        if all(
            bool(
                (sum((x.double() == torch.tensor(s, dtype=x.dtype).double()) for s in bounds) > 0)[
                    wrong
                ].all()
            )
            for _, x, _, _, wrong in parts
        ):
            return "at a bound"
    wide = promote([v.dtype for v in judge.leaves(case.arguments)])
    met = [to_torch(v).detach().to(TORCH[wide]) for v in judge.leaves(case.arguments) if wide >= 4]
    finite = all(bool(x.isfinite().all()) for x in met)  # an integer may leave a half type's range
    numbers = all(abs(v) < float("inf") for v in numbers_of(case))
    if case.spec.name == "div.from" and all(bool(steep(case, *p[1:4])[p[4]].all()) for p in parts):
        return "range"
    parts = list(forms.of_softmax(case, t, wrong_elements(case, t, w)))
    if not any(bool(wrong.any()) for _, _, _, _, wrong in parts):
        return "softmax"
    parts = [(v, x, a, b, wrong & ~within(v, a, b)) for v, x, a, b, wrong in parts]
    return rounding.of_gradients(case, t, parts, finite and numbers)


def steep(case, x, a, b):
    """Where the slope of a number's quotient leaves the type's range, before it meets a small gradient."""
    return (case.arguments[0] / x.detach().square()).isinf() & b.isinf() & (a.sign() == b.sign())


def rounding_of(case, t, x):
    """The error that g / |x| may keep of a difference that is 0."""
    size = x.double().abs().clamp(min=case.arguments[3])
    return 4 * judge.coarsest(case, t.outputs) * rounding.largest_cotangent(case) / size


def over_one_number(case):
    name, x = case.spec.name, case.arguments[0]
    if name == "normalize":
        return not x.sizes or x.sizes[case.arguments[2]] == 1
    if name == "layer_norm":
        return judge.numel(case.arguments[1]) == 1
    return name == "nn.LayerNorm" and case.arguments[1] == 1


def has_rest(case):
    return case.spec.name.startswith(("fmod", "remainder"))


def by_remainder(case, t, w, kind, text):
    """All of weft's numbers, where PyTorch's quotients leave the range."""
    if kind != "values" or not has_rest(case):
        return None
    with forms.ExactRemainders():
        model = judge.run(case.spec.torch, case.arguments, case.cotangents)
        same = judge.difference(case, model, w, lambda: model) is None
        return "exact remainder" if same or by_types(case, model, w, kind, text) else None


def by_range(case, t, w, kind, text):
    return rounding.of_outputs(case, t, w) if kind == "values" and not has_rest(case) else None


HALF_QUOTIENTS = (
    "fmod.number",
    "floor_divide.number",
    "remainder.number",
    "remainder.number_",
    "remainder.from",
)


def by_value(case, t, w, kind, text):
    name, x = case.spec.name, case.arguments[0]
    if kind == "only PyTorch refuses" and name == "clip_grad_norm" and "is non-finite" in text:
        return wide_norm(case, w)
    if kind == "only PyTorch refuses" and name == "take_along" and x.sizes == () and w.outputs:
        return "no dims" if judge.same_numbers(to_torch(x).detach(), judge.tensor_of(w.outputs[0])) else None
    if kind == "requires grad" and name.startswith("norm") and case.arguments[1] == 0:
        return "count"
    if kind == "requires grad" and name.startswith(("floor_divide", "unique")):
        return "whole numbers"
    if kind == "gradient" and name == "scatter_reduce" and not case.arguments[5]:
        return "own share"
    if name == "unique" and kind == "values" and x.dtype >= 4 and bool(to_torch(x).isnan().any()):
        return "order of NaNs"
    if (
        kind == "dtype"
        and name == "sum_to"
        and t.outputs[0].dtype == TORCH[x.dtype]
        and w.outputs[0][1] == INT64
    ):
        return "sum_to"
    if kind == "dtype" and name == "bincount":
        given = case.arguments[1].dtype
        return "bincount" if w.outputs[0][1] == (given if given >= 4 else FLOAT64) else None
    if name.startswith("bitwise") and name.endswith(".number") and x.dtype == 0 and w.outputs:
        bits = case.spec.torch(to_torch(x), bool(case.arguments[1]))
        return "bool number" if torch.equal(bits, judge.tensor_of(w.outputs[0])) else None
    if name == "allclose" and kind == "values":
        a, b = (to_torch(v).detach().double() for v in case.arguments[:2])
        near = torch.allclose(a, b, *case.arguments[2:])
        return "allclose" if bool(judge.tensor_of(w.outputs[0])) == near else None
    if (
        kind not in ("values", "gradient", "number of outputs", "dtype")
        or isinstance(w, str)
        or not w.outputs
    ):
        return None
    if name == "clip_grad_norm" and t.outputs[0].isinf().all():
        return wide_norm(case, w)
    if name == "clip_grad_norm" and t.outputs[0].isnan().all():
        b = [judge.tensor_of(part) for part in w.outputs[1:]]
        kept = [to_torch(v) for v in case.arguments[0]]
        return "empty norm" if all(judge.same_numbers(x, y) for x, y in zip(kept, b)) else None
    if name == "binary_cross_entropy_with_logits" and kind in ("values", "dtype"):
        numbers, target = (to_torch(v).detach().double() for v in case.arguments[:2])
        loss = numbers * torch.where(numbers > 0, 1 - target, -target) + (-numbers.abs()).exp().log1p()
        loss = (loss, loss.mean(), loss.sum())[case.arguments[2]]
        b = judge.tensor_of(w.outputs[0])
        near = judge.agreement(loss.to(b.dtype), b, True, judge.coarsest(case, t.outputs))
        wide = TORCH[promote([v.dtype for v in case.arguments[:2]])]
        return "large logit" if b.dtype == wide and bool(near.all()) else None
    halves = any(v.dtype in (4, 5) for v in case.arguments if isinstance(v, T))
    if name.removesuffix(".recorded") in HALF_QUOTIENTS and kind == "values" and halves:
        b = judge.tensor_of(w.outputs[0])
        wide = (to_torch(v).detach().float() if isinstance(v, T) else v for v in case.arguments)
        y = case.spec.torch(*wide)
        rounded = (y[0] if isinstance(y, (list, tuple)) else y).to(b.dtype)
        return "half" if bool(judge.agreement(rounded, b, False, judge.coarsest(case, [b])).all()) else None
    if name == "sub" and kind == "values" and case.arguments[2] == -(2**63):
        a, b = (to_torch(v).detach() for v in case.arguments[:2])
        expected = (a.double() + b.double() * 2.0**63).to(t.outputs[0].dtype)
        good = judge.agreement(expected, judge.tensor_of(w.outputs[0]), True,
                               judge.coarsest(case, [expected]))
        return "negated alpha" if bool(good.all()) else None
    if name.startswith("pow.number") and kind == "values" and abs(case.arguments[-1]) == 0.5:
        b, numbers = judge.tensor_of(w.outputs[0]), to_torch(x).detach().double()
        expected = torch.pow(numbers, torch.full_like(numbers, case.arguments[-1]))
        if name.endswith(".recorded") and len(w.outputs[1][3]) < len(w.outputs[0][3]):
            expected[0] = numbers[0]  # the view that was written begins at row 1
        near = judge.agreement(expected.to(b.dtype), b, False, judge.coarsest(case, [b]))
        return "half power" if bool(near.all()) else None
    if name == "sign" and kind == "values":
        b, numbers = judge.tensor_of(w.outputs[0]), to_torch(x).detach()
        expected = torch.where(numbers.isnan(), numbers, t.outputs[0])
        return "sign of NaN" if judge.same_numbers(expected, b) else None
    if name in ("to", "copy_", "copy_.recorded") and kind == "values":
        return "saturation" if saturated(case, w) else None
    if name.startswith("optim.") and kind == "values":
        return "cancelled step" if rounding.of_steps(case, t, w) else None
    if name == "schedule.ReduceOnPlateau" and not case.arguments[6]:
        return "plateau" if bool((to_torch(case.arguments[1]) < 0).any()) else None
    if name.startswith(("var", "std")):
        c = next(v for v in case.arguments[1:] if type(v) in (int, float))
        counted = t.outputs[0].numel() and judge.numel(x.sizes) // t.outputs[0].numel()
        return "few samples" if counted <= c else None
    return None


def wide_norm(case, w):
    """Whether weft clips by the norm that float64 holds."""
    grads, most, p = case.arguments[:3]
    whole = [to_torch(g).double() for g in grads]
    total = torch.linalg.vector_norm(torch.cat([g.flatten() for g in whole]), p)
    scale = min(1.0, most / (float(total) + 1e-6))
    expected = [total] + [g * scale for g in whole]
    near = (
        judge.agreement(a.to(b.dtype), b, True, 1e-5)
        for a, b in zip(expected, map(judge.tensor_of, w.outputs))
    )
    return "wide norm" if bool(total.isfinite()) and all(bool(part.all()) for part in near) else None


def saturated(case, w):
    """Whether weft's integers are the truncated and bounded ones of a floating source."""
    source = case.arguments[0] if case.spec.name == "to" else case.arguments[-1]
    b = judge.tensor_of(w.outputs[case.spec.name == "copy_.recorded"])  # there the second one was written
    if source.dtype < 4 or b.is_floating_point() or b.dtype == torch.bool:
        return False
    info = torch.iinfo(b.dtype)
    numbers = to_torch(source).detach().broadcast_to(b.shape).flatten().tolist()
    clamp = lambda v: 0 if v != v else info.max if v >= info.max else info.min if v <= info.min else int(v)
    if case.spec.name == "copy_.recorded":
        before, after = to_torch(case.arguments[0]), judge.tensor_of(w.outputs[0])
        kept = after.numel() - b.numel()  # the first row, where only a view was written
        if not torch.equal(after.flatten()[:kept], before.flatten()[:kept]):
            return False
        if not torch.equal(after.flatten()[kept:], b.flatten()):
            return False
    return b.flatten().tolist() == [clamp(v) for v in numbers]


def explain(case, t, w, kind, text):
    """The name of the sentence that explains the difference, or None."""
    of_forms = (by_remainder, forms.by_hidden_key, forms.by_softmax)
    for rule in (by_comparison, by_types, by_refusal, by_value, *of_forms, by_gradient, by_range):
        name = rule(case, t, w, kind, text)
        if name:
            return name
    return None
