"""Compiles each public header alone (-fsyntax-only); run as a test (House.public_headers_compile_alone).

Public are the headers that an installation has: those of weft's folders outside inner/, kernels/cpu,
kernels/plugin and the rooms of kernels/cuda, and the umbrella headers. The top level of kernels/cuda is for
code of nvcc and left out.
"""
import argparse
import concurrent.futures
import glob
import os
import re
import subprocess
import sys

PRIVATE = re.compile(r"/inner/|^kernels/(cpu|plugin|cuda)/")
FOLDERS = ("kernels", "tensor", "autograd", "nn", "optim", "distributed")


def public_headers(include, distributed):
    base = os.path.join(include, "weft")
    names = [os.path.relpath(path, base) for folder in FOLDERS[:None if distributed else -1]
             for path in glob.glob(os.path.join(base, folder, "**", "*.h"), recursive=True)]
    names += [n for n in os.listdir(base) if n.endswith(".h") and (distributed or n != "distributed.h")]
    return sorted(n for n in names if not PRIVATE.search(n))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--include", required=True, metavar="FOLDER", help="the build's include folder")
    parser.add_argument("--distributed", action="store_true", help="those of the distributed layer too")
    options = parser.parse_args()
    names = public_headers(options.include, options.distributed)
    if len(names) < 40:
        print(f"only {len(names)} public headers were found below {options.include}")
        return 1

    def compile_alone(name):
        command = [options.compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                   "-I", options.include, "-x", "c++", "-"]
        return subprocess.run(command, input=f"#include <weft/{name}>\n", capture_output=True, text=True,
                              check=False)

    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, done in zip(names, pool.map(compile_alone, names)):
            if done.returncode != 0:
                wrong += 1
                print(f"weft/{name} does not compile alone:\n" + "\n".join(done.stderr.splitlines()[:6]))
    print(f"check_headers: {len(names)} public headers, {wrong} do not compile alone")
    return 1 if wrong else 0


sys.exit(main())
