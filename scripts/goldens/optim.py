"""Optimizer trajectories over 20 steps, gradient clipping, learning-rate schedules, and the comparison table
of three steps.

QHM and QHAdam do not exist in PyTorch: the two loops below are written from the formulas of the papers in
tensor operations.
"""
import math

import torch
from torch.optim import lr_scheduler as lrs

from .store import GoldenFile

COUNT, ABSENT = 20, (5, 11)


class Loop(torch.optim.Optimizer):
    """The part that QHM and QHAdam share: weight decay by type, absent gradients skipped, the stored gradient
    never changed."""

    def __init__(self, params, **options):
        super().__init__(params, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            decay, kind = group.get("weight_decay", 0.0), group.get("weight_decay_type", "grad")
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad
                if decay and kind == "direct":
                    p.mul_(1 - group["lr"] * decay)
                elif decay:
                    g = g + decay * p
                self.move(p, g, self.state[p], group)


class QHM(Loop):
    """buf = b*buf + (1-b)*g from zero; p -= lr*((1-nu)*g + nu*buf)."""

    def move(self, p, g, state, group):
        b, nu = group["momentum"], group["nu"]
        buf = state.get("momentum_buffer", torch.zeros_like(p))
        state["momentum_buffer"] = b * buf + (1 - b) * g
        p.sub_(group["lr"] * ((1 - nu) * g + nu * state["momentum_buffer"]))


class QHAdam(Loop):
    """w_i = 1 + b_i*w_i and a_i = 1 - 1/w_i replace the bias correction of Adam."""

    def move(self, p, g, state, group):
        nu1, nu2 = group["nus"]
        averages = []
        for i, (name, value) in enumerate((("exp_avg", g), ("exp_avg_sq", g * g))):
            weight = 1 + group["betas"][i] * state.get(f"beta{i + 1}_weight", 0.0)
            a = 1 - 1 / weight
            state[f"beta{i + 1}_weight"] = weight
            state[name] = a * state.get(name, torch.zeros_like(p)) + (1 - a) * value
            averages.append(state[name])
        down = ((1 - nu2) * g * g + nu2 * averages[1]).sqrt() + group["eps"]
        p.sub_(group["lr"] * ((1 - nu1) * g + nu1 * averages[0]) / down)


ADAM = {"lr": 0.02, "betas": (0.9, 0.999), "eps": 1e-8}
QHADAM = {"lr": 0.02, "betas": (0.995, 0.999), "nus": (0.7, 1.0), "eps": 1e-8}
QHM_OPTIONS = {"lr": 0.1, "momentum": 0.9, "nu": 0.7}
CASES = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "sgd_momentum_dampening": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    "sgd_nesterov_decay": (torch.optim.SGD,
                           {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "sgd_maximize": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "maximize": True}),
    "adam": (torch.optim.Adam, ADAM),
    "adam_decay": (torch.optim.Adam, ADAM | {"weight_decay": 0.01}),
    "adam_amsgrad": (torch.optim.Adam, ADAM | {"amsgrad": True}),
    "adam_maximize": (torch.optim.Adam, ADAM | {"weight_decay": 0.01, "maximize": True}),
    "adamw": (torch.optim.AdamW, ADAM | {"weight_decay": 0.01}),
    "adamw_amsgrad": (torch.optim.AdamW, ADAM | {"weight_decay": 0.01, "amsgrad": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.99, "eps": 1e-8}),
    "rmsprop_centered_momentum": (torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.99, "eps": 1e-8,
                                                        "centered": True, "momentum": 0.9}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-10}),
    "adagrad_lr_decay": (torch.optim.Adagrad,
                         {"lr": 0.1, "eps": 1e-10, "lr_decay": 0.1, "weight_decay": 0.01}),
    "qhm": (QHM, QHM_OPTIONS),
    "qhm_decay_grad": (QHM, QHM_OPTIONS | {"weight_decay": 0.05, "weight_decay_type": "grad"}),
    "qhm_decay_direct": (QHM, QHM_OPTIONS | {"weight_decay": 0.05, "weight_decay_type": "direct"}),
    "qhadam": (QHAdam, QHADAM),
    "qhadam_decay_grad": (QHAdam, QHADAM | {"nus": (0.8, 0.7), "weight_decay": 0.05,
                                            "weight_decay_type": "grad"}),
    "qhadam_decay_direct": (QHAdam, QHADAM | {"nus": (0.8, 0.7), "weight_decay": 0.05,
                                              "weight_decay_type": "direct"}),
}
ADAPTIVE_CASES = {
    "adadelta": (torch.optim.Adadelta, {"lr": 1.0, "rho": 0.9, "eps": 1e-6}),
    "adadelta_decay": (torch.optim.Adadelta, {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.01}),
    "adadelta_maximize": (torch.optim.Adadelta,
                          {"lr": 1.0, "rho": 0.9, "eps": 1e-3, "weight_decay": 0.01, "maximize": True}),
    "adamax": (torch.optim.Adamax, ADAM),
    "adamax_decay": (torch.optim.Adamax, ADAM | {"betas": (0.8, 0.9), "weight_decay": 0.01}),
    "adamax_maximize": (torch.optim.Adamax, ADAM | {"weight_decay": 0.01, "maximize": True}),
    "rprop": (torch.optim.Rprop, {"lr": 0.01, "etas": (0.5, 1.2), "step_sizes": (1e-6, 50)}),
    "rprop_bounds": (torch.optim.Rprop, {"lr": 0.01, "etas": (0.3, 1.5), "step_sizes": (0.008, 0.012)}),
    "rprop_maximize": (torch.optim.Rprop,
                       {"lr": 0.1, "etas": (0.5, 1.2), "step_sizes": (1e-6, 50), "maximize": True}),
}


def told(options):
    """key=value words; a pair is written a,b."""
    return " ".join(f"{k}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in options.items())


def trajectories(name, cases, dtype):
    name += "_f64" if dtype == torch.float64 else "_f32"
    file = GoldenFile(name, f"{COUNT} optimizer steps on a [3, 5] and b [7]; the same starts and gradients "
                            "for every case and both dtypes")
    draw = GoldenFile("optim", "").draw()
    start = {"a": draw.normal(3, 5, dtype=dtype), "b": draw.normal(7, dtype=dtype)}
    grads = {"a": draw.normal(COUNT, 3, 5, dtype=dtype), "b": draw.normal(COUNT, 7, dtype=dtype)}
    for step in ABSENT:
        grads["b"][step] = float("nan")  # loud when it is used
    for key in start:
        file.put("init." + key, start[key])
        file.put("grad." + key, grads[key])
    file.put("has_grad.a", torch.ones(COUNT, dtype=torch.bool))
    file.put("has_grad.b", torch.tensor([s not in ABSENT for s in range(COUNT)]))
    for case, (rule, options) in cases.items():
        file.note(case, f"rule={rule.__name__} {told(options)}")
        params = {key: start[key].clone().requires_grad_(True) for key in start}
        optimizer = rule(list(params.values()), **options)
        path = {key: [] for key in start}
        for step in range(COUNT):
            for key, parameter in params.items():
                absent = key == "b" and step in ABSENT
                parameter.grad = None if absent else grads[key][step].clone()
            optimizer.step()
            for key, parameter in params.items():
                path[key].append(parameter.detach().clone())
        for key, parameter in params.items():
            file.put(f"{case}.param.{key}", torch.stack(path[key]))
            for state, value in optimizer.state[parameter].items():
                if state == "step":
                    value = torch.tensor(int(value))
                elif value is None:
                    continue
                elif not torch.is_tensor(value):
                    value = torch.tensor(value, dtype=dtype)
                file.put(f"{case}.state.{key}.{state}", value)
    return file


def clipping():
    file = GoldenFile("clip", "clip_grad_norm_ over a list of gradients g0, g1, ...: total is the norm "
                              "before; clip_grad_value_ clamps")
    draw = file.draw()
    lists = {"three": [draw.normal(3, 5), draw.normal(7), draw.normal(2, 3, 2)],
             "pair": [torch.tensor([3.0]), torch.tensor([4.0])], "zeros": [torch.zeros(5)]}
    cases = [("three", 2.0, 1.5), ("three", 2.0, 100.0), ("three", 1.0, 2.0), ("three", 3.0, 2.0),
             ("three", math.inf, 0.5), ("pair", 2.0, 0.25), ("pair", 2.0, 5.0), ("zeros", 2.0, 1.0)]
    for label, p, limit in cases:
        case = f"norm_{label}_p{p:g}_max{limit:g}"
        params = [torch.zeros_like(g) for g in lists[label]]
        for i, g in enumerate(lists[label]):
            params[i].grad = g.clone()
            file.put(f"{case}.in.g{i}", g)
        total = torch.nn.utils.clip_grad_norm_(params, limit, norm_type=p)
        file.note(case, f"norm_type={p:g} max_norm={limit:g}")
        file.put(f"{case}.out.total", total)
        for i, parameter in enumerate(params):
            file.put(f"{case}.out.g{i}", parameter.grad)
    for limit in (0.5, 100.0):
        case = f"value_{limit:g}"
        params = [torch.zeros_like(g) for g in lists["three"]]
        file.note(case, f"clip_value={limit:g}")
        for i, g in enumerate(lists["three"]):
            params[i].grad = g.clone()
            file.put(f"{case}.in.g{i}", g)
        torch.nn.utils.clip_grad_value_(params, limit)
        for i, parameter in enumerate(params):
            file.put(f"{case}.out.g{i}", parameter.grad)
    return file


PLATEAU_METRIC = [10.0, 9.0, 9.5, 9.2, 9.1, 9.3, 8.0, 7.9999, 8.1, 8.2, 8.3, 8.4, 8.5, 7.0, 7.5, 7.5, 7.5,
                  7.5, 7.5, 7.5, 6.0, 6.5, 6.4]
SCHEDULES = {
    "step": (lrs.StepLR, {"step_size": 3, "gamma": 0.5}),
    "multi_step": (lrs.MultiStepLR, {"milestones": [2, 5, 5, 11], "gamma": 0.1}),
    "exponential": (lrs.ExponentialLR, {"gamma": 0.9}),
    "constant": (lrs.ConstantLR, {"factor": 0.25, "total_iters": 5}),
    "linear": (lrs.LinearLR, {"start_factor": 0.2, "end_factor": 1.0, "total_iters": 7}),
    "polynomial": (lrs.PolynomialLR, {"total_iters": 11, "power": 2.0}),
    "cosine": (lrs.CosineAnnealingLR, {"T_max": 7, "eta_min": 0.01}),
    "cosine_warm_restarts": (lrs.CosineAnnealingWarmRestarts, {"T_0": 3, "T_mult": 2, "eta_min": 0.01}),
    "one_cycle": (lrs.OneCycleLR, {"max_lr": 2.0, "total_steps": 21}),
    "one_cycle_linear_three_phase": (lrs.OneCycleLR, {"max_lr": 2.0, "total_steps": 21,
                                                      "anneal_strategy": "linear", "three_phase": True}),
    "cyclic_triangular": (lrs.CyclicLR,
                          {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 3, "step_size_down": 5}),
    "cyclic_triangular2": (lrs.CyclicLR,
                           {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 3, "mode": "triangular2"}),
    "cyclic_exp_range": (lrs.CyclicLR, {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 3,
                                        "mode": "exp_range", "gamma": 0.9}),
    "plateau_patience_2": (lrs.ReduceLROnPlateau, {"factor": 0.5, "patience": 2}),
    "plateau_word_lm": (lrs.ReduceLROnPlateau, {"factor": 0.25, "patience": 0, "threshold": 0.0}),
    "plateau_cooldown_min_lr": (lrs.ReduceLROnPlateau,
                                {"factor": 0.1, "patience": 1, "cooldown": 2, "min_lr": 0.05}),
    "plateau_abs_threshold": (lrs.ReduceLROnPlateau,
                              {"factor": 0.5, "patience": 1, "threshold": 0.75, "threshold_mode": "abs"}),
    "plateau_max": (lrs.ReduceLROnPlateau, {"mode": "max", "factor": 0.5, "patience": 1}),
}


def schedules():
    file = GoldenFile("schedules", "lr[0] is the rate at construction, lr[t] the rate after t calls of "
                                   "step(); start 1.0, momentum .9")
    computed = {
        "lambda": (lambda o: lrs.LambdaLR(o, lambda t: min(1.0, (t + 1) / 5)),
                   "rate = start * min(1, (t + 1) / 5)"),
        "multiplicative": (lambda o: lrs.MultiplicativeLR(o, lambda t: 0.9 if t < 7 else 0.5),
                           "rate *= (t < 7 ? 0.9 : 0.5) at step t"),
        "sequential": (lambda o: lrs.SequentialLR(o, [lrs.LinearLR(o, 0.2, 1.0, 5),
                                                      lrs.ExponentialLR(o, 0.9)], [5]),
                       "linear(start_factor=0.2, total_iters=5), then from t=5 exponential(0.9)"),
        "chained": (lambda o: lrs.ChainedScheduler([lrs.ConstantLR(o, 0.25, 5), lrs.ExponentialLR(o, 0.9)]),
                    "constant(factor=0.25, total_iters=5) and exponential(0.9) at once"),
    }
    table = {k: (lambda o, c=c, a=a: c(o, **a), f"{c.__name__} {told(a)}")
             for k, (c, a) in SCHEDULES.items()} | computed
    for case, (make, about) in table.items():
        file.note(case, about)
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0, momentum=0.9)
        schedule = make(optimizer)
        plateau = case.startswith("plateau")
        group = optimizer.param_groups[0]
        rates, momenta = [group["lr"]], [group["momentum"]]
        for t in range(len(PLATEAU_METRIC) if plateau else 20):
            optimizer.step()
            schedule.step(*([PLATEAU_METRIC[t]] if plateau else []))
            rates.append(group["lr"])
            momenta.append(group["momentum"])
        file.put(f"{case}.lr", torch.tensor(rates, dtype=torch.float64))
        if plateau:
            file.put(f"{case}.metric", torch.tensor(PLATEAU_METRIC, dtype=torch.float64))
        if case.startswith(("one_cycle", "cyclic")):
            file.put(f"{case}.momentum", torch.tensor(momenta, dtype=torch.float64))
    return file


TABLE = [
    ("SGD", torch.optim.SGD, {}, (0.729, -0.686)),
    ("SGD m .9", torch.optim.SGD, {"momentum": 0.9}, (0.486, 0.556)),
    ("SGD m .9 damp .5", torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}, (0.60525, 0.1225)),
    ("SGD nesterov m .9 wd .01", torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
     (0.321859673441, 0.699442803918)),
    ("QHM b .9 nu .7", QHM, {"momentum": 0.9, "nu": 0.7}, (0.875252547, -1.303962338)),
    ("QHAdam nus (.7, 1)", QHAdam, {"betas": (0.995, 0.999), "nus": (0.7, 1.0), "eps": 1e-8},
     (0.705421540554, -1.702474136873)),
    ("Adam", torch.optim.Adam, {}, (0.701586274504, -1.700623391791)),
    ("Adam amsgrad wd .01", torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.01},
     (0.701586274474, -1.700623391790)),
    ("AdamW", torch.optim.AdamW, {}, (0.698911184716, -1.694944514130)),
    ("RMSprop", torch.optim.RMSprop, {}, (0.000000000005, -0.309687380329)),
    ("RMSprop centered m .9", torch.optim.RMSprop, {"centered": True, "momentum": 0.9},
     (-1.039478989324, 1.419086625827)),
    ("Adagrad lr_decay .1", torch.optim.Adagrad, {"lr_decay": 0.1}, (0.795081444080, -1.791190911942)),
]


def print_table():
    """Three steps from (1, -2) on 0.5*(p1^2 + 3*p2^2) in float64 with lr 0.1, against the numbers of the
    specification."""
    print(f"{'three steps, lr 0.1':26s}{'here':>34s}{'specification':>34s}  difference")
    worst = 0.0
    for name, rule, options, expected in TABLE:
        p = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
        optimizer = rule([p], lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            (0.5 * (p[0] ** 2 + 3 * p[1] ** 2)).backward()
            optimizer.step()
        difference = max(abs(p[i].item() - expected[i]) for i in range(2))
        worst = max(worst, difference)
        print(f"{name:26s}{p[0].item():17.12f}{p[1].item():17.12f}{expected[0]:17.12f}{expected[1]:17.12f}"
              f"  {difference:.1e}")
    print(f"largest difference {worst:.1e}")


def files():
    for name, cases in (("optim", CASES), ("optim_adaptive", ADAPTIVE_CASES)):
        yield trajectories(name, cases, torch.float64)
        yield trajectories(name, cases, torch.float32)
    yield clipping()
    yield schedules()
