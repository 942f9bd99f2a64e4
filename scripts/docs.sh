#!/usr/bin/env bash
# Makes the API reference from the public headers and the pages: build/docs/api/index.html. A warning of
# Doxygen is an error. Exits 77 with the reason where Doxygen is missing.
#   scripts/docs.sh
set -euo pipefail
case "${1:-}" in -h|--help) sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v doxygen >/dev/null || { echo "doxygen is missing (scripts/setup.sh --ci installs it)"; exit 77; }
mkdir -p build/docs
doxygen docs/Doxyfile
echo "docs: build/docs/api/index.html"
