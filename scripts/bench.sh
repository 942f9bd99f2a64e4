#!/usr/bin/env bash
# Builds the release benchmarks and runs them all (or those whose names match FILTER, a regular expression).
# It keeps their JSON in bench/results and prints one table. With --peers, PyTorch runs the same work where a
# python with torch is found, and a whole table is kept in bench/results too. --goals runs only the rows that
# have a goal, and their floors. --repeat runs those rows until two runs agree within 10 %. The filter growth/
# keeps the table of growing costs in bench/results.
#   scripts/bench.sh [--peers] [--repeat] [--goals | FILTER]
set -euo pipefail
flags=()
for argument in "$@"; do
  case "$argument" in
    -h|--help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --peers|--repeat|--goals) flags+=("$argument") ;;
    -*) echo "bench.sh: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
    *) flags+=(--filter "$argument") ;;
  esac
done
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
cmake --preset release
cmake --build --preset release -j "$(nproc)" --target weft_benchmarks cartpole rnn
# A pinned OpenBLAS core type would slow the peer down and flatter us; it must hold for neither side.
for name in $(compgen -e | grep '^OPENBLAS_' || true); do unset "$name"; done
exec python3 scripts/run_bench.py "${flags[@]}"
