"""Losses and the layers of nn."""

import torch
import torch.nn.functional as F

from .draw import FLOAT32, FLOAT64, FLOATS
from .frames import Sizes
from .pointwise import one, one_floating
from .reductions import inner, matrix, wide
from .table import op

REDUCTIONS = ("none", "mean", "sum")


def reduction(d):
    return d.int(0, 2)


# ---- losses
def pair(d):
    x = one_floating(d)[0]
    sizes = x.sizes if d.chance(0.9) else d.partner(x.sizes)
    return [x, d.tensor(sizes, x.dtype if d.chance(0.93) else d.dtype(FLOATS))]


for name in ("mse_loss", "l1_loss"):
    op(
        name,
        lambda d: pair(d) + [reduction(d)],
        lambda x, t, r, f=getattr(F, name): f(x, t, reduction=REDUCTIONS[r]),
        spread=True,
    )
op(
    "smooth_l1_loss",
    lambda d: pair(d) + [d.floating(1, 0.5, 3), reduction(d)],
    lambda x, t, beta, r: F.smooth_l1_loss(x, t, beta=beta, reduction=REDUCTIONS[r]),
    spread=True,
)
op(
    "binary_cross_entropy_with_logits",
    lambda d: pair(d) + [reduction(d)],
    lambda x, t, r: F.binary_cross_entropy_with_logits(x, t, reduction=REDUCTIONS[r]),
    types="arith",
)


def class_options(d, classes, dtype, smoothing):
    weight = d.tensor(Sizes((classes,)), dtype, grad=False, mode="unit") if d.chance(0.3) else None
    return [
        weight,
        d.of(-100, -100, 0, 1, -1),
        d.floating(0, 0, 0.1, 0.5) if smoothing else 0.0,
        reduction(d),
    ]


def classified(smoothing):
    def draw(d):
        classes, dtype = max(inner(d), 1), d.dtype((FLOAT32, FLOAT64)) if d.chance(0.9) else d.dtype()
        rest = d.of((), (inner(d) % 9,), (d.int(0, 5), d.int(1, 3)), (2, 3, 2))
        sizes = (classes,) if not rest else (rest[0], classes, *rest[1:])
        x = d.tensor(Sizes(sizes), dtype, mode=None if d.chance(0.2) else "normal")
        target = d.index(Sizes(rest), classes)
        return [x, target, *class_options(d, classes, dtype, smoothing)]

    return draw


def with_classes(f, smoothed=False):
    return lambda x, target, weight, ignored, smoothing, r: f(
        x,
        wide(target),
        weight=weight,
        ignore_index=ignored,
        reduction=REDUCTIONS[r],
        **({"label_smoothing": smoothing} if smoothed else {})
    )


op("nll_loss", classified(False), with_classes(F.nll_loss), spread=True, floor=1, weight=2)
op("cross_entropy", classified(True), with_classes(F.cross_entropy, True), spread=True, floor=1, weight=3)


def linear_classes(d):
    n, i, c, dtype = inner(d) % 40, inner(d), max(inner(d), 1), d.dtype((FLOAT32, FLOAT64))
    x, weight = matrix(d, n, i, dtype=dtype), matrix(d, c, i, dtype=dtype)
    bias = matrix(d, c, dtype=dtype) if d.flag() else None
    return [x, weight, bias, d.index(Sizes((n,)), c), *class_options(d, c, dtype, True)]


def linear_cross_entropy(x, weight, bias, target, *options):
    return with_classes(F.cross_entropy, True)(F.linear(x, weight, bias), target, *options)


op("linear_cross_entropy", linear_classes, linear_cross_entropy, spread=True, floor=1, weight=2)


def attention_case(d):
    lead = d.of((), (d.int(1, 3),), (2, 2))
    rows, keys, width, values = d.of(1, 3, 70, inner(d) % 9), d.of(1, 5, 300), d.of(1, 8, 16), d.of(1, 4, 16)
    dtype, kind = d.dtype((FLOAT32, FLOAT64)), d.of("none", "none", "bool", "added", "causal")
    if kind == "added":
        rows = max(rows, 1)  # PyTorch's empty result needs no gradient by its mask alone
    q, k, v = (matrix(d, *lead, n, w, dtype=dtype) for n, w in ((rows, width), (keys, width), (keys, values)))
    mask = None
    if kind == "bool":
        mask = d.tensor(Sizes((rows, keys)), 0)
    if kind == "added":
        mask = matrix(d, *d.of((), lead), rows, keys, dtype=dtype)
    return [q, k, v, mask, kind == "causal", d.of(0.1, 1.0, 0.5)]


def attention(q, k, v, mask, causal, scale):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)


op("scaled_dot_product_attention", attention_case, attention, spread=True, floor=1, weight=3)


# ---- layers
def recurrent_case(d):
    kind = d.of("LSTM", "GRU", "RNN_TANH", "RNN_RELU")
    t, n, i, h = d.of(0, 1, 2, 5, 9), d.of(1, 1, 2, 4), d.of(1, 2, 5), d.of(1, 2, 3, 8, 17)
    layers, bias, batch_first, both = d.of(1, 1, 2, 3), d.chance(0.8), d.flag(), d.chance(0.3)
    dtype, ways = d.of(FLOAT32, FLOAT64), 2 if both else 1
    mode = None if d.chance(0.05) else "normal"
    x = d.tensor(Sizes((n, t, i) if batch_first else (t, n, i)), dtype, mode=mode)
    if d.chance(0.02):
        x = d.tensor(Sizes(x.sizes[1:]), dtype)
    state = lambda: d.tensor(Sizes((layers * ways, n, h)), dtype, mode=mode)
    h0 = state() if d.flag() else None
    c0 = state() if h0 and kind == "LSTM" else None
    gates = {"LSTM": 4, "GRU": 3}.get(kind, 1) * h
    values = []
    for layer in range(layers):
        for _ in range(ways):
            shapes = [(gates, i if layer == 0 else h * ways), (gates, h)] + [(gates,)] * (2 if bias else 0)
            values += [d.tensor(Sizes(s), dtype, mode="normal", plain=True) for s in shapes]
    return [kind, i, h, layers, bias, batch_first, both, [x, h0, c0], values]


MODULES = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU, "RNN_TANH": torch.nn.RNN, "RNN_RELU": torch.nn.RNN}


def recurrent(kind, i, h, layers, bias, batch_first, both, x_h_c, values):
    more = {"nonlinearity": kind[4:].lower()} if kind.startswith("RNN") else {}
    module = MODULES[kind](i, h, layers, bias=bias, batch_first=batch_first, bidirectional=both, **more)
    x, h0, c0 = x_h_c
    if x.dim() != 3:
        raise ValueError("weft takes sequences of batches only")
    names = [name for name, _ in module.named_parameters()]
    state = (h0, c0) if c0 is not None else h0
    y, out = torch.func.functional_call(module.eval(), dict(zip(names, values)), (x, state))
    return [y, *out] if kind == "LSTM" else [y, out, None]


op("nn.recurrent", recurrent_case, recurrent, spread=True, rough=50, weight=3)


def cell_case(d):
    kind, i, h = d.of("LSTM", "GRU", "RNN_TANH", "RNN_RELU"), d.of(1, 2, 5), d.of(1, 3, 8)
    batch, dtype, bias = d.of((), (1,), (3,)), d.of(FLOAT32, FLOAT64), d.flag()
    mode = None if d.chance(0.05) else "normal"
    gates = {"LSTM": 4, "GRU": 3}.get(kind, 1) * h
    state = lambda: d.tensor(Sizes((*batch, h)), dtype, mode=mode)
    h0 = state() if d.flag() else None
    c0 = state() if h0 and kind == "LSTM" else None
    shapes = [(gates, i), (gates, h)] + [(gates,)] * (2 if bias else 0)
    values = [d.tensor(Sizes(s), dtype, mode="normal", plain=True) for s in shapes]
    return [kind, i, h, bias, [d.tensor(Sizes((*batch, i)), dtype, mode=mode), h0, c0], values]


def cell(kind, i, h, bias, x_h_c, values):
    more = {"nonlinearity": kind[4:].lower()} if kind.startswith("RNN") else {}
    module = getattr(torch.nn, kind[:3] + "Cell" if kind != "LSTM" else "LSTMCell")(i, h, bias=bias, **more)
    x, h0, c0 = x_h_c
    names = [name for name, _ in module.named_parameters()]
    state = (h0, c0) if c0 is not None else h0
    out = torch.func.functional_call(module, dict(zip(names, values)), (x, state))
    return list(out) if kind == "LSTM" else [out]


op("nn.cell", cell_case, cell, spread=True, rough=20)


def one_layer(d):
    mode = d.int(0, 3)
    t, n, i, h = d.of(1, 2, 6), d.of(1, 3), d.of(1, 4), d.of(1, 3, 16)
    dtype, gates = d.of(FLOAT32, FLOAT64), (4, 3, 1, 1)[mode] * h
    make = lambda *sizes: d.tensor(Sizes(sizes), dtype, mode="normal")
    biases = [make(gates), make(gates)] if d.flag() else [None, None]
    return [
        mode,
        make(t, n, i),
        make(n, h),
        make(n, h) if mode == 0 else None,
        make(gates, i),
        make(gates, h),
        *biases,
        d.flag(),
    ]


def rnn_layer(mode, x, h0, c0, w_ih, w_hh, b_ih, b_hh, reverse):
    f = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)[mode]
    state = h0[None] if mode else (h0[None], c0[None])
    weights = [w_ih, w_hh] + ([b_ih, b_hh] if b_ih is not None else [])
    y, *out = f(x.flip(0) if reverse else x, state, weights, b_ih is not None, 1, 0.0, False, False, False)
    y = y.flip(0) if reverse else y
    return [y, out[0][0], out[1][0] if mode == 0 else None]


op("rnn_layer", one_layer, rnn_layer, spread=True, rough=20, weight=2)


def linear_layer(d):
    i, o, dtype, bias = inner(d), inner(d), d.of(FLOAT32, FLOAT64), d.flag()
    x = matrix(d, *d.shape(0, 2), i, dtype=dtype)
    values = [d.tensor(Sizes((o, i)), dtype, mode="normal")] + (
        [d.tensor(Sizes((o,)), dtype)] if bias else []
    )
    return [x, i, o, bias, values]


op("nn.Linear", linear_layer, lambda x, i, o, bias, values: F.linear(x, *values), spread=True)


def embedding_layer(d):
    count, dim = d.int(1, 9), inner(d)
    return [
        d.index(d.shape(0, 3), count),
        count,
        dim,
        d.of(-1, 0, count - 1),
        [d.tensor(Sizes((count, dim)), d.of(FLOAT32, FLOAT64))],
    ]


op(
    "nn.Embedding",
    embedding_layer,
    lambda ids, count, dim, padding, values: F.embedding(ids, values[0], None if padding < 0 else padding),
    spread=True,
)


def heads_layer(d):
    heads, width, dtype = d.of(1, 2, 4), d.of(1, 2, 8), d.of(FLOAT32, FLOAT64)
    e, rows, keys, n = heads * width, d.of(1, 4, 70), d.of(1, 5, 130), d.of(0, 1, 3)
    batch_first, bias, kind = d.flag(), d.flag(), d.of("none", "bool", "added", "causal")
    sizes = lambda length: (length, e) if n == 0 else (n, length, e) if batch_first else (length, n, e)
    q, k, v = (d.tensor(Sizes(sizes(length)), dtype, mode="normal") for length in (rows, keys, keys))
    if d.chance(0.3):
        q = k = v
    mask, padding = None, None
    if kind in ("bool", "added"):
        length = q.sizes[-2 if n == 0 or batch_first else 0]
        mask = d.tensor(Sizes((length, keys)), 0 if kind == "bool" else dtype)
    if d.chance(0.3):
        padding = d.tensor(Sizes((keys,) if n == 0 else (n, keys)), 0)
    shapes = [(3 * e, e)] + [(3 * e,)] * bias + [(e, e)] + [(e,)] * bias
    values = [d.tensor(Sizes(s), dtype, mode="fine") for s in shapes]  # far from one key alone
    return [[q, k, v], mask, padding, kind == "causal", heads, bias, batch_first, values]


def heads_of(q_k_v, mask, padding, causal, heads, bias, batch_first, values):
    q, k, v = (x if not batch_first or x.dim() == 2 else x.transpose(0, 1) for x in q_k_v)
    w, b, w_out, b_out = values if bias else (values[0], None, values[1], None)
    y = []
    for x, part, offset in zip((q, k, v), w.chunk(3), b.chunk(3) if bias else (None,) * 3):
        x = F.linear(x, part, offset)
        y.append(x.reshape(*x.shape[:-1], heads, -1).movedim(0, -2))
    if causal:
        mask = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).tril()
    if padding is not None:
        taken = ~padding if padding.dim() == 1 else ~padding[:, None, None, :]
        if mask is None or mask.dtype == torch.bool:
            mask = taken if mask is None else mask & taken
        else:
            mask = mask.masked_fill(~taken, -torch.inf)
    out = F.scaled_dot_product_attention(*y, attn_mask=mask).movedim(-2, 0)
    out = F.linear(out.reshape(q.shape), w_out, b_out)
    return out if not batch_first or out.dim() == 2 else out.transpose(0, 1)


op("nn.MultiheadAttention", heads_layer, heads_of, spread=True, rough=50)


def norm_layer(d):
    dim, dtype = max(inner(d), 1), d.of(FLOAT32, FLOAT64)
    x = matrix(d, *d.shape(0, 2), dim, dtype=dtype)
    return [x, dim, d.floating(1e-5, 0.1), [d.tensor(Sizes((dim,)), dtype) for _ in range(2)]]


op(
    "nn.LayerNorm",
    norm_layer,
    lambda x, dim, eps, values: F.layer_norm(x, (dim,), *values, eps),
    spread=True,
    rough=50,
)
op(
    "nn.Dropout",
    lambda d: one_floating(d) + [d.floating(0, 0.5, 1)],
    lambda x, p: F.dropout(x, p, False),
    exact=True,
)
for name, options in (
    ("ReLU", {"exact": True, "types": "arith"}),
    ("Tanh", {"types": "real"}),
    ("Sigmoid", {"types": "real"}),
    ("GELU", {"types": "real", "spread": True, "floor": 1}),
    ("SiLU", {"types": "real"}),
):
    op("nn." + name, one, getattr(torch.nn, name)(), **options)


def called(module):
    return lambda x, target, **options: module(**options)(x, target)


op(
    "nn.MSELoss",
    lambda d: pair(d) + [reduction(d)],
    lambda x, t, r: torch.nn.MSELoss(reduction=REDUCTIONS[r])(x, t),
    spread=True,
)
op("nn.NLLLoss", classified(False), with_classes(called(torch.nn.NLLLoss)), spread=True, floor=1)
op(
    "nn.CrossEntropyLoss",
    classified(True),
    with_classes(called(torch.nn.CrossEntropyLoss), True),
    spread=True,
    floor=1,
)


def sequential_case(d):
    i, h, o, dtype = max(inner(d), 1), d.of(1, 3, 16), d.of(1, 4), d.of(FLOAT32, FLOAT64)
    shapes = ((h, i), (h,), (o, h), (o,))
    values = [d.tensor(Sizes(s), dtype, mode="normal") for s in shapes]
    return [d.tensor(Sizes((*d.shape(0, 2), i)), dtype, mode="normal"), i, h, o, values]


def sequential(x, i, h, o, values):
    net = torch.nn.Sequential(torch.nn.Linear(i, h), torch.nn.Tanh(), torch.nn.Linear(h, o))
    return torch.func.functional_call(net, dict(zip((n for n, _ in net.named_parameters()), values)), (x,))


op("nn.Sequential", sequential_case, sequential, spread=True, rough=20)
for name in ("Softmax", "LogSoftmax"):
    op(
        "nn." + name,
        lambda d: (lambda x: [x, d.dim(len(x.sizes))])(one_floating(d)[0]),
        lambda x, dim, f=getattr(torch.nn, name): f(dim)(x),
        spread=name == "LogSoftmax",
    )


def categorical_case(d):
    k, rest, dtype, logits = d.int(1, 6), d.shape(0, 2), d.of(FLOAT32, FLOAT64), d.flag()
    usual = "normal" if logits else "unit"
    x = d.tensor(Sizes((*rest, k)), dtype, mode=d.of("small", "special", "one") if d.chance(0.2) else usual)
    sizes = d.partner(rest) if d.chance(0.9) else Sizes((*d.shape(0, 2), *rest))
    return [x, logits, d.index(sizes, k)]


def categorical(x, logits, value):
    made = torch.distributions.Categorical(
        **{"logits" if logits else "probs": x}, validate_args=x.numel() > 0
    )
    if value.is_floating_point():
        raise TypeError("classes are integers")
    return [made.log_prob(value), made.entropy()]


op("nn.Categorical", categorical_case, categorical, spread=True)
