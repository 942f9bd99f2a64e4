"""Tests of compare_cases: frames with known answers, malformed ones, a case that ends the program. Needs
neither PyTorch nor numpy."""

import os
import struct
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from compare import frames  # noqa: E402
from compare.frames import Sizes, T  # noqa: E402

FLOAT32, INT64 = 6, 3
CODES = {FLOAT32: "f", INT64: "q"}
PROGRAM = sys.argv.pop(1)


def floats(numbers, sizes=None, strides=None, offset=0, grad=False):
    sizes = sizes if sizes is not None else (len(numbers),)
    return T(
        FLOAT32, sizes, strides or (1,) * len(sizes), offset, struct.pack(f"<{len(numbers)}f", *numbers), grad
    )


def numbers(part):
    flags, dtype, sizes, data = part
    return list(
        struct.unpack(
            f"<{len(data) // frames.SIZES[dtype]}{CODES.get(dtype, '?')}",
            data,
        )
    )


def talk(data):
    """Writes bytes and closes the pipe; returns the answers and the exit status."""
    done = subprocess.run([PROGRAM], input=data, capture_output=True, timeout=60)
    out, rest = [], done.stdout
    while rest:
        (length,) = struct.unpack_from("<I", rest)
        out.append(frames.answer(rest[4 : 4 + length]))
        rest = rest[4 + length :]
    return out, done.returncode


def one(*request):
    answers, code = talk(frames.request(*request))
    assert code == 0 and len(answers) == 1, (answers, code)
    return answers[0]


class Frames(unittest.TestCase):
    def test_values_and_gradients(self):
        x, y = floats([1, 2, 3], grad=True), floats([4, 5, 6])
        a = one("mul", [x, y], [floats([1, 10, 100])])
        self.assertEqual(
            (a.status, numbers(a.outputs[0]), numbers(a.grads[0])), (frames.OK, [4, 10, 18], [4, 50, 600])
        )

    def test_strides_and_offset(self):
        a = one("clone", [floats([9, 1, 2, 3, 4], (2, 2), (1, 2), 1)])
        self.assertEqual((a.outputs[0][2], numbers(a.outputs[0])), ((2, 2), [1, 3, 2, 4]))

    def test_several_outputs_and_shared_storage(self):
        a = one("split", [floats([1, 2, 3]), 2, 0])
        self.assertEqual([(part[0], numbers(part)) for part in a.outputs], [(2, [1, 2]), (2, [3])])
        self.assertEqual(numbers(one("max.dim", [floats([1, 7, 3]), -1, False]).outputs[1]), [1])

    def test_lists_numbers_and_texts(self):
        x = floats([1, 2])
        self.assertEqual(numbers(one("cat", [[x, x], 0]).outputs[0]), [1, 2, 1, 2])
        self.assertEqual(numbers(one("einsum", ["i,i->", [x, x]]).outputs[0]), [5])
        self.assertEqual(numbers(one("reshape", [x, Sizes((2, -1))]).outputs[0]), [1, 2])
        self.assertEqual(numbers(one("clamp", [x, 1.5, 9]).outputs[0]), [1.5, 2])

    def test_optimizer_steps(self):
        a = one(
            "optim.SGD", [0.5, 0.0, 0.0, 0.0, False, False, [floats([1])], [floats([1]), None, floats([1])]]
        )
        self.assertEqual(numbers(a.outputs[0]), [0])

    def test_layer_gradients_are_the_parameters(self):
        weight = floats([1, 2], (1, 2), (2, 1), grad=True)
        a = one("nn.Linear", [floats([3, 4]), 2, 1, False, [weight]], [floats([1])])
        self.assertEqual((numbers(a.outputs[0]), numbers(a.grads[0])), ([11], [3, 4]))

    def test_errors_have_type_and_text(self):
        a = one("matmul", [floats([1, 2]), floats([1, 2, 3])])
        self.assertEqual((a.status, a.error[0]), (frames.CALL_ERROR, "ShapeError"))
        self.assertTrue(a.error[1].startswith("matmul: "))

    def test_a_backward_error_follows_the_outputs(self):
        a = one("mul", [floats([1], grad=True), floats([2])], [floats([1, 2, 3])])
        self.assertEqual((a.status, numbers(a.outputs[0])), (frames.BACKWARD_ERROR, [2]))


class Malformed(unittest.TestCase):
    def refused(self, body, word):
        good = frames.request("neg", [floats([1])])
        answers, code = talk(struct.pack("<I", len(body)) + body + good)
        self.assertEqual(
            (answers[0].status, answers[0].error[0], answers[1].status, code),
            (frames.MALFORMED, "FrameError", frames.OK, 0),
        )
        self.assertIn(word, answers[0].error[1])

    def test_bodies_that_end_early_are_refused_and_the_next_is_answered(self):
        whole = frames.request("add", [floats([1]), floats([2]), 1], [floats([1])])[4:]
        for length in range(len(whole)):
            self.refused(whole[:length], "frame ends" if length else "ends within")

    def test_wrong_bodies_are_refused_and_the_next_is_answered(self):
        body = lambda *request: frames.request(*request)[4:]
        self.refused(body("no_such_row", []), "no_such_row")
        self.refused(body("neg", []), "0 arguments, not 1")
        self.refused(body("neg", [1.5]), "tag")
        self.refused(body("neg", [floats([1])]) + b"x", "1 bytes too many")
        self.refused(self.with_dtype(99), "dtype")
        self.refused(body("neg", [floats([1], (2,), (1,))]), "outside its storage")
        self.refused(body("neg", [floats([1], (1,), (1,), -1)]), "outside its storage")
        self.refused(body("neg", [floats([1], (2**40, 2**40), (2**40, 2**40))]), "a tensor of sizes")
        self.refused(body("neg", [floats([1], (2,), (2**62,))]), "a tensor of strides")
        self.refused(body("neg", [T(INT64, (1,), (1,), 0, bytes(8), True)]), "cannot require grad")

    @staticmethod
    def with_dtype(number):
        frame = bytearray(frames.request("neg", [floats([1])])[4:])
        frame[1 + len("neg") + 1 + 2] = number
        return bytes(frame)

    def test_input_that_ends_within_a_frame_is_answered(self):
        for data in (b"\x05", b"\x05\0\0\0ab", struct.pack("<I", 2**31)):
            answers, code = talk(data)
            self.assertEqual(([a.status for a in answers], code), ([frames.MALFORMED], 1))


class Running(unittest.TestCase):
    def test_a_case_that_ends_the_program_is_told_and_the_rest_is_answered(self):
        good, program = frames.request("neg", [floats([1])]), frames.Program(PROGRAM)
        bad = struct.pack("<I", 2**31)  # the program answers it and ends
        sent = [good, bad, good, good]
        program.send(sent)
        answers = program.answers(sent)
        program.stop()
        told = [a if isinstance(a, str) else a.status for a in answers]
        self.assertEqual(told[0], frames.OK)
        self.assertEqual(told[1], frames.MALFORMED)
        self.assertIsInstance(told[2], str)  # the next case reports the end of the program
        self.assertEqual(told[3], frames.OK)

    def test_many_cases_do_not_block_the_pipe(self):
        program = frames.Program(PROGRAM)
        sent = [frames.request("neg", [floats([1.0] * 5000)])] * 200
        program.send(sent)
        self.assertTrue(all(a.status == frames.OK for a in program.answers(sent)))
        program.stop()

    def test_without_torch_the_script_says_so(self):
        script = os.path.join(ROOT, "scripts", "compare_torch.py")
        hide = (
            "import sys, runpy; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; "
            "runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        done = subprocess.run(
            [sys.executable, "-c", hide, script, "--count", "1"], capture_output=True, text=True, timeout=60
        )
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("no torch", done.stderr)


unittest.main()
