#!/usr/bin/env python3
"""Compares weft's operations, layers, losses, schedules and optimizers with PyTorch's on random cases.

Each case has random shapes, dtypes, layouts, special values and arguments. PyTorch runs in this process; weft
in build/*/bin/compare_cases (cmake --build --preset release --target compare_cases), which is restarted when
a case ends it. A difference is shrunk and printed with its number: --seed S --case N runs it again.
Differences that docs/ops.md states are counted as explained.

PyTorch is needed here and nowhere else; a virtual environment holds it:

    python3 -m venv build/torch && build/torch/bin/pip install torch numpy
    build/torch/bin/python scripts/compare_torch.py --count 100000
"""

import argparse
import json
import os
import re
import sys

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="of all random choices (1)")
    parser.add_argument("--count", type=int, default=10000, help="number of cases (10000)")
    parser.add_argument(
        "--op", metavar="PATTERN", default="", help="only operations whose name this regular expression finds"
    )
    parser.add_argument("--case", type=int, metavar="N", help="run this case alone and print it")
    parser.add_argument(
        "--program", metavar="FILE", help="compare_cases; by default the newest one under build/"
    )
    parser.add_argument(
        "--show",
        type=int,
        default=3,
        metavar="N",
        help="differences shrunk and printed per operation and kind (3)",
    )
    parser.add_argument("--explained", action="store_true", help="also print one case of each explanation")
    parser.add_argument("--list", action="store_true", help="print the operations")
    parser.add_argument(
        "--json", metavar="FILE", help="write the figures of the last line, and those of every operation"
    )
    return parser.parse_args()


def program(path):
    if path:
        return path
    found = [os.path.join(ROOT, "build", preset, "bin", "compare_cases") for preset in ("release", "dev")]
    found = sorted(filter(os.path.exists, found), key=os.path.getmtime)
    if not found:
        sys.exit(
            "compare_torch: build/*/bin/compare_cases is missing: "
            "cmake --build --preset release --target compare_cases"
        )
    return found[-1]


def main():
    options = arguments()
    try:
        import torch
    except ImportError:
        print(
            "compare_torch: skipped: this Python has no torch; --help says how to make an environment",
            file=sys.stderr,
        )
        return 77
    torch.set_num_threads(1)
    from compare import rules, session

    if rules.missing_sentences():
        print("\n".join(rules.missing_sentences()), file=sys.stderr)
        return 1
    specs = session.specs(re.compile(options.op))
    if options.list:
        print("\n".join(spec.name for spec in specs))
        return 0
    if not specs:
        print(f"compare_torch: no operation matches {options.op!r}; --list names them", file=sys.stderr)
        return 2
    if session.without_counterpart(program(options.program)):
        print("\n".join(session.without_counterpart(program(options.program))), file=sys.stderr)
        return 1
    run = session.Session(specs, options.seed, program(options.program), options.show, options.explained)
    figures = run.one(options.case) if options.case is not None else run.all(options.count)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)
    print(
        f"compare: {figures['cases']} cases, {figures['differences']} differences, "
        f"{figures['explained']} explained"
    )
    return 1 if figures["differences"] > figures["explained"] else 0


sys.exit(main())
