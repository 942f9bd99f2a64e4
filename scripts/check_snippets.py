"""Compiles every ```cpp block of README.md and docs/*.md, and runs those that say so; run as the tests
House.snippets_compile and House.snippets_run.

    check_snippets.py --write FOLDER [--distributed [--inspection]]
                                                        writes core.cpp and distributed.cpp from the pages
    check_snippets.py --run PROGRAM...                  runs the blocks marked `run`, each in a process and
                                                        a folder of its own

The blocks of a page stand in one namespace, in order. A block is the body of a function, or a whole program
if it has an `int main`. A comment of the page directly before a block changes that:

    <!-- snippet: scope run
    code that stands before the block, such as the objects that it uses
    -->

`scope`: the block is no body, it stands in the namespace, and later blocks see its declarations. `run`: the
block is run too, and a program must exit with 0. The code of a `<!-- declare: ... -->` comment stands in the
namespace. A page that mentions the distributed layer goes into distributed.cpp, every other one into
core.cpp. A page that includes the inspection is left out of a build without it.
"""
import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DISTRIBUTED = re.compile(r"\b(rpc|dist_autograd|dist_optim)::|<weft/distributed|\bWEFT_RPC")
PIECE = re.compile(r"^<!-- declare:\n(?P<declared>.*?)^-->$"
                   r"|^(?:<!-- snippet:(?P<words>[ a-z]*)(?:\n(?P<before>.*?))?-->\n)?"
                   r"```cpp\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
INSPECTION = re.compile(r"^#include <weft/distributed/inspection/", re.MULTILINE)
WORDS = {"scope", "run"}
SECONDS = 60


def without_includes(code, includes):
    """The code with each include replaced by an empty line; `includes` gets them."""
    kept = []
    for line in code.split("\n"):
        if line.startswith("#include"):
            includes.add(line)
        kept.append("" if line.startswith("#include") else line)
    return "\n".join(kept)


def page_code(name, text, includes, marked):
    """One namespace with the blocks of a page; `marked` gets (name, call) of each block to run."""
    page = re.sub(r"\W", "_", name.removesuffix(".md"))
    out = [f"namespace page_{page} {{", "using namespace weft;", "using namespace std::chrono_literals;"]
    pieces = list(PIECE.finditer(text))
    for mark, found in (("```cpp", sum(m["code"] is not None for m in pieces)),
                        ("<!-- declare:", sum(m["code"] is None for m in pieces)),
                        ("<!-- snippet:", sum(m["words"] is not None for m in pieces))):
        if text.count(mark) != found:
            raise SystemExit(f"{name}: {text.count(mark)} times {mark}, but {found} of them stand where they "
                             "count")
    for match in pieces:
        group = "declared" if match["declared"] is not None else "code"
        line = text.count("\n", 0, match.start(group)) + 1
        code = without_includes(match[group], includes)
        words = set((match["words"] or "").split())
        if words - WORDS:
            raise SystemExit(f"{name}:{line}: unknown words {sorted(words - WORDS)}")
        if group == "declared":
            out += [f'#line {line} "{name}"', code]
            continue
        block = f"block_{line}"
        before = match["before"] or ""
        first = [f'#line {line - before.count(chr(10)) - 2} "{name}"', before] if before else []
        body = first + [f'#line {line} "{name}"', code]
        call = f"page_{page}::{block}"
        if re.search(r"^int main\(", code, re.MULTILINE):
            body[-1] = (code[:code.rindex("\n}") + 1] + ("  return 0;\n" if ") try {" not in code else "")
                        + code[code.rindex("\n}") + 1:])
            out += [f"namespace {block} {{", *body, "}"]
            call = f"return {call}::main();"
        elif "scope" in words:
            out += body
        else:
            out += [f"void {block}() {{", *body, "}"]
            call += "(); return 0;"
        if "run" in words:
            marked.append((f"{name}:{line}", call))
    return "\n".join([*out, "}", ""])


def write(folder, distributed, inspection):
    """core.cpp and, when asked for, distributed.cpp."""
    units = {"core": ["#include <weft/weft.h>", "#include <weft/cuda.h>"]}
    if distributed:
        units["distributed"] = ["#include <weft/distributed.h>"]
    pages = {unit: [] for unit in units}
    includes = {unit: {"#include <cstdio>", "#include <cstring>", "#include <filesystem>",
                       "#include <iostream>", "#include <thread>"} for unit in units}
    marked = {unit: [] for unit in units}
    for path in [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))]:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if INSPECTION.search(text) and not inspection:
            continue
        unit = "distributed" if any(DISTRIBUTED.search(m["code"] or m["declared"])
                                    for m in PIECE.finditer(text)) else "core"
        if unit in units:
            pages[unit].append(page_code(os.path.relpath(path, ROOT), text, includes[unit], marked[unit]))
    os.makedirs(folder, exist_ok=True)
    for unit, heads in units.items():
        table = "".join(f'  if (which == "{name}") {{ {call} }}\n' for name, call in marked[unit])
        names = "".join(f'  if (which == "--list") std::puts("{name}");\n' for name, _ in marked[unit])
        source = "\n".join(sorted(includes[unit]) + heads + ["", *pages[unit]]) + \
            f'#line 1 "main"\nint main(int, char** argv) {{\n  const std::string which = argv[1];\n' \
            f'{table}{names}}}\n'
        with open(os.path.join(folder, unit + ".cpp"), "w", encoding="utf-8") as file:
            file.write(source)


def run(programs):
    """Runs the marked blocks; returns the exit status."""
    count, failures = 0, []
    for program in programs:
        for name in subprocess.run(
                [program, "--list"], capture_output=True, text=True, check=True).stdout.split():
            count += 1
            with tempfile.TemporaryDirectory() as folder:
                try:
                    done = subprocess.run([program, name], cwd=folder, capture_output=True, text=True,
                                          check=False, timeout=SECONDS)
                    if done.returncode != 0:
                        failures.append(f"{name}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
                except subprocess.TimeoutExpired:
                    failures.append(f"{name}: not done after {SECONDS} s")
    print("\n".join(failures))
    print(f"check_snippets: {count} blocks run, {len(failures)} failed")
    return 1 if failures or count == 0 else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--write", metavar="FOLDER")
    parser.add_argument("--distributed", action="store_true", help="also the pages of the distributed layer")
    parser.add_argument("--inspection", action="store_true", help="also those of the inspection")
    parser.add_argument("--run", metavar="PROGRAM", nargs="+")
    options = parser.parse_args()
    if options.write:
        write(options.write, options.distributed, options.inspection)
    return run(options.run) if options.run else 0


sys.exit(main())
