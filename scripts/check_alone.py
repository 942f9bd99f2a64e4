#!/usr/bin/env python3
"""Reads the sources of tests, benchmarks and examples one by one, as the preset dev compiles them. The other
presets compile several together, where a name that one source forgot comes from another one.
  scripts/check_alone.py --commands build/alone/compile_commands.json [--share 3/12] [--jobs 2] [file]...
The commands come from a build folder that was configured with WEFT_UNITY=OFF; nothing is built there. With
--share I/N it reads each N-th source from the I-th (modulo N) on, so that runs that count I up read all.
"""
import argparse
import concurrent.futures
import json
import os
import sys

from check_clang import ROOT, check, syntax_command

FOLDERS = ("tests/", "bench/", "examples/")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", required=True, metavar="FILE")
    parser.add_argument("--share", default="0/1", metavar="I/N")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    with open(options.commands, encoding="utf-8") as file:
        entries = {os.path.relpath(entry["file"], ROOT): entry for entry in json.load(file)}
    first, step = (int(number) for number in options.share.split("/"))
    names = [name for name in sorted(entries)
             if name.startswith(FOLDERS) and (not options.files or name in options.files)][first % step::step]
    if not names:
        print(f"check_alone: no source of these in {options.commands}", file=sys.stderr)
        return 2
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for name, status, said in pool.map(lambda name: check(entries[name], syntax_command), names):
            if status != 0:
                print(f"{name}:\n{said}")
                failed += 1
    print(f"check_alone: {len(names)} sources, {failed} with errors")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
