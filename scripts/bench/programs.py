"""Runs weft's programs and gives their rows: the benchmark programs, and examples that tell a rate."""
import json
import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass

BIN = "build/release/bin"
TO_NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}


@dataclass
class Row:
    ns: float
    rate: str = ""
    split: str = ""  # where the time of a step goes


@dataclass(frozen=True)
class Example:
    """A run of an example as a benchmark: a step takes `per_step / figure` seconds, by its JSON's figure."""
    program: str
    flags: str
    figure: str
    per_step: float
    unit: str
    parts: tuple = ()  # figures of the JSON in microseconds per step, named PART_us_per_step

    def rate(self, value):
        return f"{value / self.per_step:.4g} {self.unit}"


WORDS = "build/bench/words"  # the folder of a text with 10,000 different words
LARGE = f"--data {WORDS} --threads 1 --max-steps 60 --epochs 1"
TOY = "--tutorial --threads 1 --epochs 200"
POLE = "--max-episodes 250 --compile --calls "
POLE_PARTS = ("environment", "calls", "agent", "learning")
EXAMPLES = {
    "CartPole/two": Example("cartpole", POLE + "two", "steps_per_s", 1, "steps/s", POLE_PARTS),
    "CartPole/fused": Example("cartpole", POLE + "fused", "steps_per_s", 1, "steps/s", POLE_PARTS),
    "Rnn/tutorial/local": Example("rnn", TOY + " --mode local", "tokens_per_s", 15, "steps/s"),
    "Rnn/tutorial/split": Example("rnn", TOY + " --mode distributed", "tokens_per_s", 15, "steps/s"),
    "Rnn/10000/200/local": Example("rnn", LARGE + " --mode local", "tokens_per_s", 700, "steps/s"),
    "Rnn/10000/200/split": Example("rnn", LARGE + " --mode distributed", "tokens_per_s", 700, "steps/s"),
    "Rnn/10000/200/split_loss": Example("rnn", LARGE + " --mode distributed --decoder remote-loss",
                                        "tokens_per_s", 700, "steps/s"),
}


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


def exactly(names):
    """A pattern for these names alone, as Google Benchmark and Python both read it."""
    return "^(" + "|".join(re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", name) for name in names) + ")$"


NOT_TIMED = ("bench_hot_paths", "bench_gpu", "bench_gpu_emulated")


def all_programs():
    found = os.listdir(BIN) if os.path.isdir(BIN) else []
    return sorted(f for f in found if f.startswith("bench_") and f not in NOT_TIMED)


def rate_of(row):
    return next((f"{row[key]:.4g} {text}"
                 for key, text in (("items_per_second", "items/s"), ("bytes_per_second", "bytes/s"),
                                   ("messages", "messages"))
                 if key in row), "") + (f", {row['visits']:.4g} visits" if "visits" in row else "")


def run_benchmarks(program, pattern):
    """Its rows as {name: Row}; None if it failed. The JSON is kept when every benchmark of the program ran.
    A row is the median of its calls where the program has counted that (p50_us), else their mean."""
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
        ns = row["p50_us"] * 1e3 if "p50_us" in row else row["real_time"] * TO_NS[row["time_unit"]]
        rows[row.get("run_name", row["name"])] = Row(ns, rate_of(row))
    return rows


def write_words():
    """A text of 9,999 words and the mark of a line's end, drawn evenly; each word comes once at least."""
    if os.path.exists(os.path.join(WORDS, "test.txt")):
        return
    os.makedirs(WORDS, exist_ok=True)
    draws = random.Random(1)
    words = [f"w{i}" for i in range(9999)]
    for name, count in (("train", 60_000), ("valid", 800), ("test", 800)):
        text = words[:] if name == "train" else []
        text += draws.choices(words, k=count - len(text))
        draws.shuffle(text)
        with open(os.path.join(WORDS, f"{name}.txt"), "w", encoding="utf-8") as file:
            for at in range(0, len(text), 20):
                file.write(" ".join(text[at:at + 20]) + "\n")


def run_example(name):
    """Its row as {name: Row}; None if it failed, {} if the program was not built."""
    example = EXAMPLES[name]
    if not os.path.exists(os.path.join(BIN, example.program)):
        print(f"bench: {name} needs {BIN}/{example.program}", file=sys.stderr)
        return {}
    if WORDS in example.flags:
        write_words()
    out = os.path.join("build", "bench_example.json")
    command = [f"./{BIN}/{example.program}", *example.flags.split(), "--json", out]
    print("bench: " + " ".join(command), flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        print(f"bench: {name} failed\n{done.stdout[-2000:]}", file=sys.stderr)
        return None
    with open(out, encoding="utf-8") as file:
        figures = json.load(file)
    value = figures[example.figure]
    split = ", ".join(f"{part} {figures[f'{part}_us_per_step']:.1f} us" for part in example.parts)
    return {name: Row(1e9 * example.per_step / value, example.rate(value), split)}
