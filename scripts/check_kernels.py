"""Compares the machine code of weft's CUDA kernels with the table in the tree. It needs no GPU.

  check_kernels.py OBJECT...             compare the kernels in these object files, which have code for sm_90
  check_kernels.py OBJECT... --list      print each kernel's numbers instead

A row of the table, tests/cuda/kernels.txt, has limits and the names of the kernels that it covers, of which
` | ` parts several. A kernel has the limits of the first row that covers it. One without a row fails, and so
does a row without a kernel.
The numbers of a kernel are
  registers  of a thread; they decide how many blocks a processor holds
  stack      bytes of a thread: spilt registers, and arrays that a variable indexes
  loops      instructions within loops that access the stack
  loads      instructions that load 16 bytes
  ahead      of these, the most that are issued before any of their numbers is used; it hides the latency
The first three may not be above the row's numbers, and loads not below. Loads ahead are as many as the row
says, so that no kernel has the limit of a worse one; `2+` allows more. A row `double N NAMES` limits the
instructions of the kernels of these names that compute in double or convert from or to it. The disassemblers
are those that scripts/setup.sh --cuda installs, or else those on PATH. Exits 77 with the reason without them.
"""
import argparse
import collections
import fnmatch
import glob
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = os.path.join(ROOT, "tests", "cuda", "kernels.txt")
COLUMNS = ("registers", "stack", "loops", "loads", "ahead")
Kernel = collections.namedtuple("Kernel", ("name",) + COLUMNS + ("double",))
Row = collections.namedtuple("Row", ("line", "pattern") + COLUMNS + ("more",))
DoubleRow = collections.namedtuple("DoubleRow", ("line", "pattern", "limit"))

INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
FUNCTION = re.compile(r"^\s*Function : (\S+)")
USAGE = re.compile(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+)")
TARGET = re.compile(r"0x([0-9a-f]+)")
REGISTER = re.compile(r"\bR(\d+)(\.64)?\b")
DOUBLE = re.compile(r"^(D(ADD|MUL|FMA|SETP|MNMX|MMA)\b|(F2F|F2I|I2F|FRND|MUFU)\..*(\bF64|64H))")


def skip(reason):
    print("the kernels were not read: " + reason)
    sys.exit(77)


def tool(name):
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    places = [*glob.glob(os.path.join(cache, "weft", "disassemblers", "**", "bin"), recursive=True),
              *os.environ.get("PATH", "").split(os.pathsep)]
    found = shutil.which(name, path=os.pathsep.join(places))
    if not found:
        skip("%s is missing (scripts/setup.sh --cuda installs it)" % name)
    return found


def width(opcode):
    """The registers of a number that the instruction loads or stores."""
    return 4 if ".128" in opcode else 2 if ".64" in opcode else 1


def loops_of(code):
    """The ranges [begin, end] of addresses that a branch back to `begin` makes a loop."""
    found = []
    for address, opcode, operands in code:
        if opcode.split(".")[0] in ("BRA", "BRX", "JMP"):
            target = TARGET.search(operands)
            # a branch to itself pads the end of a kernel
            if target and int(target.group(1), 16) < address:
                found.append((int(target.group(1), 16), address))
    return found


def most_ahead(code):
    """The largest number of 16-byte loads of which none is used before the last one is issued. The code is
    read in its order, which ends at a branch back: another round of the loop is no load ahead."""
    best, pending = 0, []  # pending: sets of registers of loads without a use, in order
    backs = {end for _, end in loops_of(code)}
    for address, opcode, operands in code:
        base = opcode.split(".")[0]
        parts = operands.split(",", 1)
        is_load = base in ("LDG", "LD") and ".128" in opcode
        stores = base in ("STG", "ST", "STS", "STL", "RED", "ATOM", "ATOMG")
        read = operands if stores or base in ("BRA", "EXIT") else parts[1] if len(parts) > 1 else ""
        used = set()
        for number, wide in REGISTER.findall(read):
            used.update(range(int(number), int(number) + (2 if wide else 1)))
        if stores:  # its last operand is the number that it stores
            last = REGISTER.findall(parts[-1])
            if last:
                first = int(last[-1][0])
                used.update(range(first, first + width(opcode)))
        for at, registers in enumerate(pending):
            if registers & used:
                pending = pending[at + 1:]
                break
        if is_load:
            first = REGISTER.search(parts[0])
            if first:
                pending.append(set(range(int(first.group(1)), int(first.group(1)) + 4)))
                best = max(best, len(pending))
        if address in backs or base in ("EXIT", "RET") and opcode == base and not pending:
            pending = []
    return best


def kernels_of(path, tools):
    run = subprocess.run([tools["cuobjdump"], "-arch", "sm_90", "-res-usage", "-sass", path],
                         capture_output=True, text=True, check=False,
                         env=dict(os.environ, PATH=os.path.dirname(tools["nvdisasm"]) + os.pathsep
                                  + os.environ.get("PATH", "")))
    if run.returncode != 0:
        sys.exit("cuobjdump of %s: exit status %d\n%s" % (path, run.returncode, run.stderr[-2000:]))
    usage = {name: (int(registers), int(stack))
             for name, registers, stack in USAGE.findall(run.stdout + run.stderr)}
    kernels, code, name = [], [], None

    def close():
        if name is None or name not in usage:
            return
        loops = loops_of(code)
        local = sum(1 for address, opcode, _ in code if opcode.split(".")[0] in ("LDL", "STL")
                    and any(begin <= address <= end for begin, end in loops))
        loads = sum(1 for _, opcode, _ in code if opcode.split(".")[0] in ("LDG", "LD") and ".128" in opcode)
        double = sum(1 for _, opcode, _ in code if DOUBLE.match(opcode))
        kernels.append(Kernel(name, *usage[name], local, loads, most_ahead(code), double))

    for line in run.stdout.split("\n"):
        function = FUNCTION.match(line)
        if function:
            close()
            code, name = [], function.group(1)
            continue
        instruction = INSTRUCTION.match(line)
        if instruction:
            code.append((int(instruction.group(1), 16), instruction.group(3), instruction.group(4)))
    close()
    return kernels


def short_names(kernels):
    """The body of each kernel without the names of weft's namespaces: Map<Exp<float>, float, float, 1>."""
    names = "\n".join(kernel.name for kernel in kernels)
    readable = subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True).stdout
    short = []
    for name in readable.rstrip("\n").split("\n"):
        body = re.search(r"\brun<(.*?)>\(", name)
        text = body.group(1).strip() if body else name
        text = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|"
                      r"\b(?:weft|cuda|kernels|functors|step_cuda|reduction|step)::", "", text)
        short.append(re.sub(r"\s+>", ">", text))
    return [kernel._replace(name=text) for kernel, text in zip(kernels, short)]


def rows_of(path):
    rows, doubles = [], []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split("#")[0].split(None, len(COLUMNS))
            if not words:
                continue
            if words[0] == "double" and len(words) > 2 and words[1].isdigit():
                pattern = line.split("#")[0].split(None, 2)[2].strip()
                doubles.append(DoubleRow(number, pattern, int(words[1])))
                continue
            more = len(words) > len(COLUMNS) and words[-2].endswith("+")
            limits = words[:-2] + [words[-2].rstrip("+")] if more else words[:-1]
            if len(words) <= len(COLUMNS) or not all(word.isdigit() for word in limits):
                sys.exit("%s:%d: a row has %d numbers and a pattern" % (path, number, len(COLUMNS)))
            rows += [Row(number, pattern, *map(int, limits), more)
                     for pattern in words[-1].strip().split(" | ")]
    return rows, doubles


def covers(pattern, name):
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("objects", nargs="+", help="object files with kernels for sm_90")
    parser.add_argument("--table", default=TABLE, help="default: tests/cuda/kernels.txt")
    parser.add_argument("--list", action="store_true", help="print the numbers, compare nothing")
    options = parser.parse_args()
    tools = {name: tool(name) for name in ("cuobjdump", "nvdisasm")}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        kernels = [kernel for some in pool.map(lambda path: kernels_of(path, tools), options.objects)
                   for kernel in some]
    if not kernels:
        skip("the objects have no code for sm_90")
    kernels = sorted(set(short_names(kernels)))
    if options.list:
        for kernel in kernels:
            print("%9d %5d %5d %5d %5d  %s  (double %d)" % (
                kernel[1:-1] + (kernel.name, kernel.double)))
        return 0
    rows, doubles = rows_of(options.table)
    findings, met = [], set()
    for kernel in kernels:
        row = next((row for row in rows if covers(row.pattern, kernel.name)), None)
        if row is None:
            findings.append("%s: no row of the table covers it" % kernel.name)
            continue
        met.add(row)
        for column in COLUMNS:
            has, limit = getattr(kernel, column), getattr(row, column)
            least = column in ("loads", "ahead")
            if has < limit if least else has > limit:
                findings.append("%s: %s %d, the table's line %d says at %s %d" % (
                    kernel.name, column, has, row.line, "least" if least else "most", limit))
        if kernel.ahead > row.ahead and not row.more:
            findings.append("%s: ahead %d, the table's line %d says %d and would let it lose them" % (
                kernel.name, kernel.ahead, row.line, row.ahead))
        for double in doubles:
            if not covers(double.pattern, kernel.name):
                continue
            met.add(double)
            if kernel.double > double.limit:
                findings.append("%s: double %d, the table's line %d says at most %d" % (
                    kernel.name, kernel.double, double.line, double.limit))
    findings += ["%s:%d: no kernel is covered by %s first" % (os.path.basename(options.table), row.line,
                                                              row.pattern)
                 for row in rows + doubles if row not in met]
    for finding in findings:
        print(finding)
    print("check_kernels: %d kernels, %d rows, %d findings" % (len(kernels), len(rows), len(findings)))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
