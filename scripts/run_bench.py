"""Runs the benchmark programs of build/release/bin, keeps their JSON in bench/results under the machine's
name, and prints one table.

With --peers, bench/peers/*.py are run by a python that can import torch: $WEFT_BENCH_PYTHON,
build/torch/bin/python, or the system's. The rows of scripts/bench/goals.py come first, with PyTorch's time,
the floor and the goal; --goals runs those alone. --repeat runs each of them until two runs agree. A whole
table, or all of the goals, with --peers is written to bench/results too. Rows named growth/WHAT/SIZE are one
cost at growing sizes; their exponents follow the table, and all of them are kept in bench/results. Called by
bench.sh.
"""
import argparse
import os
import sys

sys.dont_write_bytecode = True
from bench import goals, peers, programs, steady, table  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def measured(options, python):
    pattern = programs.exactly(goals.all_rows()) if options.goals else options.filter
    results = steady.Results(python)
    results.run(pattern)
    if options.repeat:
        results.repeat(goals.all_rows())
        for goal in goals.GOALS:
            if goal.pairs and all(name in results.ours for name in (goal.name, *goal.floor.rows)):
                results.pair(goal.name, goal.floor.rows[0])
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--filter", default=".", help="a regular expression of names (default: all)")
    parser.add_argument("--goals", action="store_true", help="only the rows of the table of goals")
    parser.add_argument("--peers", action="store_true", help="PyTorch beside weft")
    parser.add_argument("--repeat", action="store_true", help="run the rows of the goals until they agree")
    options = parser.parse_args()
    if options.goals and options.filter != ".":
        parser.error("--goals takes no filter")
    os.chdir(ROOT)
    if not programs.all_programs():
        print(f"bench: no benchmark programs in {programs.BIN}", file=sys.stderr)
        return 1
    python, torch = peers.find_torch() if options.peers else (None, None)
    if options.peers and not python and os.environ.get("WEFT_BENCH_PYTHON"):
        return 1
    results = measured(options, python)
    blocks = [table.goal_lines(results), table.splits(results), table.reasons(results),
              table.without_floor(results), table.other_lines(results),
              table.exponent_lines(results) + table.notes(results, options.repeat)]
    for block in blocks:
        if block:
            print("\n" + "\n".join(block))
    if options.filter in (".", "growth/") and any(name.startswith("growth/") for name in results.ours):
        print("written to " + table.write_growth(results))
    if results.peers and options.filter == ".":
        flags = [flag for flag in ("goals", "peers", "repeat") if getattr(options, flag)]
        command = "scripts/bench.sh " + " ".join(f"--{flag}" for flag in flags)
        print("written to " + table.write_record(results, command, torch, options.repeat))
    print(f"{len(results.ours)} benchmarks on {programs.machine()}")
    return 1 if results.failed or not results.ours or table.unexplained(results) else 0


if __name__ == "__main__":
    sys.exit(main())
