"""The refusals of one side that docs/ops.md states: the text, and the arguments that it is right for."""

import re

import torch

from . import judge
from .draw import FLOAT32, INT64, TORCH, to_torch
from .frames import T, TypeNumber


def promote(dtypes):
    out = dtypes[0]
    for dtype in dtypes[1:]:
        out = FLOAT32 if {out, dtype} == {4, 5} else max(out, dtype)
    return out


def meeting(case):
    """Positions and dtypes of the tensors that meet."""
    found = []
    for i, value in enumerate(case.arguments):
        if case.spec.meets is None or i in case.spec.meets:
            found += [
                (i, v.dtype) for v in (value if isinstance(value, list) else [value]) if isinstance(v, T)
            ]
    return found


def fits(number, dtype):
    """Whether the type holds the number; bool: as it is."""
    if dtype >= 4:
        return not abs(number) < float("inf") or abs(number) <= torch.finfo(TORCH[dtype]).max
    if isinstance(number, float) and not number.is_integer():
        return False
    low, high = {0: (0, 1), 1: (0, 255), 2: (-(2**31), 2**31 - 1), 3: (-(2**63), 2**63 - 1)}[dtype]
    return low <= number <= high


def tensors(case):
    return [v for v in case.arguments if isinstance(v, T)]


def plain(case):
    return [v for v in case.arguments if not isinstance(v, (T, list))]


def numbers_of(case):
    return [v for v in case.arguments if type(v) in (int, float, bool)]


def meets_unfit(case):
    found = meeting(case)
    made = next((int(v) for v in case.arguments if isinstance(v, TypeNumber)), FLOAT32)
    common = promote([dtype for _, dtype in found]) if found else made
    common = (
        found[0][1]
        if case.spec.types == "into" or case.spec.name.startswith(("fill", "index_put"))
        else INT64 if case.spec.types == "arith" and common == 0 else common
    )
    return any(not fits(v, common) for v in numbers_of(case))


def expanded(case):
    return any(
        stride == 0 and size > 1 for size, stride in zip(case.arguments[0].sizes, case.arguments[0].strides)
    )


def some(test):
    return lambda case: any(test(v) for v in judge.leaves(case.arguments))


# (sentence, weft's refusal, the arguments it is right for)
WEFT_REFUSES = [
    ("unfit", r"DTypeError: .*number .* does not fit", meets_unfit),
    (
        "empty range",
        r"ValueError: clamp_?: low .* is above high",
        lambda c: c.arguments[-2] > c.arguments[-1],
    ),
    ("bool in place", r"DTypeError: \w+_: does not take bool in place", lambda c: c.arguments[0].dtype == 0),
    ("expanded", r"ShapeError: \w+_: cannot write into an expanded tensor", expanded),
    (
        "lost gradient",
        r"AutogradError: copy_: .* cannot carry a gradient",
        lambda c: c.arguments[0].dtype < 4,
    ),
    (
        "refused types",
        r"DTypeError: (mean|var|std|norm|logsumexp|softmax|log_softmax|dropout|layer_norm|"
        r"\w+_loss\w*|\w*cross_entropy\w*): takes floating",
        some(lambda v: v.dtype < 4),
    ),
    (
        "indices",
        r"DTypeError: .*(indices|values) must be int64 or int32",
        some(lambda v: v.dtype not in (2, 3)),
    ),
    (
        "equal sizes",
        r"ShapeError: (mse_loss|l1_loss|smooth_l1_loss): x is .* target is",
        lambda c: c.arguments[0].sizes != c.arguments[1].sizes,
    ),
    (
        "einsum",
        r"(ValueError|ShapeError): einsum: .*(no ->| is 1 and | and 1$|unexpected '\.')",
        lambda c: "." in c.arguments[0]
        or "->" not in c.arguments[0]
        or any(1 in v.sizes for v in c.arguments[1]),
    ),
    (
        "layer sizes",
        r"ValueError: \w+: (in|out|dim|count|\w*size) must be at least 1",
        lambda c: 0 in plain(c),
    ),
    ("condition", r"DTypeError: where: the condition must be bool", lambda c: c.arguments[0].dtype != 0),
    ("cat", r"ShapeError: cat: .* does not join|IndexError: cat: dim",
     lambda c: any(v.sizes == (0,) for v in c.arguments[0])),
    ("bool product", r"DTypeError: \w+: takes numbers, got (\w+ and )?bool", some(lambda v: v.dtype == 0)),
    ("weight", r"ShapeError: linear\w*: weight must have 2 dims", lambda c: len(c.arguments[1].sizes) != 2),
    ("index", r"IndexError: take_along: index .* out of range", lambda c: True),
    ("index", r"IndexError: index_add_?: index .* out of range", lambda c: 0 in c.arguments[0].sizes),
    ("index", r"IndexError: index(_put_?)?: index .* is outside dim \d+ of \[(.*, )?0[],]", lambda c: True),
    ("index", r"IndexError: index(_put_?)?: index .* is outside dim \d+",
     some(lambda v: 0 in v.sizes or (v.dtype == 0 and not to_torch(v).any()))),
    (
        "values' type",
        r"DTypeError: index_put_?: x is .*, the values are",
        lambda c: c.arguments[0].dtype != next(v for v in c.arguments[3:] if isinstance(v, T)).dtype,
    ),
    (
        "wider bits",
        r"DTypeError: bitwise_\w+_: cannot write \w+ into \w+ in place",
        lambda c: c.arguments[-1].dtype > c.arguments[0].dtype,
    ),
    (
        "negative weights",
        r"ValueError: Categorical: weight -.* is negative",
        lambda c: not c.arguments[1] and bool((to_torch(c.arguments[0]) <= 0).any()),
    ),
    ("empty index", r"ShapeError: \w+: index .* does not fit x", lambda c: 0 in tensors(c)[1].sizes),
    ("empty roll", r"IndexError: roll: dim -?\d+ is outside", lambda c: 0 in c.arguments[0].sizes),
    (
        "new dim",
        r"ShapeError: expand: .* does not expand to",
        lambda c: -1 in c.arguments[1][: len(c.arguments[1]) - len(c.arguments[0].sizes)],
    ),
    (
        "one number",
        r"ShapeError: topk: k = 0 of a single number",
        lambda c: c.arguments[0].sizes == () and c.arguments[1] == 0,
    ),
    (
        "src sizes",
        r"ShapeError: scatter_(add|reduce)_?: src is",
        lambda c: tensors(c)[1].sizes != tensors(c)[2].sizes,
    ),
    ("second Ellipsis", r"IndexError: index\w*: 2 times Ellipsis", lambda c: True),
    ("empty view", r"ShapeError: as_strided: sizes .* leave", lambda c: 0 in c.arguments[1]),
    ("empty median", r"ShapeError: median: no elements", some(lambda v: 0 in v.sizes)),
    ("zero divisor", r"ValueError: (fmod|remainder|floor_divide)_?: a divisor is 0", lambda c: True),
    ("negative start", r"IndexError: narrow: .* elements from -", lambda c: c.arguments[2] < 0),
    (
        "mask",
        r"ShapeError: masked_scatter_?: a mask .* does not broadcast to",
        lambda c: len(tensors(c)[0].sizes) < len(tensors(c)[1].sizes) or 1 in tensors(c)[0].sizes,
    ),
    (
        "negative pad",
        r"ShapeError: (pad: pads|repeat:) .* must not be negative",
        lambda c: min(c.arguments[1]) < 0,
    ),
]
# (sentence, PyTorch's refusal, the arguments it is right for)
TORCH_REFUSES = [
    ("repeated dim", r"dim .* appears multiple times", lambda c: True),
    (
        "empty arange",
        r"upper bound and lower bound inconsistent with step sign",
        lambda c: c.spec.name == "arange",
    ),
    ("empty norm", r"cannot compute the inf norm on an empty tensor", lambda c: True),
    (
        "negated alpha",
        r"value cannot be converted to type \S+ without overflow",
        lambda c: c.spec.name == "sub" and c.arguments[2] < 0,
    ),
    (
        "exact pad",
        r"value cannot be converted to type \S+ without overflow",
        lambda c: c.spec.name == "pad" and c.arguments[0].dtype < 4,
    ),
    ("number", r"argument alpha must not be a floating point number", lambda c: True),
    (
        "layouts of PyTorch",
        r"grad_input must be contiguous|returned an invalid gradient|Autograd not support dtype|"
        r"self indexing axis dim should be positive",
        lambda c: True,
    ),
    (
        "bool number",
        r"result type \w+ can't be cast to the desired output type Bool",
        lambda c: c.spec.name.startswith("bitwise") and c.arguments[0].dtype == 0,
    ),
    ("half", r"type c10::(Half|BFloat16) without overflow", some(lambda v: v.dtype in (4, 5))),
]


def by_refusal(case, t, w, kind, text):
    rows = {
        "only weft refuses": WEFT_REFUSES,
        "only weft refuses backward": WEFT_REFUSES,
        "only PyTorch refuses": TORCH_REFUSES,
        "only PyTorch refuses backward": TORCH_REFUSES,
    }.get(kind, ())
    return next((name for name, pattern, right in rows if re.search(pattern, text) and right(case)), None)
