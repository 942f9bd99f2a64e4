"""Counts the instructions of short paths under callgrind and compares them with the table in the tree.

  check_instructions.py --program build/release/bin/bench_hot_paths            compare
  check_instructions.py --program build/release/bin/bench_hot_paths --record   write the table

A path's count is per repetition: the difference of two runs, so that the start of the program is not in it.
It depends on the compiler, and on the instruction set, which is AVX2 here on every machine. The table,
bench/results/instructions.json, has one column per compiler version. A count above the table's by more than
the tolerance fails. One below it by as much is named, for the table to be written again. A layer, PATH_layer,
is held to the table besides by the instructions that it adds to the operation PATH. Exits 77 with the reason
without valgrind, without AVX2, and for a compiler that the table does not know.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = os.path.join(ROOT, "bench", "results", "instructions.json")
TOLERANCE = 0.04
LAYER_TOLERANCE = 10  # instructions that a layer may add to an operation, beyond those of the table
FEW, MANY = 50, 250  # repetitions of the two runs


def skip(reason):
    print("instructions were not counted: " + reason)
    sys.exit(77)


def collected(program, path, times):
    environment = dict(os.environ, WEFT_ISA="avx2", ONEDNN_MAX_CPU_ISA="AVX2")
    run = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program, path, str(times)],
        env=environment, capture_output=True, text=True, timeout=100, check=False)
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or not found:
        sys.exit("%s %s %d under callgrind: exit status %d\n%s"
                 % (program, path, times, run.returncode, run.stderr[-2000:]))
    return int(found.group(1))


def line(path, before, now):
    return "%-26s %12s %12d" % (path, before, now)


def judge(known, counts):
    """The lines of the table, and the paths with more and with fewer instructions than it has."""
    lines, over, under = [], [], []
    for path, now in counts.items():
        before = known.get(path)
        lines.append(line(path, before, now))
        if before is None or now > before * (1 + TOLERANCE):
            over.append(path)
        elif now < before * (1 - TOLERANCE):
            under.append(path)
    for path in counts:
        operation = path.removesuffix("_layer")
        if operation == path or operation not in counts or operation not in known or path not in known:
            continue
        added, before = counts[path] - counts[operation], known[path] - known[operation]
        lines.append(line(path + " adds", before, added))
        if added > before + LAYER_TOLERANCE:
            over.append("those added by " + path)
    return lines, over, under


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", required=True, help="bench_hot_paths of a release build")
    parser.add_argument("--record", action="store_true", help="write this compiler's column of the table")
    parser.add_argument("--path", help="count this path alone")
    parser.add_argument("--slower", type=float, default=1,
                        help="multiply the counts, as a change would that the check must refuse")
    parser.add_argument("--table", default=TABLE, help="default: bench/results/instructions.json")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        skip("valgrind is missing (Debian: valgrind)")
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        if " avx2 " not in file.read():
            skip("this processor has no AVX2")
    lines = subprocess.run([options.program], capture_output=True, text=True, check=True).stdout.split("\n")
    compiler, paths = lines[0], [path for path in lines[1:-1] if options.path in (None, path)]
    table = {}
    if os.path.exists(options.table):
        with open(options.table, encoding="utf-8") as file:
            table = json.load(file)
    if compiler not in table and not options.record:
        skip("the table has no column for " + compiler)
    known = table.get(compiler, {})
    counts = {}
    print("%-26s %12s %12s  instructions, %s" % ("", "table", "now", compiler))
    for path in paths:
        few, many = (collected(options.program, path, times) for times in (FEW, MANY))
        counts[path] = round(options.slower * (many - few) / (MANY - FEW))
    lines, over, under = judge(known, counts)
    print("\n".join(lines))
    if options.record:
        table[compiler] = counts
        with open(options.table, "w", encoding="utf-8") as file:
            json.dump(table, file, indent=2, sort_keys=True)
            file.write("\n")
        return 0
    if under:
        print("fewer instructions than the table has; write it again with --record: " + ", ".join(under))
    if over:
        print("more instructions than the table has, by over %d %% (a layer: %d), or not in it: %s"
              % (100 * TOLERANCE, LAYER_TOLERANCE, ", ".join(over)))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
