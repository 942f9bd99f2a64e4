"""Checks that engines.py --check names the products at which the tiles miss their share of oneDNN's rate."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "scripts"))
sys.dont_write_bytecode = True
from bench import engines  # noqa: E402

RUNS = {"slow": {"tile": 100, "onednn": 89}, "equal": {"tile": 100, "onednn": 100},
        "at the goal": {"tile": 100, "onednn": 90}, "slowest": {"tile": 100, "onednn": 50}}
found = engines.behind(RUNS)
failed = 0
if found != [("slowest", 0.5), ("slow", 0.89)]:
    print(f"behind: {found}")
    failed += 1

for lacking, least, missed in (("avx2", RUNS, 2), ("none", RUNS, 4), ("none", {"equal": RUNS["equal"]}, 0)):
    engines.measure = lambda program, isa, engines, l=lacking, runs=least: None if isa == l else runs
    if engines.check("a program") != missed:
        print(f"check without {lacking}: not {missed}")
        failed += 1
print(f"{failed} checks failed")
sys.exit(1 if failed else 0)
