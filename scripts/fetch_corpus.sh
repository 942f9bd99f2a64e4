#!/usr/bin/env bash
# Writes train.txt, valid.txt and test.txt of the King James corpus into DIR (default build/data/kjv), and
# checks their sha256. The text is that of Debian's packages bible-kjv and bible-kjv-text. Nothing is done
# when the right files are there already.
#   scripts/fetch_corpus.sh [DIR]
set -euo pipefail
case "${1:-}" in
  -h|--help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
  -*) echo "fetch_corpus.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
esac
if [ $# -gt 1 ]; then echo "fetch_corpus.sh: takes one folder, got $#" >&2; exit 2; fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command -v python3 >/dev/null || {
  echo "fetch_corpus.sh: python3 is missing, run scripts/setup.sh" >&2
  exit 1
}
exec python3 "$root/scripts/prepare_corpus.py" "${1:-$root/build/data/kjv}"
