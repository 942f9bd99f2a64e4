"""Makes the table of the engines of the CPU's matrix product, kernels/cpu/isa/engines.h, from measurements.

    python3 scripts/bench/engines.py build/release/bin/bench_engines [--measured TEXT | --check]

Runs the program for each instruction set and engine, in rounds. The machine needs all sets, and nothing else
to do. A class of products is the layout of b, a band of rows m and a band of the size n * k of b. It gets the
engine with the least time, as the geometric mean over its products, but the tiles where they reach the share
below of its speed. The share is less for a transposed b, as most weights are: the tiles can keep their packs.

With --check it writes nothing. It names the products at which the tiles reach less than 0.9 of oneDNN's rate,
each by the best of three turns, and exits 1 if there are any.
"""
import argparse
import collections
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "kernels/cpu/isa/engines.h"
# by set: its macro, and the limit of oneDNN
SETS = {"avx512": ("__AVX512F__", "AVX512_CORE"), "avx2": ("__AVX2__", "AVX2")}
ROWS = [(1, 1), (2, 8), (9, 16), (17, 32), (33, 96), (97, 512), (513, None)]
SIZES = [(1, 2**14), (2**14 + 1, 2**18), (2**18 + 1, None)]
ENGINES, ROUNDS = ["tile", "eigen", "onednn"], 3
WORK = 1 << 17  # multiply-adds
GOAL = 0.9  # of oneDNN's rate, which --check wants from the tiles
ENOUGH = {False: 0.92, True: 0.8}  # of the best speed, which the tiles need; by b transposed

HEAD = '''// The engine of a product in float32 by its shape, made by scripts/bench/engines.py.
// The tiles compute a product that is in no row. Every version of oneDNN gets the same rows.{measured}
#pragma once

#include <weft/kernels/cpu/gemm.h>
#include <weft/kernels/cpu/isa/vec.h>

namespace weft::kernels::WEFT_ISA_NS {{

// Below them a call of a library costs more than it saves.
inline constexpr int64_t kEngineSide = 32, kEngineWork = {work};

struct EngineRow {{
  GemmEngine engine;
  bool transposed_b;
  int64_t least_m, most_m, least_b, most_b;  // rows of a, and numbers of b
}};
inline constexpr int64_t kAny = int64_t{{1}} << 62;
inline constexpr EngineRow kNoEngine{{GemmEngine::kTile, false, 1, 0, 1, 0}};

'''


def measure(program, isa, engines):
    """{name of a product: {engine: least ns}} for one instruction set; None where the machine lacks it."""
    least = collections.defaultdict(dict)
    for engine in engines * ROUNDS:
        env = dict(os.environ, WEFT_ISA=isa, WEFT_GEMM=engine, WEFT_PACK_BYTES="0",
                   DNNL_MAX_CPU_ISA=SETS[isa][1])
        run = subprocess.run([program, "--benchmark_format=json", "--benchmark_min_time=0.01",
                              "--benchmark_repetitions=3"], env=env, capture_output=True, text=True)
        if run.returncode != 0:
            if engine == "tile":
                return None
            sys.exit(f"engines: WEFT_GEMM={engine} {program}: {run.stderr.strip()}")
        for row in json.loads(run.stdout)["benchmarks"]:
            if row["run_type"] == "iteration":
                known = least[row["run_name"]]
                known[engine] = min(known.get(engine, math.inf), row["cpu_time"])
    return least


def classes(least):
    """The products by class: (transposed b, band of m, band of n * k) to [{engine: least ns}]."""
    found = collections.defaultdict(list)
    for name, by_engine in least.items():
        _, layout, m, n, k = name.split("/")
        if int(m) * int(n) * int(k) < WORK:  # the tiles take it in any case
            continue
        found[layout[1] == "T", band(ROWS, int(m)), band(SIZES, int(n) * int(k))].append(by_engine)
    return found


def band(bands, value):
    return next(b for b in bands if value >= b[0] and (b[1] is None or value <= b[1]))


def choose(products, transposed_b):
    """The engine of a class, and its speed as a multiple of that of the tiles."""
    mean = {e: math.exp(sum(math.log(p[e]) for p in products) / len(products)) for e in ENGINES}
    best = min(mean, key=mean.get)
    gain = mean["tile"] / mean[best]
    return (best, gain) if gain * ENOUGH[transposed_b] > 1 else ("tile", 1.0)


def rows_of(least):
    """Lines of the table; bands of rows that follow each other with the same engine are one line."""
    chosen = {key: choose(products, key[0]) for key, products in classes(least).items()}
    lines = []
    for transposed_b in (False, True):
        for size in SIZES:
            runs = []
            for rows in ROWS:
                engine, gain = chosen.get((transposed_b, rows, size), ("tile", 1.0))
                if runs and runs[-1][0] == engine:
                    runs[-1][2] = rows[1]
                    runs[-1][3].append(gain)
                else:
                    runs.append([engine, rows[0], rows[1], [gain]])
            for engine, first, last, gains in runs:
                if engine == "tile":
                    continue
                text = "Onednn" if engine == "onednn" else "Eigen"
                span = ", ".join(str(x) if x else "kAny" for x in (first, last, size[0], size[1]))
                least, most = f"{min(gains):.2f}", f"{max(gains):.2f}"
                side = "true" if transposed_b else "false"
                gain = least if least == most else f"{least} to {most}"
                lines.append((f"    {{GemmEngine::k{text}, {side}, {span}}},",
                              f"// {gain} times as fast as the tiles"))
    width = max((len(code) for code, _ in lines), default=0)
    return [f"{code:{width}}  {comment}\n" for code, comment in lines]


def behind(least):
    """The products at which the tiles miss the goal, with their share of oneDNN's rate, the least first."""
    shares = {name: ns["onednn"] / ns["tile"] for name, ns in least.items()}
    return sorted(((name, share) for name, share in shares.items() if share < GOAL), key=lambda row: row[1])


def check(program):
    """Names the products that miss the goal, in each instruction set of the machine. Returns their number."""
    missed = 0
    for isa in SETS:
        least = measure(program, isa, ["tile", "onednn"])
        if least is None:
            print(f"engines: this machine lacks {isa}")
            continue
        rows = behind(least)
        missed += len(rows)
        print(f"engines: {isa}, {len(rows)} of {len(least)} products below {GOAL} of oneDNN's rate")
        for name, share in rows:
            print(f"  {name}: {share:.3f}")
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("program", nargs="?", default=str(ROOT / "build/release/bin/bench_engines"))
    parser.add_argument("--measured", default="", help="a sentence on machine and oneDNN, for the head")
    parser.add_argument("--check", action="store_true",
                        help=f"exit 1 and name the products below {GOAL} of oneDNN's rate")
    args = parser.parse_args()
    if args.check:
        sys.exit(1 if check(args.program) else 0)
    measured = "\n// ".join([""] + textwrap.wrap(args.measured, 105))
    text = HEAD.format(measured=measured, work=WORK)
    for number, isa in enumerate(SETS):
        least = measure(args.program, isa, ENGINES)
        if least is None:
            sys.exit(f"engines: this machine lacks {isa}, so it cannot make the table")
        text += f"#{'el' * (number > 0)}if defined({SETS[isa][0]})\n"
        text += "inline constexpr EngineRow kEngineRows[] = {\n    kNoEngine,\n"
        text += "".join(rows_of(least)) + "};\n"
    text += ("#else\ninline constexpr EngineRow kEngineRows[] = {kNoEngine};\n#endif\n\n"
             "}  // namespace weft::kernels::WEFT_ISA_NS\n")
    TABLE.write_text(text)
    if shutil.which("clang-format-14"):
        subprocess.run(["clang-format-14", "-i", str(TABLE)], check=True)
    print(f"engines: wrote {TABLE}")


if __name__ == "__main__":
    main()
