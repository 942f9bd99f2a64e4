#!/usr/bin/env bash
# The main job in one command. It sets the machine up, builds the demo's programs in release form and prepares
# the King James corpus. It trains the word language model for about two minutes as two processes. Embedding
# and decoder live on a parameter server, the LSTM on the trainer. Then it prints a generated sample and the
# commands to go on. Arguments go to the program: `scripts/demo.sh --seed 7`.
#   scripts/demo.sh [rnn flags]
set -euo pipefail
case "${1:-}" in -h|--help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
mkdir -p build/demo
cmake --preset release >build/demo/configure.log || { cat build/demo/configure.log; exit 1; }
# weft_libraries: so that `cmake --install build/release` works after it.
cmake --build --preset release -j "$(nproc)" --target rnn weft_libraries
scripts/fetch_corpus.sh build/data/kjv

rnn=build/release/bin/rnn
defaults=(--mode distributed --decoder remote-logits --data build/data/kjv --epochs 1 --max-steps 1000
  --log-interval 100 --generate 60 --save build/demo/model.safetensors)
echo
echo "+ $rnn ${defaults[*]} $*"
"$rnn" "${defaults[@]}" "$@"
cat <<TXT

To go on:
  $rnn --epochs 6 --save build/demo/model.safetensors      six epochs, split over two processes
  $rnn --mode local --epochs 6                             the same model in one process
  $rnn --resume build/demo/model.safetensors --epochs 6    on from the saved file
  $rnn --help                                              every flag
TXT
