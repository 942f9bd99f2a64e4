"""PyTorch's times for the same work, by the first python that can import torch."""
import json
import os
import subprocess
import sys

SCRIPTS = ("bench/peers/torch_peers.py", "bench/peers/torch_programs.py")


def find_torch():
    """WEFT_BENCH_PYTHON if it is set, else the environment that CONTRIBUTING.md makes, else the system's."""
    chosen = os.environ.get("WEFT_BENCH_PYTHON")
    for python in [chosen] if chosen else ["build/torch/bin/python", "python3", "/usr/bin/python3"]:
        try:
            done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"],
                                  capture_output=True, text=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return python, done.stdout.strip()
    if chosen:
        print(f"bench: WEFT_BENCH_PYTHON={chosen} cannot import torch", file=sys.stderr)
    else:
        print("bench: no python with torch was found, the table shows weft alone; CONTRIBUTING.md, section "
              "\"An operation\", makes one", file=sys.stderr)
    return None, None


def run_peers(python, pattern):
    """PyTorch's times in ns under the names of our rows."""
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="ignore")
    times = {}
    for script in SCRIPTS:
        done = subprocess.run([python, script, pattern], env=env, stdout=subprocess.PIPE, text=True,
                              check=False)
        if done.returncode != 0:
            print(f"bench: {script} ended with status {done.returncode}", file=sys.stderr)
        for line in done.stdout.splitlines():
            try:
                row = json.loads(line)
                times[row["name"]] = row["ns"]
            except (ValueError, KeyError, TypeError):
                continue
    return times
