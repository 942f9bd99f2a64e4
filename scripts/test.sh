#!/usr/bin/env bash
# Sets the machine up, builds the release preset and runs every test. Arguments go to ctest, for example
# `-R Lstm` or `-LE slow`.
#   scripts/test.sh [ctest flags]
set -euo pipefail
case "${1:-}" in -h|--help) sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=$(nproc)
scripts/setup.sh
cmake --preset release
cmake --build --preset release -j "$jobs"
ctest --preset release -j "$jobs" "$@"
