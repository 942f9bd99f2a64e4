"""Checks the rules of the house that a machine can check, over every file that git tracks. Run as a test
(House.rules_hold).

Refused are an include that points upward between floors or between the rooms of a floor, and a circle of
headers. In some rooms two pairs of a header and its source may not include each other either. So are a
private header in a public one, and third-party headers outside the files that may have them. So are files
that grew too long, lines that are too wide, absolute paths of one machine, and marks of unfinished work. So
are any tie to libtorch, and managed CUDA memory in kernels. A test case must have a name of its own. A public
op must have a row in the op table, and be a method of Tensor or stand in FUNCTIONS. An op, optimizer,
schedule or module must be compared with PyTorch. A test that docs/conformance*.md name must exist, and each
row of docs/conformance_rows.md must have a test or a reason. README.md and docs/examples.md must list each
program of examples/. A library source must have a head comment of 2 to 8 lines. The recorder of compile()
must override each method that the CPU's backend overrides. A sentence of a comment or page must be short.
With --ninja-log FILE it reports instead which translation units took long to compile.

The scanning is by line and pattern, not by a compiler: a forbidden header reached through two macros would
pass.
"""
import argparse
import ast
import collections
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
from check_words import check_words
from compare.covered import IN_PLACE, PUBLIC_OP, check_compared

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CPP = (".h", ".cpp", ".cu", ".cuh", ".inc")
CODE = CPP + (".py", ".sh", ".cmake", ".proto")
PAGED = CODE + (".md",)  # of limited length
NARROW = CODE + (".md", ".in", ".yml", ".supp", "CMakeLists.txt", "CMakePresets.json", ".ci/run")
MAX_LINES = 500
MAX_COLUMNS = 110
MAX_GRPC_FILES = 5
GRPC_ROOM = "distributed/inspection/"  # a library of its own, whose sources need gRPC and protobuf
SLOW_UNIT_S = 20.0
MIN_HEAD, MAX_HEAD = 2, 8  # lines of the comment at the head of a library .cpp

# The parts of weft that each floor may include; "all" stands for the folders that nothing includes.
BELOW = {
    "kernels": {"kernels"},
    "tensor": {"kernels", "tensor"},
    "autograd": {"kernels", "tensor", "autograd"},
    "nn": {"kernels", "tensor", "autograd", "nn"},
    "optim": {"kernels", "tensor", "autograd", "optim"},
    "distributed": {"kernels", "tensor", "autograd", "nn", "optim", "distributed", "weft.h"},
}
# The rooms of a folder ("": its top level): each includes itself and those to its left. Private are the
# headers in folders called inner, and those of PRIVATE.
ROOMS = {
    "tensor": ["", "io"],
    "autograd": ["tape", "ops"],
    "optim": ["rules", ""],
    "distributed": ["runtime", "transport", "wire", "rpc", "launch", "rref", "autograd", "optim",
                    "collectives", "inspection", "sim"],
    "kernels/cuda": ["", "host", "blocks", "ops", "toolkit"],
}
# Rooms in which a header and its source are one part, and no two parts include each other's headers.
PAIRED = ("distributed/rpc/", "distributed/rref/", "distributed/inspection/", "autograd/ops/", "nn/")
PRIVATE = re.compile(r"/inner/|^kernels/(cpu|plugin|cuda/\w+)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
EIGEN = re.compile(r"^(unsupported/)?Eigen/")
CUDA = re.compile(r"^(cuda|cublas|cudnn|curand|nvtx|cooperative_groups)[\w/.-]*$")
GRPC = re.compile(r"^(grpc|grpcpp|google/protobuf)/|\.pb\.h$")
MANAGED = re.compile(r"cudaMallocManage[d]|cuMemAllocManage[d]|__managed_[_]")
TORCH = re.compile(r"(^|[\s\"'<(;])(-ltorch|torch::|torch/torch\.h|find_package\(Torch"
                   r"|libtorch(_cpu|_cuda)?\.so)", re.IGNORECASE)
# The alternatives are written with classes so that this file does not match itself.
MACHINE_PATH = re.compile(r"(^|[^\w.$}{~-])/(home/[a-z]|wor[k]/|roo[t]/|tm[p]/team|User[s]/|mn[t]/|farm[/]"
                          r"|usr/local/cud[a])")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
TEST = re.compile(r"^(TEST|TEST_F|TEST_P)\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)
ADDED_TEST = re.compile(r"add_test\(\s*NAME (\w+\.\w+)\s")
NAMED_TEST = re.compile(r"`([A-Z]\w*\.[a-z]\w*)`")
LONE_STRING = re.compile(r'\s*"\w+": "[^"]*"[\]},]*')
PROGRAM = re.compile(r"examples/([\w-]+)(?:\.cpp|/main\.cpp|/CMakeLists\.txt)$")
PROGRAM_PAGES = ("README.md", "docs/examples.md")
NAMED_MISTAKE = re.compile(r"`(\w+\.cpp)`")
ROWS = "docs/conformance_rows.md"  # the first column has names of PyTorch's tests
OP = re.compile(r"^\s*(?:WEFT_API\s+)?(?:Tensor|\w+Result|std::vector<Tensor>)\s+(\w+)\(")


# Functions of PyTorch's torch.nn.functional and kin, which are no methods of its tensors, and weft's of that
# kind.
FUNCTIONS = {"log_sigmoid", "leaky_relu", "elu", "gelu", "gelu_tanh", "silu", "softplus", "layer_norm",
             "normalize", "linear", "linear_relu", "linear_gelu_tanh", "feed_forward", "nll_loss",
             "cross_entropy", "linear_cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss",
             "binary_cross_entropy_with_logits", "embedding", "one_hot", "pad", "dropout",
             "scaled_dot_product_attention"}
OP_OF_TENSOR = re.compile(r"^WEFT_API (?:Tensor|bool|\w+Result|std::vector<Tensor>) (\w+)"
                          r"\((?:In|Fp32Arg|AutocastArg|Viewed) ")
SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "remainder": "%", "bitwise_and": "&",
           "bitwise_or": "|", "bitwise_xor": "^"}
OVERRIDE = re.compile(r"^  \w.*?(\w+)\([^;{]*\)[^;{]*\boverride\b", re.MULTILINE)


def tracked():
    """Paths of the checked files: those that git tracks, or the whole tree where there is no git (an unpacked
    archive)."""
    try:
        done = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached"],
                              cwd=ROOT, capture_output=True, check=True)
        names = [n for n in done.stdout.decode().split("\0") if n]
    except (OSError, subprocess.CalledProcessError):
        names = []
        for folder, folders, files in os.walk(ROOT):
            folders[:] = [f for f in folders if f not in ("build", ".git", ".cache", "__pycache__")]
            names += [os.path.relpath(os.path.join(folder, f), ROOT) for f in files]
    return sorted(n for n in names if os.path.isfile(os.path.join(ROOT, n)))


def read(name):
    with open(os.path.join(ROOT, name), "rb") as file:
        data = file.read()
    return None if b"\0" in data[:8192] else data.decode("utf-8", "replace")


def check_includes(name, lines, grpc_files, out):
    floor = name.split("/")[0]
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(1)
        where = f"{name}:{number}"
        if floor in BELOW:
            if header.startswith("weft/") and header.split("/")[1] not in BELOW[floor] | {"version.h"}:
                out.append(f"{where}: {floor}/ includes {header}, which lies above it")
            elif '"' in line and header.split("/")[0] not in BELOW:
                out.append(f'{where}: "{header}": write <weft/folder/file.h>')
        private = (name.startswith("kernels/cpu/")
                   and (name.endswith(".cpp") or name.startswith("kernels/cpu/isa/")))
        if EIGEN.match(header) and not private and floor not in ("tests", "bench"):
            out.append(f"{where}: Eigen stays in kernels/cpu/*.cpp and kernels/cpu/isa/")
        ours = (os.path.isfile(os.path.join(ROOT, "tests", header))
                or name.startswith("tests/support/libraries/"))
        if (CUDA.match(header) and not ours and not name.startswith("kernels/cuda/")
                and not name.endswith((".cu", ".cuh"))):
            out.append(f"{where}: CUDA headers stay in kernels/cuda and tests/support/libraries")
        if header == "zlib.h" and floor in BELOW and name != "tensor/io/inflate.cpp":
            out.append(f"{where}: zlib stays in tensor/io/inflate.cpp")
        if header.startswith("gloo/") and name != "distributed/collectives/gloo.cpp":
            out.append(f"{where}: Gloo stays in distributed/collectives/gloo.cpp")
        if GRPC.search(header):
            if name.startswith(GRPC_ROOM) and name.endswith(".cpp"):
                continue
            if floor == "distributed" and name.endswith(".cpp"):
                grpc_files.add(name)
            elif floor in BELOW:
                out.append(f"{where}: gRPC and protobuf stay in at most {MAX_GRPC_FILES} .cpp files of "
                           f"distributed/ and in those of {GRPC_ROOM}")


def room_of(name):
    """(folder, room) of a file; ("", "") where the folder has no rooms."""
    for folder in ROOMS:
        if name.startswith(folder + "/"):
            room = os.path.dirname(name[len(folder) + 1:]).split("/")[0]
            return folder, "" if room == "inner" else room
    return "", ""


def check_rooms(name, lines, out):
    folder, room = room_of(name)
    rooms = ROOMS.get(folder, [room])
    if room not in rooms:
        out.append(f"{name}: the rooms of {folder}/ are {', '.join(r for r in rooms if r)}")
        return
    floor = name.split("/")[0]
    umbrella = name.startswith("cmake/include/weft/")
    public = (floor in BELOW or umbrella) and name.endswith(".h") and not PRIVATE.search(name)
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match or not match.group(1).startswith("weft/"):
            continue
        header = match.group(1)[len("weft/"):]
        to_folder, to_room = room_of(header)
        if folder and to_folder == folder and to_room in rooms and rooms.index(to_room) > rooms.index(room):
            out.append(f"{name}:{number}: {folder}/{room} includes {header}, which stands above it")
        if public and PRIVATE.search(header):
            out.append(f"{name}:{number}: a public header includes the private {header}")
        if floor in ("examples", "bench") and PRIVATE.search(header):
            out.append(f"{name}:{number}: {header} is private to the library")


def own_headers(lines):
    """The headers of weft that a file includes. An include behind the end of the namespace, by which a header
    brings its templates' definitions, does not count."""
    ends = [n for n, line in enumerate(lines) if line.startswith("}  // namespace")]
    matches = [INCLUDE.match(line) for line in lines[:ends[-1] if ends else len(lines)]]
    return [m.group(1)[len("weft/"):] for m in matches if m and m.group(1).startswith("weft/")]


def check_circles(texts, out):
    """Headers that include each other in a circle."""
    arrows = {name: own_headers(lines) for name, lines in texts.items()
              if name.endswith(".h") and name.split("/")[0] in BELOW}
    done, path = set(), []

    def walk(name):
        if name in path:
            out.append("a circle of headers: " + " -> ".join(path[path.index(name):] + [name]))
        elif name not in done:
            path.append(name)
            for to in arrows.get(name, []):
                walk(to)
            path.pop()
            done.add(name)

    for name in sorted(arrows):
        walk(name)


def part_of(name):
    """A header and its source without the room's inner folder and the end."""
    return os.path.splitext(name.replace("/inner/", "/"))[0]


def check_pairs(texts, out):
    """In the rooms of PAIRED no two parts, a header and its source each, include each other's headers."""
    arrows = collections.defaultdict(set)
    for name, lines in texts.items():
        for room in PAIRED:
            if name.startswith(room) and name.endswith((".h", ".cpp")):
                arrows[part_of(name)] |= {part_of(h) for h in own_headers(lines) if h.startswith(room)}
    for part in sorted(arrows):
        out.extend(f"{part} and {other} include each other's headers" for other in sorted(arrows[part])
                   if part < other and part in arrows.get(other, ()))


def check_text(name, lines, out):
    for number, line in enumerate(lines, 1):
        if MACHINE_PATH.search(line):
            out.append(f"{name}:{number}: absolute path of a machine: {line.strip()[:80]}")
        if name.startswith("kernels/") and MANAGED.search(line):
            out.append(f"{name}:{number}: managed memory moves by page faults; use allocate: "
                       f"{line.strip()[:80]}")
        if name.endswith(CPP) and UNFINISHED.search(line):
            out.append(f"{name}:{number}: unfinished: {line.strip()[:80]}")
        if name.endswith(CPP + (".cmake", "CMakeLists.txt", ".in")) and TORCH.search(line):
            out.append(f"{name}:{number}: a tie to libtorch: {line.strip()[:80]}")


def check_device_bits(name, lines, out):
    """Compilers for devices take std::countr_zero and the like without a word, and give a wrong number."""
    if not name.startswith(("kernels/cuda/blocks/", "kernels/cuda/ops/", "kernels/inner/")):
        return
    for at, line in enumerate(lines, 1):
        if re.search(r"std::count[lr]_(zero|one)|std::bit_(width|floor|ceil)|__builtin_c[lt]z", line) and \
                "// host" not in line and not line.lstrip().startswith("//"):
            out.append(f"{name}:{at}: device code counts bits by std::popcount alone (first_lane in radix.h)")


def check_columns(name, lines, out):
    """C++ is formatted to this width. Tables of pages are wider, and mistakes have a mark at the end. JSON
    cannot break a string, so one may be longer where it stands alone."""
    if name.startswith("tests/support/mistakes/"):
        return
    for number, line in enumerate(lines, 1):
        unbroken = (name.endswith(".md") and line.startswith("|")
                    or name.endswith(".json") and LONE_STRING.fullmatch(line))
        if len(line) > MAX_COLUMNS and not unbroken:
            out.append(f"{name}:{number}: {len(line)} columns, the limit is {MAX_COLUMNS}")


def check_head(name, lines, out):
    """A library .cpp begins with a comment of a few lines; a longer explanation follows the includes."""
    if name.split("/")[0] not in BELOW or not name.endswith(".cpp"):
        return
    ends = [number for number, line in enumerate(lines) if not line.startswith("//")]
    count = ends[0] if ends else len(lines)
    if not MIN_HEAD <= count <= MAX_HEAD:
        out.append(f"{name}:1: a head comment of {count} lines, not {MIN_HEAD} to {MAX_HEAD}")


def check_op_table(names, out):
    """Every op declared in the op headers needs its name in the op table of the tests."""
    tables = [n for n in names if re.match(r"tests/autograd/op_table\w*\.(h|cpp)$", n)]
    headers = [n for n in names if re.match(r"autograd/ops/ops\w*\.h$", n)]
    if not tables or not headers:
        return
    table = "\n".join(read(n) for n in tables)
    words = set(re.findall(r"\w+", table))
    for header in headers:
        for number, line in enumerate(read(header).splitlines(), 1):
            match = OP.match(line)
            if match and match.group(1) not in words and "table: no" not in line:
                out.append(f"{header}:{number}: the op {match.group(1)} has no row in {tables[0]}")


def check_recorder(texts, out):
    """The recorder of compile() takes the place of the CPU's backend, and forwards all but rows."""
    recorder = "autograd/tape/inner/recorder.h"
    known = {"row", *OVERRIDE.findall("\n".join(texts.get(recorder, [])))}
    for name in ("kernels/cpu/cpu_backend.h", "kernels/cpu/isa/backend.h"):
        out.extend(f"{name}: {method} has no override in {recorder}"
                   for method in OVERRIDE.findall("\n".join(texts.get(name, []))) if method not in known)


def check_takes(names, out):
    """An op or a method in place with a Scalar is called with one in `takes` of the op table."""
    table = "\n".join(read(n) for n in names if re.match(r"tests/autograd/op_table\w*\.cpp$", n))
    headers = [n for n in names if re.match(r"autograd/ops/ops\w*\.h$", n)]
    if not table or not headers:
        return
    calls = " ".join(re.findall(r"Scalar s\)[^;]*?\{(.*?;)\s*\}", table, re.DOTALL))
    called = set(re.findall(r"(\w+)\(", calls))
    for op, symbol in SYMBOLS.items():
        called |= {op} if f"x {symbol} s" in calls or f"s {symbol} x" in calls else set()
        called |= {op + "_"} if f"y {symbol}= s" in calls else set()
    called |= set(re.findall(r'\b(?:bits|test_number)\("\w+", (\w+)', table))  # their helper calls it
    wanted = {(name, op) for name in headers
              for op, arguments in re.findall(PUBLIC_OP.pattern, read(name), re.MULTILINE)
              if "Scalar" in arguments}
    wanted |= {(name, method) for name in names if name == "tensor/tensor.h"
               for method, arguments in IN_PLACE.findall(read(name)) if "Scalar" in arguments}
    out.extend(f"{name}: no row of the op table has the Scalar of {op} in its `takes`"
               for name, op in sorted(wanted) if op not in called)


def check_methods(names, out):
    """An op whose first argument is a tensor is a method of Tensor or stands in FUNCTIONS."""
    headers = [n for n in names if re.match(r"autograd/ops/ops\w*\.h$", n)]
    if not headers:
        return
    methods = set(re.findall(r"\b(\w+)\(", read("tensor/tensor.h").split("class WEFT_API Tensor {", 1)[1]))
    known = set()
    for header in headers:
        for number, line in enumerate(read(header).splitlines(), 1):
            match = OP_OF_TENSOR.match(line)
            if not match:
                continue
            known.add(match.group(1))
            if (match.group(1) in methods) == (match.group(1) in FUNCTIONS):
                out.append(f"{header}:{number}: {match.group(1)} is either a method of Tensor or in "
                           "FUNCTIONS of this script")
    out.extend(f"check_house.py: there is no op {name}" for name in sorted(FUNCTIONS - known))


def check_sentences(texts, out):
    """docs/ops.md has the sentences that the comparison with PyTorch takes as reasons of a difference."""
    rules, page = "scripts/compare/rules.py", "docs/ops.md"
    if rules not in texts:
        return
    said = " ".join(" ".join(texts.get(page, [])).split())
    for node in ast.walk(ast.parse("\n".join(texts[rules]))):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "SENTENCES":
            for sentence in ast.literal_eval(node.value).values():
                if sentence not in said:
                    out.append(f"{page}: does not say: {sentence}")


def check_readme(out):
    """A program that the README shows is shown whole."""
    paragraph_then_code = r"^\[(examples/\w+\.cpp)\].*(?:\n.+)*\n\n" \
        r"(?:<!-- snippet:.*-->\n)?```cpp\n((?:.*\n)*?)```"
    for path, shown in re.findall(paragraph_then_code, read("README.md"), re.MULTILINE):
        if shown != read(path):
            out.append(f"README.md: not the program {path} as it is")


def check_programs(texts, out):
    """Each program of examples/ has its name in the first column of a table of these pages."""
    for page in PROGRAM_PAGES:
        cells = "".join(line.split("|")[1] for line in texts.get(page, []) if line.startswith("|"))
        words = set(re.findall(r"[\w-]+", cells))
        for name, match in ((name, PROGRAM.match(name)) for name in texts):
            if page in texts and match and match.group(1) not in words:
                out.append(f"{page}: no row for the program {name}")


def check_tests(texts, out):
    seen = collections.defaultdict(list)
    for name, lines in texts.items():
        if name.startswith("tests/") and name.endswith(".cpp"):
            for match in TEST.finditer("\n".join(lines)):
                seen[f"{match.group(2)}.{match.group(3)}"].append(name)
    for case, files in sorted(seen.items()):
        if len(files) > 1:
            out.append(f"{files[1]}: the test {case} exists in {files[0]} too")
    check_conformance(texts, set(seen), out)


def check_conformance(texts, cases, out):
    """The pages of conformance name tests and mistakes that are there."""
    for name, lines in texts.items():
        if name.startswith("cmake/"):
            cases |= set(ADDED_TEST.findall("\n".join(lines)))
    for page in [name for name in texts if re.match(r"docs/conformance\w*\.md$", name)]:
        for number, line in enumerate(texts[page], 1):
            for case in NAMED_TEST.findall(line.split("|", 2)[-1] if page == ROWS else line):
                if case not in cases:
                    out.append(f"{page}:{number}: there is no test {case}")
            for mistake in NAMED_MISTAKE.findall(line):
                if f"tests/support/mistakes/{mistake}" not in texts:
                    out.append(f"{page}:{number}: there is no mistake {mistake}")
    check_rows(texts, out)


def check_rows(texts, out):
    """Each row of ROWS has tests or a reason, and each test of PyTorch that tests/conformance names a row."""
    known = set()
    for number, line in enumerate(texts.get(ROWS, []), 1):
        cells = line.split("|")
        if len(cells) < 4 or not cells[1].startswith((" `", " *")):
            continue
        for name in re.findall(r"`([^`]+)`|\*([^*`]+)\*", cells[1]):
            name = name[0] or name[1]
            if name in known:
                out.append(f"{ROWS}:{number}: another row of {name}")
            known.add(name)
        if not NAMED_TEST.search(cells[2]) and not cells[2].startswith(" None. "):
            out.append(f"{ROWS}:{number}: neither a test nor 'None.' with a reason")
    for name, lines in texts.items():
        if ROWS in texts and name.startswith("tests/conformance/"):
            out.extend(f"{name}:{number}: {ROWS} has no row of {row}"
                       for number, line in enumerate(lines, 1) if line.startswith("//")
                       for row in re.findall(r"\b(?:\w+\.)?test_\w+", line) if row not in known)


def slow_units(path):
    """Compile times above the limit, from a ninja log; the newest entry of an output counts."""
    times = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            fields = line.rstrip("\n").split("\t")
            if len(fields) >= 4 and fields[3].endswith(".o"):
                times[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000.0
    slow = sorted(((t, o) for o, t in times.items() if t > SLOW_UNIT_S), reverse=True)
    print(f"{len(times)} translation units, {sum(times.values()):.0f} s in all, "
          f"{len(slow)} above {SLOW_UNIT_S:.0f} s")
    for seconds, unit in slow or sorted(((t, o) for o, t in times.items()), reverse=True)[:5]:
        print(f"  {seconds:6.1f} s  {unit}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--ninja-log", metavar="FILE",
                        help="report slow translation units from this .ninja_log")
    parser.add_argument("--root", metavar="FOLDER", help="check the tree in this folder instead")
    parser.add_argument("--report-only", action="store_true", help="with --ninja-log: skip the checks")
    options = parser.parse_args()
    if options.ninja_log:
        slow_units(options.ninja_log)
        if options.report_only:
            return 0
    if options.root:
        global ROOT
        ROOT = os.path.abspath(options.root)
    names = tracked()
    out, grpc_files, texts = [], set(), {}
    for name in names:
        text = read(name)
        if text is None:
            continue
        lines = text.splitlines()
        texts[name] = lines
        if name.endswith(PAGED) and len(lines) > MAX_LINES:
            out.append(f"{name}: {len(lines)} lines, the limit is {MAX_LINES}")
        if name.endswith(CPP):
            check_includes(name, lines, grpc_files, out)
            check_rooms(name, lines, out)
        if name.endswith(NARROW):
            check_columns(name, lines, out)
        check_text(name, lines, out)
        check_device_bits(name, lines, out)
        check_head(name, lines, out)
        check_words(name, lines, out)
    if len(grpc_files) > MAX_GRPC_FILES:
        out.append(f"gRPC and protobuf headers are in {len(grpc_files)} files, the limit is "
                   f"{MAX_GRPC_FILES}: {', '.join(sorted(grpc_files))}")
    check_op_table(names, out)
    check_recorder(texts, out)
    check_takes(names, out)
    check_methods(names, out)
    check_compared(names, texts, out)
    check_sentences(texts, out)
    check_programs(texts, out)
    check_tests(texts, out)
    check_circles(texts, out)
    check_pairs(texts, out)
    if os.path.isfile(os.path.join(ROOT, "README.md")):
        check_readme(out)
    for line in out:
        print(line)
    print(f"check_house: {len(names)} files, {len(out)} findings")
    return 1 if out else 0


sys.exit(main())
