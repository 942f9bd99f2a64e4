#!/usr/bin/env python3
"""Reads the library's sources with Clang as a second compiler: no code is made, and -Wthread-safety checks
the locks that distributed/runtime/sync.h annotates. Warnings are errors.
  scripts/check_clang.py --commands build/clang/compile_commands.json [--tidy] [--share 3/12] [--jobs 2]
                         [--under FOLDER] [file]...
With --tidy it runs clang-tidy with the checks of .clang-tidy, which takes some five times longer. A source
with several commands is read once then. With --share I/N it reads each N-th source from the I-th (modulo N)
on, so that runs that count I up read all. The commands come from a build folder that was configured with
Clang (preset clang). It has no CUDA: the host code of that backend is read over the emulation of the tests,
and the sources of UNREAD are listed with the reason. Sources that Clang 14 cannot parse stand in UNREADABLE
with the reason, and are reported. One that it can parse after all is an error. With --under FOLDER it reads
the sources below that folder in place of the library's, such as tests/fuzz/ with the commands of preset fuzz.
"""
import argparse
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("kernels/", "tensor/", "autograd/", "nn/", "optim/", "distributed/")
STUBS = os.path.join(ROOT, "scripts", "clang")  # headers that Clang 14 lacks
UNREADABLE = {}
EMULATED = ("kernels/cuda/host/", "kernels/cuda/ops/", "kernels/plugin/")  # their .cpp files
UNREAD = {  # begins of names without a command
    "kernels/cuda/ops/": "CUDA's language; GCC and nvcc compile it",
    "optim/rules.cu": "CUDA's language; GCC and nvcc compile it",
    "kernels/cuda/toolkit/": "it needs NVIDIA's headers; GCC compiles it",
}


def syntax_command(entry):
    """The command of an entry without its output: it only reads the source."""
    words = shlex.split(entry["command"])
    words.remove("-c")
    at = words.index("-o")
    del words[at:at + 2]
    return [*words, "-fsyntax-only"]


def command_of(entry):
    # GCC's own warnings and pragmas are unknown to Clang.
    return [*(w for w in syntax_command(entry) if w != "-Wno-maybe-uninitialized"), "-isystem", STUBS,
            "-ferror-limit=0", "-Wthread-safety", "-Werror", "-Wno-unknown-pragmas"]


def tidy_of(entry):
    return ["clang-tidy-14", "--quiet", entry["file"], "--", *command_of(entry)[1:]]


def library_sources():
    names = subprocess.check_output(["git", "ls-files", *FOLDERS], cwd=ROOT, text=True)
    return [name for name in names.split("\n") if name.endswith((".cpp", ".cu"))]


def emulated(name, entries):
    """The entry of a source of the CUDA backend: another source's command, with the emulation's names."""
    model = next(e for e in entries if os.path.relpath(e["file"], ROOT).startswith("kernels/"))
    path = os.path.join(ROOT, name)
    command = model["command"].replace(model["file"], path)
    more = f"-DWEFT_SIMT '-DWEFT_SOVERSION=\"0\"' -I{ROOT}/tests"
    return {**model, "file": path, "command": f"{command} {more}"}


def check(entry, command):
    name = os.path.relpath(entry["file"], ROOT)
    done = subprocess.run(command(entry), cwd=entry["directory"], capture_output=True, text=True, check=False)
    return name, done.returncode, done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", required=True, metavar="FILE")
    parser.add_argument("--tidy", action="store_true")
    parser.add_argument("--share", default="0/1", metavar="I/N")
    parser.add_argument("--under", metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    with open(options.commands, encoding="utf-8") as file:
        entries = json.load(file)
    folders = (options.under,) if options.under else FOLDERS
    sources = [] if options.under else library_sources()
    commanded = {os.path.relpath(entry["file"], ROOT) for entry in entries}
    missing = [name for name in sources if name not in commanded]
    read = [name for name in missing if name.startswith(EMULATED) and name.endswith(".cpp")]
    entries += [emulated(name, entries) for name in read]
    unread = [name for name in missing if name not in read]
    unknown = [name for name in unread if not name.startswith(tuple(UNREAD))]
    if unknown:
        print(f"check_clang: no command and no reason in UNREAD for {', '.join(unknown)}", file=sys.stderr)
        return 2
    chosen = []
    names = set()
    for entry in entries:
        name = os.path.relpath(entry["file"], ROOT)
        if options.tidy and name in names:
            continue
        if name.startswith(folders) and (not options.files or name in options.files):
            chosen.append(entry)
            names.add(name)
    first, step = (int(number) for number in options.share.split("/"))
    chosen = chosen[first % step::step]
    if not chosen:
        print(f"check_clang: no source of {' '.join(folders)} in {options.commands}", file=sys.stderr)
        return 2
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        command = tidy_of if options.tidy else command_of
        for name, status, said in pool.map(lambda entry: check(entry, command), chosen):
            if name in UNREADABLE:
                if status == 0:
                    print(f"{name}: Clang parses it; take it off UNREADABLE in scripts/check_clang.py")
                    failed += 1
                else:
                    print(f"{name}: not checked, {UNREADABLE[name]}")
            elif status != 0:
                print(f"{name}:\n{said}")
                failed += 1
    if not options.files and not options.under:
        for begin, reason in UNREAD.items():
            print(f"{begin}: {sum(name.startswith(begin) for name in unread)} sources not read, {reason}")
    print(f"check_clang: {len(chosen)} sources, {failed} with findings, {len(UNREADABLE)} not parsed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
