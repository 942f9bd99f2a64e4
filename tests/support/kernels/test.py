"""Expects scripts/check_kernels.py to name each kernel of planted.cu that breaks a limit, for its reason.

  test.py OBJECT    the object file of planted.cu
"""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CHECK = os.path.join(HERE, "..", "..", "..", "scripts", "check_kernels.py")
COLUMNS = ("registers", "stack", "loops", "loads", "ahead")
EXPECTED = ["planted_%s: %s " % (column, column) for column in COLUMNS]
EXPECTED += ["unplanned: no row of the table covers it", "no kernel is covered by planted_absent first",
             "planted_double: double ", "planted_loose: ahead 2"]

run = subprocess.run([sys.executable, CHECK, sys.argv[1], "--table", os.path.join(HERE, "planted.txt")],
                     capture_output=True, text=True, check=False)
print(run.stdout + run.stderr)
if run.returncode == 77:
    sys.exit(77)
findings = run.stdout.rstrip("\n").split("\n")[:-1]
missing = [text for text in EXPECTED if not any(text in finding for finding in findings)]
other = [finding for finding in findings if not any(text in finding for text in EXPECTED)]
for text in missing:
    print("not found: " + text)
for finding in other:
    print("not expected: " + finding)
sys.exit(1 if missing or other or run.returncode != 1 else 0)
