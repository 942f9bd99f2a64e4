"""Gives scripts/check_instructions.py counts beside a table; it has to name those that are too large."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "scripts"))
sys.dont_write_bytecode = True
import check_instructions  # noqa: E402

TABLE = {"add": 650, "linear": 2200, "linear_layer": 2290}
CASES = [
    ({}, [], []),
    ({"add": 670}, [], []),
    ({"add": 680}, ["add"], []),
    ({"add": 600}, [], ["add"]),
    ({"other": 5}, ["other"], []),
    ({"linear_layer": 2299}, [], []),
    ({"linear_layer": 2302}, ["those added by linear_layer"], []),  # by half a percent of the layer
    ({"linear": 2150, "linear_layer": 2280}, ["those added by linear_layer"], []),
    ({"linear": 2240, "linear_layer": 2330}, [], []),
    ({"linear_layer": 2400}, ["linear_layer", "those added by linear_layer"], []),
]
failed = 0
for changed, over, under in CASES:
    found = check_instructions.judge(TABLE, {**TABLE, **changed})[1:]
    if found != (over, under):
        print(f"{changed}: {found}, expected {(over, under)}")
        failed += 1
if check_instructions.judge(TABLE, {"linear_layer": 2302})[1:] != ([], []):
    print("a layer was judged without its operation")
    failed += 1
print(f"{len(CASES)} tables, {failed} checks failed")
sys.exit(1 if failed else 0)
