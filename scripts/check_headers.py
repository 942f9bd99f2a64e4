"""Compiles each public header alone (-fsyntax-only); run as a test (House.public_headers_compile_alone).

Public are the headers that an installation has. These are the umbrella headers and those of weft's folders
outside inner/, kernels/cpu, kernels/plugin and the rooms of kernels/cuda. Those of kernels/cuda's top level
are compiled as the tests compile kernels, for the emulation of tests/support/simt, and with --nvcc for a
device too. An umbrella header brings each of the others, but for those of APART.
"""
import argparse
import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import tempfile

PRIVATE = re.compile(r"/inner/|^kernels/(cpu|plugin)/|^kernels/cuda/.*/")
DEVICE = re.compile(r"^kernels/cuda/")  # for files of nvcc
APART = re.compile(r"^kernels/(math|half)\.h$"             # for update rules on vectors and on devices
                   r"|^distributed/(inspection|sim)/"      # components of their own
                   r"|^distributed/launch/rendezvous\.h$")  # for agents that a program makes itself
UMBRELLAS = ("weft.h", "cuda.h", "distributed.h")
TESTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests")
FOLDERS = ("kernels", "tensor", "autograd", "nn", "optim", "distributed")


def public_headers(include, distributed):
    base = os.path.join(include, "weft")
    names = [os.path.relpath(path, base) for folder in FOLDERS[:None if distributed else -1]
             for path in glob.glob(os.path.join(base, folder, "**", "*.h"), recursive=True)]
    names += [n for n in os.listdir(base) if n.endswith(".h") and (distributed or n != "distributed.h")]
    return sorted(n for n in names if not PRIVATE.search(n))


def report(wrong, said):
    for name, text in wrong:
        print(f"weft/{name} {said}" + "".join("\n" + line for line in text.splitlines()[:6]))
    return len(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--nvcc", metavar="PROGRAM", help="compile those for devices with it too")
    parser.add_argument("--include", required=True, metavar="FOLDER", help="the build's include folder")
    parser.add_argument("--distributed", action="store_true", help="those of the distributed layer too")
    options = parser.parse_args()
    names = public_headers(options.include, options.distributed)
    if len(names) < 40:
        print(f"only {len(names)} public headers were found below {options.include}")
        return 1
    base = [options.compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-I", options.include]

    def compiled(command, name):
        return subprocess.run([*command, "-x", "c++", "-"], input=f"#include <weft/{name}>\n", text=True,
                              capture_output=True, check=False)

    def compile_alone(name):
        kernel = ["-DWEFT_SIMT", "-I", TESTS] if DEVICE.search(name) else []
        done = compiled([*base, "-fsyntax-only", *kernel], name)
        return done.stderr if done.returncode != 0 else None

    def compile_for_a_device(name):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "alone.cu")
            with open(source, "w", encoding="utf-8") as file:
                file.write(f"#include <weft/{name}>\n")
            done = subprocess.run([options.nvcc, "-ccbin", options.compiler, "-std=c++20", "-arch=sm_90",
                                   "--expt-relaxed-constexpr", "-Werror=all-warnings", "-I", options.include,
                                   "-c", "-o", os.path.join(folder, "alone.o"), source],
                                  capture_output=True, text=True, check=False)
        return done.stdout + done.stderr if done.returncode != 0 else None

    device = [n for n in names if DEVICE.search(n)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        alone = [(n, text) for n, text in zip(names, pool.map(compile_alone, names)) if text is not None]
        for_device = [(n, text) for n, text in zip(device, pool.map(compile_for_a_device, device))
                      if text is not None] if options.nvcc else []
    wrong = report(alone, "does not compile alone:")
    wrong += report(for_device, "does not compile alone for a device:")

    brought = set()
    for umbrella in (u for u in UMBRELLAS if u in names):
        tree = compiled([*base, "-M"], umbrella).stdout
        brought.update(re.findall(r"\S*/weft/(\S+\.h)\b", tree))
    missing = [n for n in names if n not in brought and n not in UMBRELLAS
               and not DEVICE.search(n) and not APART.search(n)]
    wrong += report([(n, "") for n in missing], f"comes with none of {', '.join(UMBRELLAS)}")
    print(f"check_headers: {len(names)} public headers, {wrong} faults")
    return 1 if wrong else 0


sys.exit(main())
