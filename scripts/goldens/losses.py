"""Losses and the categorical distribution."""
import torch
from torch.distributions import Categorical
from torch.nn import functional as F

from .store import GoldenFile

ROWS, CLASSES = 11, 7


def class_losses(name, about, op, prepare, extra):
    """Each reduction under each option set. One target row in four is ignored where an ignore_index is
    given."""
    file = GoldenFile(name, about)
    options = {"plain": {}, "weight": {"weight": True}, "ignore_minus_100": {"ignore_index": -100},
               "ignore_2": {"ignore_index": 2},
               "weight_ignore": {"weight": True, "ignore_index": -100}} | extra
    for label, chosen in options.items():
        for reduction in ("mean", "sum", "none"):
            case = f"{label}_{reduction}"
            draw = file.draw(case)
            inputs = {"x": prepare(draw.normal(ROWS, CLASSES, scale=1.5))}
            target = draw.integers(0, CLASSES, ROWS)
            keywords = {k: v for k, v in chosen.items() if k != "weight"}
            if "ignore_index" in chosen:
                target[1::4] = chosen["ignore_index"]
            inputs["target"] = target
            weight = draw.uniform(0.2, 2.0, CLASSES)
            if chosen.get("weight"):
                keywords["weight"] = weight  # a constant: in.weight has no gradient
                file.put(f"{case}.in.weight", weight)
            told = " ".join(f"{k}={v}" for k, v in chosen.items() if k != "weight")
            file.run(case, f"reduction={reduction} {'class weights ' if chosen.get('weight') else ''}"
                           f"{told}".strip(),
                     lambda x, target: op(x, target, reduction=reduction, **keywords), inputs)
    return file


def cross_entropy():
    file = class_losses("cross_entropy", "cross_entropy of logits x [11, 7], target int64 [11]",
                        F.cross_entropy, lambda x: x,
                        {"smoothing": {"label_smoothing": 0.1},
                         "smoothing_ignore_2": {"label_smoothing": 0.1, "ignore_index": 2},
                         "smoothing_weight": {"label_smoothing": 0.1, "weight": True}})
    file.metadata["label_smoothing"] = (
        "with s and class weights w: nll part (1-s)*w[target]*(-logp[target]), smooth part "
        "s/K*sum_k w[k]*(-logp[k]); mean divides both by the sum of w[target]")
    huge = torch.tensor([[1000.0, 0.0, -1000.0], [-1000.0, -1001.0, -999.0]])
    file.run("huge_none", "logits of size 1000 do not overflow",
             lambda x, target: F.cross_entropy(x, target, reduction="none"),
             {"x": huge, "target": torch.tensor([0, 1])})
    return file


def nll_loss():
    return class_losses("nll_loss", "nll_loss of log-probabilities x [11, 7], target int64 [11]", F.nll_loss,
                        lambda x: torch.log_softmax(x, 1).clone(), {})


def mse_loss():
    file = GoldenFile("mse_loss", "mse_loss of x and target, both [5, 7]; both get a gradient")
    for reduction in ("mean", "sum", "none"):
        draw = file.draw(reduction)
        file.run(reduction, f"reduction={reduction}",
                 lambda x, target: F.mse_loss(x, target, reduction=reduction),
                 {"x": draw.normal(5, 7), "target": draw.normal(5, 7)})
    return file


def categorical():
    file = GoldenFile("categorical", "Categorical over the last dim: log_prob(value), entropy, and the "
                                     "normalised probs and logits")
    for label, shape in (("vector", (7,)), ("rows", (5, 7)), ("rank_3", (2, 3, 5))):
        for kind in ("logits", "probs"):
            case = f"{kind}_{label}"
            draw = file.draw(case)
            given = draw.normal(*shape, scale=2.0) if kind == "logits" else draw.uniform(0.05, 3.0, *shape)
            value = draw.integers(0, shape[-1], *shape[:-1])

            def compute(given, value):
                d = Categorical(**{kind: given})
                return {"log_prob": d.log_prob(value), "entropy": d.entropy(), "probs": d.probs,
                        "logits": d.logits}
            file.run(case, f"given by {kind} {list(shape)}" + (", not normalised" if kind == "probs" else ""),
                     compute, {kind: given, "value": value})
    return file


def files():
    yield cross_entropy()
    yield nll_loss()
    yield mse_loss()
    yield categorical()
