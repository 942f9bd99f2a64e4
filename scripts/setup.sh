#!/usr/bin/env bash
# Installs the packages for a build of weft on Debian 12, or a relative with the same package names. It
# installs only missing ones, as root or through sudo. Running it again changes nothing. CUDA is never needed.
#   scripts/setup.sh           install the missing packages and name them
#   scripts/setup.sh --check   only report; exits 1 when something is missing
#   scripts/setup.sh --ci      also install the packages that only .ci/run needs
#   scripts/setup.sh --cuda    only install the disassemblers for check_kernels.py, from PyPI in the cache
set -euo pipefail

packages=(
  g++ cmake make ninja-build git pkg-config ccache  # tools
  libeigen3-dev libdnnl-dev zlib1g-dev              # kernels, compressed .npz files
  libgrpc++-dev libssl-dev libboost-context-dev     # distributed layer, weft-certs
  protobuf-compiler libprotobuf-dev                 # its messages of etcd
  libgloo-dev                                       # its collectives
  protobuf-compiler-grpc                            # inspection service
  libgtest-dev libgmock-dev libbenchmark-dev        # tests and benchmarks
  python3 bible-kjv bible-kjv-text                  # scripts and the corpus of the demo
)

ci_packages=(
  mmdebstrap                                        # the root of scripts/bare_check.sh
  clang-format-14 clang-14 clang-tidy-14 doxygen    # format.sh, check_clang.py, docs.sh
  etcd-server                                       # tests of the store that etcd keeps; skipped without it
  valgrind                                          # check_instructions.py; skipped without it
)

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0"; }

# The CUDA toolkit of a small installation lacks them, and no Debian package has them. They run without a GPU.
install_disassemblers() {
  local into=${XDG_CACHE_HOME:-$HOME/.cache}/weft/disassemblers
  if [ -n "$(find "$into" -name nvdisasm -perm -u+x 2>/dev/null)" ] &&
    [ -n "$(find "$into" -name cuobjdump -perm -u+x 2>/dev/null)" ]; then
    echo "setup: the disassemblers are installed"
    return
  fi
  if ! python3 -m pip --version >/dev/null 2>&1; then
    echo "setup.sh: python3 has no pip (Debian: python3-pip), which gets the disassemblers" >&2
    return 1
  fi
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --timeout 30 \
    --target "$into" --upgrade 'nvidia-cuda-nvdisasm==13.*' 'nvidia-cuda-cuobjdump==13.*' || return
  find "$into" '(' -name nvdisasm -o -name cuobjdump ')' -type f -exec chmod u+x '{}' +
  echo "setup: installed the disassemblers"
}

check_only=no
for argument in "$@"; do
  case "$argument" in
    --check) check_only=yes ;;
    --ci) packages+=("${ci_packages[@]}") ;;
    --cuda) install_disassemblers; exit ;;
    -h|--help) usage; exit 0 ;;
    *) echo "setup.sh: unknown argument '$argument'" >&2; usage >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup.sh: this is no Debian system; install the counterparts of these packages by hand:" \
    "${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done

if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: all ${#packages[@]} packages are installed"
  exit 0
fi
echo "setup: ${#missing[@]} of ${#packages[@]} packages are missing: ${missing[*]}"
[ "$check_only" = no ] || exit 1

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup.sh: installing needs root: run it as root, or install sudo" >&2
    exit 1
  fi
  as_root=(sudo)
fi
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"
}
apt update || echo "setup: the package lists could not be refreshed, going on with the ones at hand" >&2
if ! apt install -y --no-install-recommends "${missing[@]}"; then
  echo "setup.sh: apt-get could not install: ${missing[*]}" >&2
  exit 1
fi
echo "setup: installed ${missing[*]}"
