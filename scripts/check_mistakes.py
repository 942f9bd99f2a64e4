"""Compiles typical mistakes of a user and checks that the first error names the user's line and the fault.
Run as a test (House.mistakes_are_named).

A mistake is a file of tests/support/mistakes. The line that is wrong ends in `// MISTAKE: text`, where `text`
must be part of the first error and its notes. GCC names the reason of an implicitly deleted function in a
second error, which counts as a note. A file that starts with `// DISTRIBUTED` needs the distributed layer.

    check_mistakes.py --compiler c++ --include build/dev/include [--distributed] [name ...]
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "support",
                      "mistakes")


def failure(name, options):
    """Why the file `name` fails the check, or None."""
    path = os.path.join(FOLDER, name)
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    if lines[0].startswith("// DISTRIBUTED") and not options.distributed:
        return None
    marked = [(i, line.split("// MISTAKE: ", 1)[1]) for i, line in enumerate(lines, 1)
              if "// MISTAKE: " in line]
    if len(marked) != 1:
        return f"{name}: {len(marked)} lines are marked as the mistake"
    number, wanted = marked[0]
    limit = "-ferror-limit=" if "clang" in options.compiler else "-fmax-errors="

    def compiled(errors):
        return subprocess.run([options.compiler, "-std=c++20", "-fsyntax-only", f"{limit}{errors}",
                               f"-I{options.include}", path],
                              capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})

    done = compiled(1)
    if done.returncode == 0:
        return f"{name}: compiles"
    if "is implicitly deleted because" in done.stderr:
        done = compiled(2)
    said = re.sub(r"\s*// MISTAKE: .*", "", done.stderr)
    if f"{name}:{number}:" not in said:
        return f"{name}: the first error does not name line {number}:\n{said}"
    if wanted not in said:
        return f"{name}: the first error does not say \"{wanted}\":\n{said}"
    if options.show:
        print(said)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--include", required=True, help="the include folder of a build")
    parser.add_argument("--distributed", action="store_true", help="also those of the distributed layer")
    parser.add_argument("--show", action="store_true", help="print the errors of the mistakes that pass")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    names = options.names or sorted(n for n in os.listdir(FOLDER) if n.endswith(".cpp"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        failures = [f for f in pool.map(lambda n: failure(n, options), names) if f]
    print("\n".join(failures))
    print(f"check_mistakes: {len(names)} mistakes, {len(failures)} not named")
    return 1 if failures else 0


sys.exit(main())
