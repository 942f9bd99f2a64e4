"""Checks the rules of the house that a machine can check, over every file that git tracks; run as a test (House.rules_hold).

Refused: an include that points upward, third-party headers outside the files that may have them, files that grew too long, any tie to
libtorch, managed CUDA memory in kernels, absolute paths of one machine, marks of unfinished work, two test cases of one name, and a public op without a row in the op
table.
With --ninja-log FILE it reports instead which translation units took long to compile.

The scanning is by line and pattern, not by a compiler: a forbidden header reached through two macros would pass.
"""
import argparse
import collections
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CODE = (".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".proto")
CPP = (".h", ".cpp", ".cu", ".cuh")
MAX_LINES = 500
MAX_GRPC_FILES = 3
SLOW_UNIT_S = 20.0

# What each floor may include of weft; "all" stands for the folders that nothing includes.
BELOW = {
    "kernels": {"kernels"},
    "tensor": {"kernels", "tensor"},
    "autograd": {"kernels", "tensor", "autograd"},
    "nn": {"kernels", "tensor", "autograd", "nn"},
    "optim": {"kernels", "tensor", "autograd", "optim"},
    "distributed": {"kernels", "tensor", "autograd", "nn", "optim", "distributed", "weft.h"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
EIGEN = re.compile(r"^(unsupported/)?Eigen/")
CUDA = re.compile(r"^(cuda|cublas|cudnn|curand|nvtx|cooperative_groups)[\w/.-]*$")
GRPC = re.compile(r"^(grpc|grpcpp|google/protobuf)/|\.pb\.h$")
MANAGED = re.compile(r"cudaMallocManage[d]|cuMemAllocManage[d]|__managed_[_]")
TORCH = re.compile(r"(^|[\s\"'<(;])(-ltorch|torch::|torch/torch\.h|find_package\(Torch|libtorch(_cpu|_cuda)?\.so)", re.IGNORECASE)
# The alternatives are written with classes so that this file does not match itself.
MACHINE_PATH = re.compile(r"(^|[^\w.$}{~-])/(home/[a-z]|wor[k]/|roo[t]/|tm[p]/team|User[s]/|mn[t]/|farm[/]|usr/local/cud[a])")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
TEST = re.compile(r"^(TEST|TEST_F|TEST_P)\(\s*(\w+)\s*,\s*(\w+)\s*\)")
OP = re.compile(r"^\s*(?:WEFT_API\s+)?(?:Tensor|\w+Result|std::vector<Tensor>)\s+(\w+)\(")


def tracked():
    """Paths of the checked files: what git tracks, or the whole tree where there is no git (an unpacked archive)."""
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
            if header.startswith("weft/") and header.split("/")[1] not in BELOW[floor]:
                out.append(f"{where}: {floor}/ includes {header}, which lies above it")
            elif '"' in line and header.split("/")[0] not in BELOW:
                out.append(f'{where}: "{header}": write <weft/folder/file.h>')
        private = name.startswith("kernels/cpu/") and (name.endswith(".cpp") or name.startswith("kernels/cpu/isa/"))
        if EIGEN.match(header) and not private and floor not in ("tests", "bench"):
            out.append(f"{where}: Eigen stays in kernels/cpu/*.cpp and kernels/cpu/isa/")
        ours = os.path.isfile(os.path.join(ROOT, "tests", header)) or name.startswith("tests/support/libraries/")
        if CUDA.match(header) and not ours and not name.startswith("kernels/cuda/") and not name.endswith((".cu", ".cuh")):
            out.append(f"{where}: CUDA headers stay in kernels/cuda and tests/support/libraries")
        if header == "zlib.h" and floor in BELOW and name != "tensor/inflate.cpp":
            out.append(f"{where}: zlib stays in tensor/inflate.cpp")
        if GRPC.search(header):
            if floor == "distributed" and name.endswith(".cpp"):
                grpc_files.add(name)
            elif floor in BELOW:
                out.append(f"{where}: gRPC and protobuf stay in at most {MAX_GRPC_FILES} .cpp files of distributed/")


def check_text(name, lines, out):
    for number, line in enumerate(lines, 1):
        if MACHINE_PATH.search(line):
            out.append(f"{name}:{number}: absolute path of a machine: {line.strip()[:80]}")
        if name.startswith("kernels/") and MANAGED.search(line):
            out.append(f"{name}:{number}: managed memory moves by page faults; use allocate: {line.strip()[:80]}")
        if name.endswith(CPP) and UNFINISHED.search(line):
            out.append(f"{name}:{number}: unfinished: {line.strip()[:80]}")
        if name.endswith(CPP + (".cmake", "CMakeLists.txt", ".in")) and TORCH.search(line):
            out.append(f"{name}:{number}: a tie to libtorch: {line.strip()[:80]}")


def check_op_table(names, out):
    """Every op declared in the op headers needs its name in the op table of the tests."""
    tables = [n for n in names if re.match(r"tests/autograd/op_table\w*\.(h|cpp)$", n)]
    headers = [n for n in names if re.match(r"autograd/ops\w*\.h$", n)]
    if not tables or not headers:
        return
    table = "\n".join(read(n) for n in tables)
    words = set(re.findall(r"\w+", table))
    for header in headers:
        for number, line in enumerate(read(header).splitlines(), 1):
            match = OP.match(line)
            if match and match.group(1) not in words and "table: no" not in line:
                out.append(f"{header}:{number}: the op {match.group(1)} has no row in {tables[0]}")


def check_tests(texts, out):
    seen = collections.defaultdict(list)
    for name, lines in texts.items():
        if name.startswith("tests/") and name.endswith(".cpp"):
            for line in lines:
                match = TEST.match(line)
                if match:
                    seen[f"{match.group(2)}.{match.group(3)}"].append(name)
    for case, files in sorted(seen.items()):
        if len(files) > 1:
            out.append(f"{files[1]}: the test {case} exists in {files[0]} too")


def slow_units(path):
    """Compile times above the limit, from a ninja log; the newest entry of an output counts."""
    times = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            fields = line.rstrip("\n").split("\t")
            if len(fields) >= 4 and fields[3].endswith(".o"):
                times[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000.0
    slow = sorted(((t, o) for o, t in times.items() if t > SLOW_UNIT_S), reverse=True)
    print(f"{len(times)} translation units, {sum(times.values()):.0f} s in all, {len(slow)} above {SLOW_UNIT_S:.0f} s")
    for seconds, unit in slow or sorted(((t, o) for o, t in times.items()), reverse=True)[:5]:
        print(f"  {seconds:6.1f} s  {unit}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ninja-log", metavar="FILE", help="report slow translation units from this .ninja_log")
    parser.add_argument("--report-only", action="store_true", help="with --ninja-log: skip the checks")
    options = parser.parse_args()
    if options.ninja_log:
        slow_units(options.ninja_log)
        if options.report_only:
            return 0
    names = tracked()
    out, grpc_files, texts = [], set(), {}
    for name in names:
        text = read(name)
        if text is None:
            continue
        lines = text.splitlines()
        texts[name] = lines
        if name.endswith(CODE) and len(lines) > MAX_LINES:
            out.append(f"{name}: {len(lines)} lines, the limit is {MAX_LINES}")
        if name.endswith(CPP):
            check_includes(name, lines, grpc_files, out)
        check_text(name, lines, out)
    if len(grpc_files) > MAX_GRPC_FILES:
        out.append(f"gRPC and protobuf headers are in {len(grpc_files)} files, the limit is {MAX_GRPC_FILES}: {', '.join(sorted(grpc_files))}")
    check_op_table(names, out)
    check_tests(texts, out)
    for line in out:
        print(line)
    print(f"check_house: {len(names)} files, {len(out)} findings")
    return 1 if out else 0


sys.exit(main())
