"""Tests of the reasons that scripts/compare takes for a difference: an overflow or a NaN explains itself, and
no wrong finite number beside it. They need PyTorch; without it this exits with 77."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
try:
    import torch
except ImportError:
    print("rules_test: skipped: this Python has no torch")
    sys.exit(77)
from compare import frames, judge, pointwise, reductions, rules  # noqa: E402, F401
from compare.draw import of_torch, raw  # noqa: E402
from compare.table import SPECS  # noqa: E402

INF, NAN = float("inf"), float("nan")
FLOAT32 = 6


def reason(name, inputs, output=None, grads=None):
    """The sentence that explains these numbers of weft; None in their place: PyTorch's own."""
    spec = next(spec for spec in SPECS if spec.name == name)
    case = judge.Case(spec, 0, [of_torch(torch.tensor(x), grad=True) for x in inputs])
    t = judge.run(spec.torch, case.arguments, generator=torch.Generator().manual_seed(1))
    case.cotangents = t.cotangents

    def part(x, numbers, needs):
        y = x if numbers is None else torch.tensor(numbers).view(x.shape)
        return needs, FLOAT32, tuple(x.shape), raw(y)

    w = frames.Answer(
        frames.OK,
        [part(t.outputs[0], output, 1)],
        [part(x, numbers, 0) for x, numbers in zip(t.grads, grads or [None] * len(t.grads))],
    )
    truth = lambda: judge.run(spec.torch, case.arguments, case.cotangents, change=judge.upcast)
    told = judge.difference(case, t, w, truth)
    if told is None:
        raise AssertionError("no difference")
    return rules.explain(case, t, w, *told)


class Rules(unittest.TestCase):
    def test_a_nan_beside_an_infinity_is_explained(self):
        self.assertEqual(reason("mul", [[INF, 2.0], [0.0, 3.0]], None, [[NAN, NAN], None]), "not finite")

    def test_a_wrong_finite_gradient_beside_an_infinity_is_not(self):
        self.assertIsNone(reason("mul", [[INF, 2.0], [0.0, 3.0]], None, [[7.0, 5.0], None]))
        self.assertIsNone(reason("mul", [[INF, 2.0], [4.0, 3.0]], None, [[7.0, 5.0], None]))
        self.assertIsNone(reason("sum", [[INF, 1.0, 2.0]], None, [[7.0, 7.0, 7.0]]))

    def test_a_sum_of_huge_numbers_that_cancel_is_explained(self):
        self.assertEqual(reason("dot", [[1e30, 1.0, -1e30], [1.0, 1.0, 1.0]], 1e24), "range")

    def test_a_wrong_sum_of_huge_numbers_is_not(self):
        self.assertIsNone(reason("dot", [[1e30, 1.0, -1e30], [1.0, 1.0, 1.0]], 1e29))
        self.assertIsNone(reason("dot", [[1e30, 1.0], [1.0, 1.0]], 2e30))
        self.assertIsNone(reason("dot", [[1e30, 1.0], [1.0, 2.0]], None, [[9.0, 9.0], None]))

    def test_an_overflow_in_another_order_is_explained(self):
        self.assertEqual(reason("dot", [[1e30, 1.0], [1.0, 2.0]], INF), "range")


if __name__ == "__main__":
    unittest.main()
