"""Adds one fault after the other to a small tree and expects scripts/check_house.py to report each."""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CHECK = os.path.join(HERE, "..", "..", "..", "scripts", "check_house.py")
HEAD = "// The calls.\n// Their errors.\n"
GOOD = {
    "kernels/view.h": "#pragma once\n",
    "kernels/cpu/cpu_backend.h": "  void* allocate(size_t bytes) override;\n",
    "kernels/cpu/isa/backend.h": "  PointwiseRow row(Unary op, DType t) const override;\n",
    "autograd/tape/inner/recorder.h": "  void* allocate(size_t bytes) override { return nullptr; }\n",
    "tensor/tensor.h": "#include <weft/kernels/view.h>\nclass WEFT_API Tensor {\n  Tensor& neg_();\n",
    "tensor/index.h": "  WEFT_WRITE(neg_)\n",
    "tests/support/compare/rows.cpp": 'row(rows, "schedule.StepLR", f);\nin_place<g>(rows, "neg");\n',
    "distributed/runtime/runtime.h": "#include <weft/tensor/tensor.h>\n",
    "distributed/runtime/inner/pool.h": "#include <weft/distributed/runtime/runtime.h>\n",
    "distributed/rpc/rpc.h": "namespace weft {\n}  // namespace weft\n"
                             "#include <weft/distributed/rpc/rpc_inl.h>\n",
    "distributed/rpc/rpc_inl.h": "#include <weft/distributed/rpc/rpc.h>\n",
    "distributed/rpc/agent.h": "#include <weft/distributed/rpc/call.h>\n",
    "distributed/rpc/call.h": "#pragma once\n",
    "distributed/rpc/rpc.cpp": HEAD + "#include <weft/distributed/runtime/inner/pool.h>\n",
    "distributed/inspection/inspection.cpp": HEAD + "#include <grpcpp/grpcpp.h>\n",
    "tests/rpc/call_test.cpp": "TEST(Call,\n     ends_at_its_deadline) {}\nTEST_P(Call, runs_once) {}\n",
    "tests/autograd/op_table_even.cpp": "[](const Tensor& x, Scalar s) { return even(x, s); }\n",
    "tests/support/mistakes/no_codec.cpp": "int main() {}\n",
    "cmake/tests.cmake": "add_test(NAME House.rules_hold COMMAND python3)\n",
    "README.md": "| `hello` | shows |\n",
    "docs/examples.md": "| [hello.cpp](../examples/hello.cpp) | shows | core |\n",
    "examples/hello.cpp": "int main() {}\n",
    "CMakePresets.json": '{"flags": {\n"a": "' + "wide " * 22 + '"}}\n',
    "docs/conformance.md": "- A call ends.\n  `Call.ends_at_its_deadline`, `Call.runs_once`\n"
                           "- The rules.\n  `House.rules_hold`, `no_codec.cpp`\n",
    "docs/conformance_rows.md": "| test of PyTorch | tests here |\n|---|---|\n"
                                "| `test_call`, `CallTest.test_once` | `Call.runs_once` |\n"
                                "| `test_pickle` | None. There are no pickles. |\n"
                                "| *a killed process* | `Call.ends_at_its_deadline` |\n",
    "tests/conformance/call_test.cpp": "// test_call, and test_pickle in part\n",
    "kernels/words.h": f"// {'word ' * 15}\n// {'word ' * 15}.\n// y = {'x + ' * 20}\n// {'+ x ' * 20}.\n"
                       f"//   call({'x, ' * 20}\n//        {'y, ' * 20});\n"
                       f"const char* kText = \"// {'a ' * 20}\";  // {'a ' * 12}\n// {'a ' * 20}\n",
    "docs/words.md": "What is a word?\n**What is it?** Short.\n| What | Where |\n"
                     f"{'a ' * 18}\n- {'a ' * 18}\n| {'a ' * 20}| {'a ' * 20}|\n"
                     f"```sh\n{'a ' * 20}\n{'a ' * 20}\n```\n[a]({'b%20' * 20}) {'a ' * 5}\n",
}
LONG = f"{'word ' * 16}\n{'word ' * 15}.\n"  # a sentence of 31 words
FAULTS = [
    ("distributed/runtime/clock.cpp", HEAD + "#include <weft/distributed/rpc/rpc.h>\n",
     "clock.cpp:3: distributed/runtime includes distributed/rpc/rpc.h, which stands above it"),
    ("tensor/new.h", "#include <weft/distributed/rpc/rpc.h>\n", "tensor/new.h:1: tensor/ includes"),
    ("kernels/view.h", "#pragma once\n#include <weft/kernels/shape.h>\n",
     "a circle of headers: kernels/view.h -> kernels/shape.h -> kernels/view.h"),
    ("distributed/rpc/call.cpp", HEAD + "#include <weft/distributed/rpc/agent.h>\n",
     "distributed/rpc/agent and distributed/rpc/call include each other's headers"),
    ("distributed/rpc/rpc.h", "#include <weft/distributed/runtime/inner/pool.h>\n",
     "rpc.h:1: a public header includes the private distributed/runtime/inner/pool.h"),
    ("cmake/include/weft/weft.h", "#include <weft/distributed/runtime/inner/pool.h>\n",
     "weft.h:1: a public header includes the private distributed/runtime/inner/pool.h"),
    ("examples/hello.cpp", "#include <weft/distributed/runtime/inner/pool.h>\n", "is private to the library"),
    ("distributed/inspection/inspection.h", "#include <grpcpp/grpcpp.h>\n",
     "inspection.h:1: gRPC and protobuf stay in at most 5 .cpp files of distributed/ and in"),
    ("distributed/rpc/rpc.cpp", HEAD + "#include <gloo/allreduce.h>\n",
     "rpc.cpp:3: Gloo stays in distributed/collectives/gloo.cpp"),
    ("distributed/agent.h", "#pragma once\n",
     "distributed/agent.h: the rooms of distributed/ are runtime, transport"),
    ("tensor/tensor.h", "#include <weft/tensor/io/npy.h>\n",
     "tensor/ includes tensor/io/npy.h, which stands above it"),
    ("kernels/wide.cpp", "// " + "wide " * 22 + "\n", "kernels/wide.cpp:1: 113 columns, the limit is 110"),
    ("kernels/shape.cpp", "// The shapes.\n#include <weft/kernels/shape.h>\n",
     "kernels/shape.cpp:1: a head comment of 1 lines, not 2 to 8"),
    ("kernels/shape.cpp", "// A shape.\n" * 9, "kernels/shape.cpp:1: a head comment of 9 lines, not 2 to 8"),
    ("kernels/cuda/ops/bits.cu", 
     "// The bits\n// of numbers.\nint f(uint32_t x) { return std::countr_zero(x); }\n",
     "kernels/cuda/ops/bits.cu:3: device code counts bits by std::popcount alone"),
    ("kernels/cpu/isa/backend.h", "  bool odd(Context&, View x,\n           View y) override;\n",
     "kernels/cpu/isa/backend.h: odd has no override in autograd/tape/inner/recorder.h"),
    ("scripts/wide.py", "# " + "wide " * 22 + "\n", "scripts/wide.py:1: 112 columns, the limit is 110"),
    ("cmake/wide.cmake", "# " + "wide " * 22 + "\n", "cmake/wide.cmake:1: 112 columns, the limit is 110"),
    (".ci/run", "# " + "wide " * 22 + "\n", ".ci/run:1: 112 columns, the limit is 110"),
    ("CMakePresets.json", '{"a": "b", "c": "' + "wide " * 20 + '"}\n',
     "CMakePresets.json:1: 119 columns, the limit is 110"),
    ("kernels/rows.inc", "#include <weft/tensor/tensor.h>\n", "kernels/rows.inc:1: kernels/ includes"),
    ("examples/odd/main.cpp", "int main() {}\n", "README.md: no row for the program examples/odd/main.cpp"),
    ("examples/odd.cpp", "int main() {}\n", "docs/examples.md: no row for the program examples/odd.cpp"),
    ("README.md", "wide " * 23 + "\n", "README.md:1: 115 columns, the limit is 110"),
    ("README.md", "```sh\n" + "wide " * 23 + "\n```\n", "README.md:2: 115 columns, the limit is 110"),
    ("tests/rpc/more_test.cpp", "TEST_F(Call,\n       ends_at_its_deadline) {}\n",
     "tests/rpc/more_test.cpp: the test Call.ends_at_its_deadline exists in tests/rpc/call_test.cpp too"),
    ("docs/conformance.md", "- A call ends.\n  `Call.ends_at_some_time`\n",
     "docs/conformance.md:2: there is no test Call.ends_at_some_time"),
    ("docs/conformance.md", "- The rules.\n  `House.rules_are_kept`\n",
     "docs/conformance.md:2: there is no test House.rules_are_kept"),
    ("docs/conformance.md", "- A type: `no_type.cpp`.\n",
     "docs/conformance.md:1: there is no mistake no_type.cpp"),
    ("docs/conformance_rows.md", "| `test_call` | `Call.runs_twice` |\n| `test_pickle` | None. None. |\n",
     "docs/conformance_rows.md:1: there is no test Call.runs_twice"),
    ("docs/conformance_rows.md", "| `test_call` | |\n| `test_pickle` | None. None. |\n",
     "docs/conformance_rows.md:1: neither a test nor 'None.' with a reason"),
    ("docs/conformance_rows.md", "| `test_call`, `test_pickle` | `Call.runs_once` |\n"
                                 "| `test_a`, `test_call` | `Call.runs_once` |\n",
     "docs/conformance_rows.md:2: another row of test_call"),
    ("docs/conformance_rows.md", "| `test_pickle` | `Call.runs_once` |\n",
     "tests/conformance/call_test.cpp:1: docs/conformance_rows.md has no row of test_call"),
    ("autograd/ops/ops.h", "WEFT_API Tensor odd(In x, Scalar s);\n",
     "autograd/ops/ops.h: odd.number has no row in tests/support/compare/"),
    ("autograd/ops/ops.h", "WEFT_API Tensor odd(In x, Scalar s);\n",
     "autograd/ops/ops.h: no row of the op table has the Scalar of odd in its `takes`"),
    ("tensor/tensor.h", "class WEFT_API Tensor {\n  Tensor& odd_(Scalar value);\n",
     "tensor/tensor.h: odd_ has no row in tests/support/compare/"),
    ("tensor/index.h", "  WEFT_WRITE(pow_)\n", "tensor/index.h: neg_ has no WEFT_WRITE"),
    ("optim/schedule.h", "class WEFT_API StepLR {\nclass WEFT_API OddLR {\n",
     "optim/schedule.h: schedule.OddLR has no row in tests/support/compare/"),
    ("optim/rules/odd.h", "struct WEFT_API OddRule {\n",
     "optim/rules/odd.h: optim.Odd has no row in tests/support/compare/"),
    ("nn/odd.h", "class WEFT_API Odd : public Module {\n",
     "nn/odd.h: nn.Odd has no row in tests/support/compare/"),
    ("nn/odd.h", "class WEFT_API OddCell : public RecurrentCell {\n",
     "nn/odd.h: nn.OddCell has no row in tests/support/compare/"),
    ("nn/odd.h", "WEFT_ACTIVATION(Odd, x / 2 != 0)\n",
     "nn/odd.h: nn.Odd has no row in tests/support/compare/"),
    ("scripts/compare/rules.py", 'SENTENCES = {"odd": "`odd` is"\n         " not even."}\n',
     "docs/ops.md: does not say: `odd` is not even."),
    ("kernels/long.h", f"#pragma once\n/// Short.\n/// {LONG}".replace("\nword", "\n/// word"),
     "kernels/long.h:3: a sentence of 31 words, the limit is 30: word word"),
    ("kernels/long.cpp", f"{HEAD}// - {LONG}".replace("\nword", "\n//   word"),
     "kernels/long.cpp:3: a sentence of 31 words, the limit is 30: word word"),
    ("tests/rpc/long.cpp", f"int x = 1;  ///< {LONG}".replace("\nword", "\n            ///< word"),
     "tests/rpc/long.cpp:1: a sentence of 31 words, the limit is 30: word word"),
    ("docs/long.md", f"# Words\n\n1. Short. {LONG}", "docs/long.md:3: a sentence of 31 words"),
    ("bench/NOTES.md", f"| 1 | {LONG.replace(chr(10), ' ')[:-1]}|\n",
     "bench/NOTES.md:1: a sentence of 31 words"),
    ("kernels/noun.h", "// Short. What comes\n// late is lost.\n",
     "kernels/noun.h:1: begins with a noun clause: What comes late is lost."),
    ("docs/noun.md", "- **Whoever** waits is told.\n",
     "docs/noun.md:1: begins with a noun clause: **Whoever** waits is told."),
]
MORE = {"kernels/shape.h": "#include <weft/kernels/view.h>\n"}


def check(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run([sys.executable, CHECK, "--root", root], capture_output=True, text=True,
                              check=False)
        return done.returncode, done.stdout + done.stderr


failed = 0
code, said = check({**GOOD, **MORE})
if code != 0:
    print(f"the tree without a fault is refused:\n{said}")
    failed += 1
for name, text, expected in FAULTS:
    code, said = check({**GOOD, **MORE, name: text})
    if code != 1 or expected not in said:
        print(f"{name}: expected '{expected}', exit status {code}:\n{said}")
        failed += 1
print(f"{len(FAULTS)} planted faults, {failed} checks failed")
sys.exit(1 if failed else 0)
