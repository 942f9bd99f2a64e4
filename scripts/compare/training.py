"""Optimizers over several steps, schedules, clipping. QHM and QHAdam, which PyTorch lacks, are those of the
golden files."""

import torch
from torch.optim import lr_scheduler as lrs

from goldens import optim as golden

from .draw import FLOAT32, FLOAT64
from .frames import Sizes
from .table import op


def parameters(d, least_dims=0):
    """Parameters and their gradients, step after step, some absent."""
    dtype, shapes = d.of(FLOAT32, FLOAT64), [d.shape(least_dims, 3) for _ in range(d.int(1, 3))]
    params = [d.tensor(s, dtype, grad=False, plain=True, mode="normal") for s in shapes]
    grads = [
        d.tensor(s, dtype, grad=False, mode="normal") if d.chance(0.9) else None
        for _ in range(d.int(1, 5))
        for s in shapes
    ]
    return [params, grads]


def every_row(g):
    """A sparse gradient that has every row, zeros too: SparseAdam leaves the others alone."""
    return torch.sparse_coo_tensor(torch.arange(g.shape[0])[None], g.clone(), g.shape)


def stepped(make, form=torch.clone):
    def run(*arguments):
        *options, params, grads = arguments
        own = [p.clone().contiguous().requires_grad_() for p in params]
        optimizer = make(own, *options)
        for at in range(0, len(grads), len(own)):
            for p, g in zip(own, grads[at : at + len(own)]):
                p.grad = None if g is None else form(g)
            optimizer.step()
        return [p.detach() for p in own]

    return run


def optimizer(name, options, make):
    op("optim." + name, lambda d: options(d) + parameters(d), stepped(make), spread=True, weight=2)


def rate(d):
    return d.floating(0.1, 1e-3, 1.0, 0.0, -0.1 if d.chance(0.1) else 0.5)


def decay(d):
    return d.floating(0, 0, 0.1, 0.01)


def betas(d):
    return [d.floating(0.9, 0.5, 0.0, 0.99), d.floating(0.999, 0.9, 0.5)]


def plain(options):
    return {"foreach": False, **options}


def sgd(d):
    momentum = d.floating(0, 0.9, 0.5)
    nesterov = d.chance(0.3)
    return [rate(d), momentum, 0.0 if nesterov else d.floating(0, 0.1), decay(d), nesterov, d.chance(0.2)]


optimizer(
    "SGD",
    sgd,
    lambda p, lr, m, damp, wd, nest, top: torch.optim.SGD(
        p, lr, m, damp, wd, nest, maximize=top, foreach=False
    ),
)


def adam(d):
    return [rate(d), *betas(d), d.floating(1e-8, 1e-3), decay(d), d.chance(0.3), d.chance(0.2)]


for name in ("Adam", "AdamW"):
    optimizer(
        name,
        adam,
        lambda p, lr, b1, b2, eps, wd, ams, top, f=getattr(torch.optim, name): f(
            p, lr, (b1, b2), eps, wd, ams, maximize=top, foreach=False
        ),
    )
optimizer(
    "RMSprop",
    lambda d: [
        rate(d),
        d.floating(0.99, 0.5),
        d.floating(1e-8, 1e-3),
        decay(d),
        d.floating(0, 0.9),
        d.chance(0.3),
        d.chance(0.2),
    ],
    lambda p, lr, alpha, eps, wd, m, centered, top: torch.optim.RMSprop(
        p, lr, alpha, eps, wd, m, centered, maximize=top, foreach=False
    ),
)
optimizer(
    "Adagrad",
    lambda d: [rate(d), d.floating(0, 0.1), decay(d), d.floating(1e-10, 1e-3), d.chance(0.2)],
    lambda p, lr, fade, wd, eps, top: torch.optim.Adagrad(
        p, lr, fade, wd, eps=eps, maximize=top, foreach=False
    ),
)
optimizer(
    "Adadelta",
    lambda d: [rate(d), d.floating(0.9, 0.5), d.floating(1e-6, 1e-3), decay(d), d.chance(0.2)],
    lambda p, lr, rho, eps, wd, top: torch.optim.Adadelta(p, lr, rho, eps, wd, maximize=top, foreach=False),
)
optimizer(
    "Adamax",
    lambda d: [rate(d), *betas(d), d.floating(1e-8, 1e-3), decay(d), d.chance(0.2)],
    lambda p, lr, b1, b2, eps, wd, top: torch.optim.Adamax(
        p, lr, (b1, b2), eps, wd, maximize=top, foreach=False
    ),
)
optimizer(
    "Rprop",
    lambda d: [rate(d), 0.5, d.floating(1.2, 2), d.floating(1e-6, 0.01), d.floating(50, 1), d.chance(0.2)],
    lambda p, lr, minus, plus, low, high, top: torch.optim.Rprop(
        p, lr, (minus, plus), (low, high), maximize=top, foreach=False
    ),
)
op(
    "optim.SparseAdam",
    lambda d: [d.floating(0.1, 1e-3, 1.0), *betas(d), d.floating(1e-8, 1e-3), d.chance(0.2)]
    + parameters(d, least_dims=1),
    stepped(
        lambda p, lr, b1, b2, eps, top: torch.optim.SparseAdam(p, lr, (b1, b2), eps, maximize=top), every_row
    ),
    spread=True,
    weight=2,
)
optimizer(
    "QHM",
    lambda d: [d.floating(0.1, 1e-3), d.floating(0.999, 0.9, 0), d.floating(0.7, 0, 1), decay(d), d.flag()],
    lambda p, lr, m, nu, wd, direct: golden.QHM(
        p, lr=lr, momentum=m, nu=nu, weight_decay=wd, weight_decay_type="direct" if direct else "grad"
    ),
)
optimizer(
    "QHAdam",
    lambda d: [
        d.floating(0.1, 1e-3),
        *betas(d),
        d.floating(1, 0.7),
        d.floating(1, 0.5),
        d.floating(1e-8, 1e-3),
        decay(d),
    ],
    lambda p, lr, b1, b2, n1, n2, eps, wd: golden.QHAdam(
        p, lr=lr, betas=(b1, b2), nus=(n1, n2), eps=eps, weight_decay=wd
    ),
)


# ---- schedules
def rates(make):
    def run(lr, count, *options):
        sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr)
        schedule = make(sgd, *options)
        seen = [sgd.param_groups[0]["lr"]]
        for _ in range(count):
            sgd.step()
            schedule.step()
            seen.append(sgd.param_groups[0]["lr"])
        return torch.tensor(seen, dtype=torch.float64)

    return run


def schedule(name, options, make):
    op(
        "schedule." + name,
        lambda d: [d.floating(0.1, 1, 20), d.int(0, 60), *options(d)],
        rates(make),
        spread=True,
        weight=0.3,
    )


schedule(
    "StepLR",
    lambda d: [d.of(1, 3, 10), d.floating(0.1, 0.5, 1)],
    lambda o, size, gamma: lrs.StepLR(o, size, gamma),
)
schedule(
    "MultiStepLR",
    lambda d: [Sizes(sorted(d.int(0, 40) for _ in range(d.int(0, 4)))), d.floating(0.1, 0.5)],
    lambda o, steps, gamma: lrs.MultiStepLR(o, list(steps), gamma),
)
schedule("ExponentialLR", lambda d: [d.floating(0.9, 0.5, 1)], lrs.ExponentialLR)
schedule("LinearLR", lambda d: [d.floating(0.1, 0.5, 1), d.floating(1, 0.2), d.of(1, 5, 30)], lrs.LinearLR)
schedule(
    "SequentialLR",
    lambda d: [d.floating(0.1, 0.5), d.of(1, 5, 30), d.floating(0.9, 0.5)],
    lambda o, start, total, gamma: lrs.SequentialLR(
        o, [lrs.LinearLR(o, start, 1.0, total), lrs.ExponentialLR(o, gamma)], [total]
    ),
)
schedule("CosineLR", lambda d: [d.of(60, 80), 0.0], lambda o, t, low: lrs.CosineAnnealingLR(o, t))


def risen(optimizer, rise, start, decays, gamma):
    """The warm-up's formula; PyTorch's LinearLR refuses to start at 0."""
    after = lambda step: gamma**step if decays else 1.0
    return lrs.LambdaLR(
        optimizer, lambda step: start + (1 - start) * step / rise if step < rise else after(step - rise)
    )


schedule(
    "WarmupLR",
    lambda d: [d.of(1, 2, 7, 30), d.floating(0, 0.1, 1), d.flag(), d.floating(0.9, 0.5)],
    risen,
)


def plateau_case(d):
    n = d.int(1, 40)
    metrics = d.tensor(Sizes((n,)), FLOAT64, grad=False, mode=d.of("normal", "small", "unit"), plain=True)
    return [
        d.floating(0.1, 20),
        metrics,
        d.flag(),
        d.floating(0.1, 0.5),
        d.of(0, 1, 3),
        d.floating(1e-4, 0, 0.1),
        d.flag(),
        d.of(0, 2),
        d.floating(0, 0.01),
    ]


def plateau(lr, metrics, top, factor, patience, threshold, absolute, cooldown, low):
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr)
    made = lrs.ReduceLROnPlateau(
        sgd, "max" if top else "min", factor, patience, threshold, "abs" if absolute else "rel", cooldown, low
    )
    seen = []
    for metric in metrics.tolist():
        made.step(metric)
        seen.append(sgd.param_groups[0]["lr"])
    return torch.tensor(seen, dtype=torch.float64)


op("schedule.ReduceOnPlateau", plateau_case, plateau, spread=True)


# ---- clipping
def gradients(d):
    dtype = d.of(FLOAT32, FLOAT64)
    return [
        d.tensor(d.shape(0, 3), dtype, grad=False, plain=True, mode=None if d.chance(0.2) else "normal")
        for _ in range(d.int(1, 3))
    ]


def with_gradients(clip):
    def run(grads, *options):
        params = [torch.zeros_like(g).requires_grad_() for g in grads]
        for p, g in zip(params, grads):
            p.grad = g.clone()
        norm = clip(params, *options)
        return ([] if norm is None else [norm.double()]) + [p.grad for p in params]

    return run


op(
    "clip_grad_norm",
    lambda d: [gradients(d), d.floating(0.5, 3, 0, 1e3), d.floating(2, 1, float("inf"), 3), d.chance(0.2)],
    with_gradients(
        lambda p, top, norm, strict: torch.nn.utils.clip_grad_norm_(p, top, norm, strict, foreach=False)
    ),
    spread=True,
)
op(
    "clip_grad_value",
    lambda d: [gradients(d), d.floating(0.5, 3, 0)],
    with_gradients(lambda p, top: torch.nn.utils.clip_grad_value_(p, top, foreach=False)),
    exact=True,
)
