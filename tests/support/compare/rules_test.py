"""Tests of the reasons that scripts/compare takes for a difference: an overflow or a NaN explains itself, and
no wrong finite number beside it. They need PyTorch; without it this exits with 77."""

import math
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
from compare import frames, judge, layers, pointwise, reductions, rules, training, writes  # noqa: E402, F401
from compare.draw import INDEX, of_torch, raw  # noqa: E402
from compare.table import SPECS  # noqa: E402

torch.set_num_threads(1)
INF, NAN = float("inf"), float("nan")


def tensor(x, dtype=torch.float32, grad=False):
    return of_torch(torch.tensor(x, dtype=dtype), grad=grad)


def asked(name, *arguments):
    """A case and PyTorch's answer. A list of numbers is a tensor that requires grad."""
    spec = next(spec for spec in SPECS if spec.name == name)
    tensors = lambda x: isinstance(x, list) and not isinstance(x[0], frames.T)
    case = judge.Case(spec, 0, [tensor(x, grad=True) if tensors(x) else x for x in arguments])
    t = judge.run(spec.torch, case.arguments, generator=torch.Generator().manual_seed(1))
    case.cotangents = t.cotangents
    return case, t


def reason(name, inputs, output=None, grads=None):
    """The sentence that explains these numbers of weft; None in their place: PyTorch's own."""
    return reason_of(*asked(name, *inputs), output, grads)


def reason_of(case, t, output=None, grads=None):
    """The same for a case. A list has the numbers of each output."""

    def filled(x, numbers):
        return x if numbers is None else torch.as_tensor(numbers, dtype=x.dtype).expand(x.shape).contiguous()

    outputs = output if isinstance(output, list) else [output] * len(t.outputs)
    return reason_of_tensors(
        case,
        t,
        [x if x is None else filled(x, y) for x, y in zip(t.outputs, outputs)],
        [filled(x, y) for x, y in zip(t.grads, grads or [None] * len(t.grads))],
    )


def reason_of_tensors(case, t, outputs, grads=()):
    part = lambda x, need: x if x is None else (need, INDEX[x.dtype], tuple(x.shape), raw(x))
    needs = t.needs or [False] * len(outputs)
    w = frames.Answer(frames.OK, list(map(part, outputs, needs)), [part(x, 0) for x in grads])
    truth = lambda: judge.run(case.spec.torch, case.arguments, case.cotangents, change=judge.upcast)
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

    def test_huge_numbers_cancel_wherever_they_stand(self):
        for n in range(40):
            numbers = [1.0] * n + [1e30, -1e30]
            self.assertEqual(reason("dot", [numbers, [0.5] * len(numbers)], 1e24), "range")
            self.assertIsNone(reason("dot", [numbers, [0.5] * len(numbers)], 1e29))

    def test_a_wrong_sum_of_huge_numbers_is_not(self):
        self.assertIsNone(reason("dot", [[1e30, 1.0, -1e30], [1.0, 1.0, 1.0]], 1e29))
        self.assertIsNone(reason("dot", [[1e30, 1.0], [1.0, 1.0]], 2e30))
        self.assertIsNone(reason("dot", [[1e30, 1.0], [1.0, 2.0]], None, [[9.0, 9.0], None]))

    def test_an_overflow_in_another_order_is_explained(self):
        self.assertEqual(reason("dot", [[1e30, 1.0], [1.0, 2.0]], INF), "range")

    def test_an_infinite_slope_of_a_half_quotient_is_explained(self):
        case, t = asked("div.from", -60001, tensor([0.856, 1.5], torch.float16, True))
        gradient = t.grads[0]
        self.assertTrue(bool(gradient.isfinite().all()))
        factors = lambda *x: [gradient * torch.tensor(x, dtype=torch.float16)]
        self.assertEqual(reason_of(case, t, None, factors(INF, 1)), "range")
        for wrong in (factors(-INF, 1), factors(1.1, 1), factors(1, INF), factors(INF, 1.1)):
            self.assertIsNone(reason_of(case, t, None, wrong))

    def test_a_softmax_of_equal_logits_is_explained(self):
        case, t = asked("logsumexp", tensor([1e17, 1e17, 0.0], torch.float64, True), 0, False)
        self.assertEqual(reason_of(case, t, None, [t.grads[0] / 2]), "softmax")
        self.assertIsNone(reason_of(case, t, None, [t.grads[0] / 4]))
        self.assertIsNone(reason_of(case, t, None, [t.grads[0] + torch.tensor([0, 0, 0.01])]))

    def test_attention_to_equal_logits_is_explained(self):
        q, k, v = (tensor([[x]], torch.float64, True) for x in ([[0.5]], [[1.0], [2.0]], [[1.0], [3.0]]))
        mask = tensor([[[[1e17, 1e17]]]], torch.float64)
        case, t = asked("scaled_dot_product_attention", q, k, v, mask, False, 1.0)
        halves = [x * 0.5 for x in t.grads]
        self.assertEqual(reason_of(case, t, None, halves), "softmax")
        self.assertIsNone(reason_of(case, t, None, [x * 0.4 for x in t.grads]))

    def test_categories_of_equal_logits_are_explained(self):
        most, half = torch.finfo(torch.float64).max, math.log(2)
        inputs = [tensor([[most, most, 0.0]], torch.float64), True, tensor([0], torch.int64)]
        case, t = asked("nn.Categorical", *inputs)
        self.assertEqual([float(x) for x in t.outputs], [0.0, 0.0])
        self.assertEqual(reason_of(case, t, [-half, half]), "softmax")
        self.assertIsNone(reason_of(case, t, [-half, 0.5]))
        self.assertIsNone(reason_of(case, t, [-half, None]))

    def test_the_rounding_of_the_largest_terms_is_explained(self):
        q, k, v = [[[[88.0]], [[-INF]]]], [[[[0.5]], [[1.0]]]], [[[[3.0]], [[1.0]]]]
        case, t = asked("scaled_dot_product_attention", q, k, v, None, False, 0.5)
        moved = lambda by: [t.grads[0], t.grads[1] + torch.tensor([by, NAN]).view(1, 2, 1, 1), t.grads[2]]
        self.assertEqual(reason_of(case, t, None, moved(2e-5)), "largest terms")
        self.assertIsNone(reason_of(case, t, None, moved(2e-2)))

    def test_a_wrong_gradient_beside_a_huge_value_is_not(self):
        most = torch.finfo(torch.float32).max
        q, k = [[[[0.5]], [[0.5]]]], [[[[0.5], [1.0]], [[0.5], [1.0]]]]
        v = [[[[1.0], [2.0]], [[most], [0.0]]]]
        case, t = asked("scaled_dot_product_attention", q, k, v, None, False, 0.5)
        self.assertIsNone(reason_of(case, t, None, [t.grads[0], t.grads[1], t.grads[2] + 1]))

    def test_an_infinite_number_of_a_hidden_key_is_explained(self):
        inputs = [tensor(x) for x in ([[0.0]], [[0.0], [1.0]], [[2.0], [INF]])] + [None, True, 0.5]
        self.assertEqual(reason("scaled_dot_product_attention", inputs, 2.0), "hidden key")
        self.assertIsNone(reason("scaled_dot_product_attention", inputs, 3.0))
        hidden = tensor([[False, True]], torch.bool)
        inputs = [tensor(x) for x in ([[-3.0]], [[-INF], [1.0]], [[2.0], [4.0]])] + [hidden, False, 0.5]
        self.assertEqual(reason("scaled_dot_product_attention", inputs, 4.0), "hidden key")
        self.assertIsNone(reason("scaled_dot_product_attention", inputs, 0.0))

    def test_an_infinite_value_of_a_shown_key_is_not(self):
        inputs = [tensor(x) for x in ([[0.0]], [[0.0], [1.0]], [[INF], [2.0]])] + [None, True, 0.5]
        self.assertIsNone(reason("scaled_dot_product_attention", inputs, 2.0))

    def test_a_finite_number_in_the_place_of_an_overflow_is_not(self):
        self.assertIsNone(reason("prod", [[100.0] * 30], 7.0))

    def test_an_overflow_in_the_wider_type_is_explained(self):
        y, z = (tensor(x, torch.float64) for x in ([[1e308], [1.0]], [[2.0]]))
        case, t = asked("addmm", tensor([[1.0], [1.0]]), y, z, 1, 0)
        self.assertTrue(rules.lacks(t.error))
        answer = lambda *x: [torch.tensor(x, dtype=torch.float64).view(2, 1)]
        self.assertEqual(reason_of_tensors(case, t, answer(NAN, 1)), "range")
        self.assertIsNone(reason_of_tensors(case, t, answer(NAN, 1.5)))
        self.assertIsNone(reason_of_tensors(case, t, answer(3, 1)))

    def test_a_number_that_the_wider_type_alone_holds_is_explained(self):
        x, y = (tensor(x, torch.uint8) for x in ([5], [2]))
        case, t = asked("addcmul", x, y, tensor(4, torch.int32), -1.0)
        self.assertTrue(rules.narrow(t.error))
        self.assertEqual(reason_of_tensors(case, t, [torch.tensor([-3], dtype=torch.int32)]), "number")
        self.assertIsNone(reason_of_tensors(case, t, [torch.tensor([253], dtype=torch.int32)]))
        self.assertIsNone(reason_of_tensors(case, t, [torch.tensor([253], dtype=torch.uint8)]))

    def test_a_half_power_of_a_view_is_explained(self):
        case, t = asked("pow.number_.recorded", [4.0, -INF, 9.0], True, 0.5)
        self.assertTrue(bool(t.outputs[0].isnan()[1]))
        self.assertEqual(reason_of(case, t, [[4.0, INF, 3.0], [INF, 3.0]]), "half power")
        for wrong in ([2.0, INF, 3.0], [4.0, INF, 4.0], [4.0, 0.0, 3.0]):
            self.assertIsNone(reason_of(case, t, [wrong, wrong[1:]]))

    def test_an_exact_remainder_is_explained(self):
        most = torch.finfo(torch.float64).max
        exact = math.fmod(most, 0.43)
        for name, grad in (("remainder", True), ("fmod", True), ("remainder_", False)):
            inputs = [tensor([number] * 32, torch.float64, grad) for number in (most, 0.43)]
            self.assertEqual(reason(name, inputs, exact), "exact remainder")
            self.assertIsNone(reason(name, inputs, exact * 1.001))

    def test_a_step_that_cancels_a_parameter_is_explained(self):
        first, steps = 2.350780963897705, (0.5341681241989136, 0.19971652328968048, -0.9747177362442017)
        inputs = [0.5, 0.99, 0.001, 0.0, 0.0, False, False, [tensor(first)], [tensor(g) for g in steps]]
        self.assertEqual(reason("optim.RMSprop", inputs, 0.00221967697), "cancelled step")
        self.assertIsNone(reason("optim.RMSprop", inputs, 0.0023))


if __name__ == "__main__":
    unittest.main()
