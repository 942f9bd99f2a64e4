"""Compares scripts/setup.sh with the names that weft's build and its installed package files look for.

Read are the CMake files, the package file that find_package(weft) reads, and with --generated FOLDER the
pkg-config files of a build. Each package, library and program that they name, and each Debian package
that their messages recommend, must come with a package of setup.sh. Lines that end in "not on Debian"
are left out. Neither root nor network is needed: the table below says which package brings which name. A
test of the group House runs this.
"""
import argparse
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMPILER, GRPC = ["g++"], ["libgrpc++-dev"]
# A name in a search: the Debian packages that bring it. None needs CUDA.
PACKAGES = {
    "Threads": COMPILER, "gomp": COMPILER, "dl": COMPILER, "rt": COMPILER,
    "Eigen3": ["libeigen3-dev"], "dnnl": ["libdnnl-dev"], "oneapi/dnnl/dnnl.hpp": ["libdnnl-dev"],
    "ZLIB": ["zlib1g-dev"], "z": ["zlib1g-dev"],
    "Boost": ["libboost-context-dev"], "boost_context": ["libboost-context-dev"],
    "grpc++": GRPC, "grpc": GRPC, "gpr": GRPC, "grpcpp/completion_queue.h": GRPC,
    "gloo": ["libgloo-dev"], "gloo/allreduce.h": ["libgloo-dev"],
    "OpenSSL": ["libssl-dev"],
    "gRPC": GRPC + ["protobuf-compiler-grpc"],  # its package file refuses to work without the code generators
    "Protobuf": ["libprotobuf-dev"], "protobuf": ["libprotobuf-dev"],
    "google/protobuf/message.h": ["libprotobuf-dev"], "grpc++_reflection": GRPC,
    "absl_synchronization": GRPC,  # libgrpc-dev depends on libabsl-dev
    "protoc": ["protobuf-compiler"], "grpc_cpp_plugin": ["protobuf-compiler-grpc"],
    "GTest": ["libgtest-dev", "libgmock-dev"], "benchmark": ["libbenchmark-dev"], "Python3": ["python3"],
    "ccache": ["ccache"], "make": ["make"], "ninja": ["ninja-build"],
    "CUDAToolkit": [], "cuda_runtime.h": [], "cublasLt.h": [], "cudnn.h": [], "cudart_static": [],
}
OURS = re.compile(r"^weft|\$")
NAMED = re.compile(r"\b(?:find_package|find_dependency)\((\w+)"
                   r"|\bfind_(?:library|path|program)\(\w+ (?:NAMES )?(\S+?)(?:[\s)]|$)")
RECOMMENDED = re.compile(r"\(Debian: ([\w+. -]+)\)")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def named_in_cmake(text):
    for line in text.splitlines():
        if line.lstrip().startswith("#") or line.endswith("not on Debian"):
            continue
        for match in NAMED.finditer(line):
            yield match.group(1) or match.group(2)


def named_in_pkg_config(text):
    for key, value in re.findall(r"^((?:Requires|Libs)(?:\.private)?): (.*)$", text, re.MULTILINE):
        for word in re.split(r"[\s,]+", value):
            if key.startswith("Requires") and re.match(r"[a-z]", word):
                yield word
            elif word.startswith("-l"):
                yield word[2:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--generated", metavar="FOLDER", help="folder of a build with pkg-config files")
    parser.add_argument("--setup", metavar="FILE", default=os.path.join(ROOT, "scripts", "setup.sh"))
    options = parser.parse_args()
    listed = re.search(r"^packages=\((.*?)^\)", read(options.setup), re.MULTILINE | re.DOTALL).group(1)
    installed = set(re.sub(r"#.*", "", listed).split())

    found = []  # (file, the name in it, the packages)
    patterns = [os.path.join(ROOT, "cmake", "*.cmake"), os.path.join(ROOT, "cmake", "*.in")]
    if options.generated:
        patterns.append(os.path.join(options.generated, "*.pc"))
    files = sorted(path for pattern in patterns for path in glob.glob(pattern))
    for path in files:
        text = read(path)
        name = os.path.relpath(path, ROOT)
        for what in named_in_pkg_config(text) if path.endswith(".pc") else named_in_cmake(text):
            if not OURS.search(what):
                found.append((name, what, PACKAGES.get(what)))
        for row in RECOMMENDED.findall(text):
            found += [(name, package, [package]) for package in row.split()]

    wrong = set()
    for name, what, packages in found:
        if packages is None:
            wrong.add(f"{name}: names {what}: check_packages.py does not know the package that brings it")
        for package in packages or []:
            if package not in installed:
                wrong.add(f"{name}: names {what} of {package}, which scripts/setup.sh does not install")
    for line in sorted(wrong):
        print(line)
    print(f"check_packages: {len(files)} files, {len(found)} names, {len(wrong)} findings")
    return 1 if wrong or not found else 0


sys.exit(main())
