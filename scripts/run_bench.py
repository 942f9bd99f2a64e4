"""Runs the benchmark programs of build/release/bin, keeps their JSON in bench/results under the machine's
name, and prints one table.

With --peers yes, bench/peers/torch_peers.py is run by the first python that can import torch. It prints one
JSON line per case, under the name of our benchmark that does the same work. The table shows both with their
ratio. Rows named growth/WHAT/SIZE are one cost at growing sizes; their exponents follow the table. Called by
bench.sh.
"""
import argparse
import json
import math
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = "build/release/bin"
UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))
TO_NS = {unit: factor for unit, factor in UNITS}


def machine():
    """The processor and its cores, as a file name: hosts come and go under random names."""
    model = "cpu"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            match = re.search(r"^model name\s*:\s*(.+)$", file.read(), re.MULTILINE)
            model = match.group(1) if match else model
    except OSError:
        pass
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") + f"-{os.cpu_count()}-cores"


def shown(ns):
    for unit, factor in UNITS:
        if ns >= factor or unit == "ns":
            return f"{ns / factor:.3g} {unit}" if ns / factor < 1000 else f"{ns / factor:.0f} {unit}"
    return ""


def run_program(program, pattern):
    """Its rows as {name: (ns, extra)}; the JSON is kept when every benchmark of the program ran."""
    kept = os.path.join("bench", "results", f"{program}.{machine()}.json")
    out = kept if pattern == "." else os.path.join("build", f"{program}.json")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    if os.path.exists(out) and pattern != ".":
        os.remove(out)
    command = [f"./{BIN}/{program}", f"--benchmark_out={out}", "--benchmark_out_format=json",
               f"--benchmark_filter={pattern}"]
    if subprocess.run(command, check=False).returncode != 0:
        print(f"bench: {program} failed", file=sys.stderr)
        return None
    try:
        with open(out, encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError):
        return {}  # nothing in this program matched the filter
    data["context"]["host_name"] = machine()
    with open(out, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")
    rows = {}
    for row in data["benchmarks"]:
        if row.get("run_type") == "aggregate" and row.get("aggregate_name") != "median":
            continue
        if row.get("error_occurred"):
            print(f"bench: {row['name']}: {row.get('error_message', 'failed')}", file=sys.stderr)
            continue
        rate = next((f"{row[key]:.4g} {text}"
                     for key, text in (("items_per_second", "items/s"), ("bytes_per_second", "bytes/s"),
                                    ("messages", "messages"))
                     if key in row), "")
        rows[row.get("run_name", row["name"])] = (row["real_time"] * TO_NS[row["time_unit"]], rate)
    return rows


def find_torch():
    for python in ("python3", "/usr/bin/python3"):
        done = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
        if done.returncode == 0:
            return python
    return None


def run_peers(pattern):
    """PyTorch's times in ns under our names; empty when there is no torch."""
    python = find_torch()
    if python is None:
        print("bench: no python with torch was found (Debian: python3-torch), the table shows weft alone",
              file=sys.stderr)
        return {}
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="ignore")
    done = subprocess.run([python, "bench/peers/torch_peers.py", pattern], env=env, stdout=subprocess.PIPE,
                          text=True, check=False)
    if done.returncode != 0:
        print(f"bench: the PyTorch side ended with status {done.returncode}", file=sys.stderr)
    peers = {}
    for line in done.stdout.splitlines():
        try:
            row = json.loads(line)
            peers[row["name"]] = row["ns"]
        except (ValueError, KeyError, TypeError):
            continue
    return peers


def exponents(rows):
    """The power of the size with which the cost grows, between each two neighbouring sizes."""
    families = {}
    for name, (ns, _) in rows.items():
        match = re.fullmatch(r"growth/(\w+)/(\d+)(/.*)?", name)
        if match:
            families.setdefault(match.group(1), []).append((int(match.group(2)), ns))
    for what, points in families.items():
        steps = [f"{math.log(b / a) / math.log(n / m):.2f} from {m} to {n}"
                 for (m, a), (n, b) in zip(points, points[1:])]
        print(f"cost over {what}, exponent: {', '.join(steps)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--filter", default=".")
    parser.add_argument("--peers", choices=("yes", "no"), default="no")
    options = parser.parse_args()
    os.chdir(ROOT)
    found = os.listdir(BIN) if os.path.isdir(BIN) else []
    programs = sorted(f for f in found if f.startswith("bench_") and f != "bench_hot_paths")
    if not programs:
        print(f"bench: no benchmark programs in {BIN}", file=sys.stderr)
        return 1
    rows, failed = {}, False
    for program in programs:
        found = run_program(program, options.filter)
        failed = failed or found is None
        rows.update(found or {})
    peers = run_peers(options.filter) if options.peers == "yes" else {}
    width = max([len(name) for name in rows] + [9])
    print(f"\n{'benchmark':<{width}}  {'weft':>10}" + (f"  {'PyTorch':>10}  {'ratio':>6}" if peers else "")
          + "  rate")
    for name, (ns, rate) in rows.items():
        line = f"{name:<{width}}  {shown(ns):>10}"
        if peers:
            other = peers.get(name)
            line += f"  {shown(other):>10}  {other / ns:6.2f}" if other else f"  {'':>10}  {'':>6}"
        print(line + f"  {rate}")
    if peers:
        print("ratio: PyTorch's time divided by weft's; above 1 weft is faster")
    exponents(rows)
    print(f"{len(rows)} benchmarks on {machine()}")
    return 1 if failed or not rows else 0


sys.exit(main())
