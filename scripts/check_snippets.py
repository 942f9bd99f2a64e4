"""Compiles every ```cpp block of README.md and docs/*.md, and runs those that say so; run as the tests
House.snippets_compile and House.snippets_run.

    check_snippets.py --write FOLDER [--distributed [--inspection]]
                                                        writes core.cpp and distributed.cpp from the pages
    check_snippets.py --run PROGRAM...                  runs the blocks marked `run`, each in a process and
                                                        a folder of its own

The blocks of a page stand in one namespace, in order. A block is the body of a function, or a whole program
if it has an `int main`. A comment of the page directly before a block changes that:

    <!-- snippet: run
    code that stands before the block, such as the objects that it uses
    -->

Each block has such a comment, with one of these words:
    run                 the block is run; a program must exit with 0
    group NAME...       run on the first worker of a group of these names; the others serve it
    launch NAME...      the block joins the group itself; the others join and serve
    each NAME...        every worker runs the block, which joins the group itself; `name` is its own name
    scope               it stands in the namespace as it is, and later blocks see its declarations
    compile REASON      compiled, but not run, for this reason

A `<!-- check: ... -->` comment is such a block that readers do not see: it runs the functions of other
blocks. The code of a `<!-- declare: ... -->` comment stands in the namespace. A page that mentions the
distributed layer goes into distributed.cpp, every other one into core.cpp. A page that includes the
inspection is left out of a build without it.
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
                   r"|^<!-- check:(?P<check_words>[^\n]*)\n(?P<checked>.*?)^-->$"
                   r"|^(?:<!-- snippet:(?P<words>[^\n]*?)(?:\n(?P<before>.*?))?-->\n)?"
                   r"```cpp\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
INSPECTION = re.compile(r"^#include <weft/distributed/inspection/", re.MULTILINE)
KINDS = {"run": "run", "group": "run", "launch": "run", "each": "run", "scope": "declare",
         "compile": "compile only"}
FRAME = r"""
std::string name;  // of this worker

/// Runs `block` on the first worker of a group; the others serve it.
int in_group(const std::vector<std::string>& names, const std::function<int()>& block) {
  return weft::rpc::run_group({.names = names}, [&](const weft::rpc::WorkerInfo& me) {
    name = me.name;
    return name == names[0] ? block() : 0;
  });
}

/// Starts processes that join by themselves: those that run `block`, which may leave, and those that serve.
int launched(const std::vector<std::string>& names, bool all, const std::function<int()>& block) {
  if (!weft::rpc::spawned_rank()) {
    const auto runtime = weft::rpc::make_threaded_runtime();
    auto workers = weft::rpc::spawn({.world_size = static_cast<int>(names.size())});
    workers.wait(*runtime, runtime->now() + std::chrono::seconds(50));
    return 0;
  }
  name = names[static_cast<size_t>(*weft::rpc::spawned_rank())];
  if (!all && name != names[0]) {
    weft::rpc::init_rpc(name);
    return weft::rpc::serve_until_done() ? 0 : 1;
  }
  const int status = block();
  if (weft::rpc::default_agent()) weft::rpc::shutdown();  // where the block has not
  return status;
}
"""
TRY = re.compile(r"^int main\(.*\) try \{$", re.MULTILINE)
SECONDS = 60
REPORT = "report.txt"  # beside the programs


def without_includes(code, includes):
    """The code with each include replaced by an empty line; `includes` gets them."""
    kept = []
    for line in code.split("\n"):
        if line.startswith("#include"):
            includes.add(line)
        kept.append("" if line.startswith("#include") else line)
    return "\n".join(kept)


def call_of(words, block, code):
    """The statement that runs a block in the way that its words name."""
    call = f"{block}(); return 0;"
    if re.search(r"^int main\(", code, re.MULTILINE):
        call = f"return {block}::main({'1, argv' if 'main(int argc' in code else ''});"
    names = ", ".join(f'"{name}"' for name in words[1:])
    if words[0] == "group":
        return f"return in_group({{{names}}}, [] {{ {call} }});"
    if words[0] in ("launch", "each"):
        return f"return launched({{{names}}}, {'true' if words[0] == 'each' else 'false'}, [] {{ {call} }});"
    return call


def page_code(name, text, includes, marked, counts):
    """One namespace with the blocks of a page; `marked` gets (name, call) of each block to run."""
    page = re.sub(r"\W", "_", name.removesuffix(".md"))
    out = [f"namespace page_{page} {{", "using namespace weft;", "using namespace std::chrono_literals;"]
    pieces = list(PIECE.finditer(text))
    for mark, group in (("```cpp", "code"), ("<!-- declare:", "declared"), ("<!-- check:", "checked"),
                        ("<!-- snippet:", "words")):
        found = sum(m[group] is not None for m in pieces)
        if text.count(mark) != found:
            raise SystemExit(f"{name}: {text.count(mark)} times {mark}, but {found} of them stand where they "
                             "count")
    for match in pieces:
        group = next(g for g in ("declared", "checked", "code") if match[g] is not None)
        line = text.count("\n", 0, match.start(group)) + 1
        code = without_includes(match[group], includes)
        if group == "declared":
            out += [f'#line {line} "{name}"', code]
            continue
        words = (match["check_words" if group == "checked" else "words"] or "").split()
        kind = KINDS.get(words[0]) if words else None
        takes = {"run": 0, "scope": 0}.get(words[0] if words else "", 1)
        if kind is None or (takes == 0) != (len(words) == 1):
            raise SystemExit(f"{name}:{line}: '{' '.join(words)}' does not say how the block is checked; the "
                             "words are in scripts/check_snippets.py")
        if group == "code":
            counts[kind] += 1
            if kind == "compile only":
                counts["reasons"].append(f"{name}:{line}: {' '.join(words[1:])}")
        block = f"block_{line}"
        before = match["before"] or ""
        first = [f'#line {line - before.count(chr(10)) - 2} "{name}"', before] if before else []
        body = first + [f'#line {line} "{name}"', code]
        if re.search(r"^int main\(", code, re.MULTILINE):
            body[-1] = (code[:code.rindex("\n}") + 1] + ("  return 0;\n" if not TRY.search(code) else "")
                        + code[code.rindex("\n}") + 1:])
            out += [f"namespace {block} {{", *body, "}"]
        elif kind == "declare":
            out += body
        else:
            out += [f"void {block}() {{", *body, "}"]
        if kind == "run":
            marked.append((f"{name}:{line}", call_of(words, f"page_{page}::{block}", code)))
    return "\n".join([*out, "}", ""])


def write(folder, distributed, inspection):
    """core.cpp and, when asked for, distributed.cpp."""
    units = {"core": ["#include <weft/weft.h>", "#include <weft/cuda.h>"]}
    if distributed:
        units["distributed"] = ["#include <weft/distributed.h>", FRAME]
    pages = {unit: [] for unit in units}
    includes = {unit: {"#include <cstdio>", "#include <cstring>", "#include <filesystem>",
                       "#include <functional>", "#include <iostream>", "#include <thread>"} for unit in units}
    marked = {unit: [] for unit in units}
    counts = {**dict.fromkeys(KINDS.values(), 0), "reasons": []}
    for path in [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))]:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if INSPECTION.search(text) and not inspection:
            continue
        unit = "distributed" if any(DISTRIBUTED.search(m["code"] or m["checked"] or m["declared"])
                                    for m in PIECE.finditer(text)) else "core"
        if unit in units:
            pages[unit].append(page_code(os.path.relpath(path, ROOT), text, includes[unit], marked[unit],
                                         counts))
    os.makedirs(folder, exist_ok=True)
    for unit, heads in units.items():
        table = "".join(f'  if (which == "{name}") {{ {call} }}\n' for name, call in marked[unit])
        names = "".join(f'  if (which == "--list") std::puts("{name}");\n' for name, _ in marked[unit])
        source = "\n".join(sorted(includes[unit]) + heads + ["", *pages[unit]]) + \
            f'#line 1 "main"\nint main(int, char** argv) {{\n  const std::string which = argv[1];\n' \
            f'{table}{names}}}\n'
        with open(os.path.join(folder, unit + ".cpp"), "w", encoding="utf-8") as file:
            file.write(source)
    reasons = counts.pop("reasons")
    with open(os.path.join(folder, REPORT), "w", encoding="utf-8") as file:
        file.write("check_snippets: blocks of the pages: "
                   + ", ".join(f"{count} {kind}" for kind, count in counts.items()) + "\n"
                   + "".join(f"  not run: {reason}\n" for reason in reasons))


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
    with open(os.path.join(os.path.dirname(programs[0]), REPORT), encoding="utf-8") as file:
        print(file.read(), end="")
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
