#!/usr/bin/env bash
# Formats the C++ and CUDA sources with clang-format 14, Debian 12's (scripts/setup.sh --ci installs it).
# Arguments are files; without any it takes all that git knows.
#   scripts/format.sh [file]...          rewrites them
#   scripts/format.sh --check [file]...  changes nothing; lists the differences and fails if there are any
# Exits 77 with the reason where clang-format 14 is missing, since other versions format differently.
set -euo pipefail
case "${1:-}" in -h|--help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(-i)
if [ "${1:-}" = --check ]; then
  mode=(--dry-run -Werror)
  shift
fi
formatter=$(command -v clang-format-14 || true)
[ -n "$formatter" ] || { echo "clang-format 14 is missing (scripts/setup.sh --ci installs it)"; exit 77; }
if [ $# -eq 0 ]; then
  mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh' '*.inc')
  set -- "${files[@]}"
fi
existing=()
for file in "$@"; do [ ! -f "$file" ] || existing+=("$file"); done
printf '%s\0' "${existing[@]}" | xargs -0 -n 40 -P "$(nproc)" "$formatter" "${mode[@]}"
