#!/usr/bin/env bash
# Tests scripts/gpu_check.sh with stand-ins: programs that print fixed results, and an `nvidia-smi` that names
# a device.
#   tests/support/gpu_check/test.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tree/scripts" "$work/tree/bench/peers" "$work/path" "$work/build/bin" "$work/build/plugin"
cp "$root/scripts/gpu_check.sh" "$work/tree/scripts/"
failures=0
for name in python3 python; do  # no PyTorch on any machine
  printf '#!/bin/sh\nexit 1\n' >"$work/path/$name"
  chmod +x "$work/path/$name"
done

program() {  # program NAME: a script from standard input
  cat >"$work/build/bin/$1"
  chmod +x "$work/build/bin/$1"
}
tests() {  # tests NAME PASSED [SKIPPED TEST...]: prints the output of a gtest program
  local name=$1 passed=$2
  shift 2
  { echo '#!/bin/sh'
    echo "echo '[==========] $((passed + $#)) tests from 1 test suite ran. (1 ms total)'"
    echo "echo '[  PASSED  ] $passed tests.'"
    [ $# -eq 0 ] || printf "echo '[  SKIPPED ] $# tests, listed below:'\n"
    for skipped in "$@"; do echo "echo '[  SKIPPED ] $skipped'"; done
  } | program "$name"
}
good() {  # a machine without faults
  tests test_cuda 7 CudaLibrary.without_a_device_the_error_names_what_is_missing
  sed -i '2i echo "[       OK ] Recurrent.cudnn_matches_the_own_cell (1 ms)"' "$work/build/bin/test_cuda"
  tests test_plugin 2
  tests test_nn 3
  tests test_optim 3
  program bench_gpu <<<'#!/bin/sh
echo figures'
  program rnn <<'RNN'
#!/bin/sh
i=0
while [ $i -lt 100 ]; do i=$((i + 1)); echo "step $i loss 4.$i"; done
RNN
  tests hello_cuda 1
  printf '#!/bin/sh\necho Stand-in\n' >"$work/path/nvidia-smi"
  chmod +x "$work/path/nvidia-smi"
}
check() {  # check TITLE STATUS PATTERN [FLAGS...]: the script's exit status, and a line of its table
  local title=$1 expected=$2 pattern=$3 out status=0
  shift 3
  out=$(PATH=$work/path:$PATH "$work/tree/scripts/gpu_check.sh" --prebuilt "$work/build" \
    --results "$work/results" "$@" 2>&1) || status=$?
  if [ "$status" -ne "$expected" ] || ! grep -q -- "$pattern" <<<"$out"; then
    printf 'FAILED: %s: exit %s, expected %s and a line with "%s" in\n%s\n' \
      "$title" "$status" "$expected" "$pattern" "$out"
    failures=$((failures + 1))
  fi
}

good
check "all is well" 0 '^rnn on the device *passed'
check "the table is kept" 0 '^benchmarks *passed'
[ "$(grep -c . "$work/results/stand-in.table.txt")" -ge 8 ] || {
  echo "FAILED: the table was not kept"
  failures=$((failures + 1))
}
check "one step alone" 0 '^golden tests on cuda *passed' --only golden
check "a step that is not there" 2 "there is no step 'speed'" --only golden,speed
check "no time left" 3 '^benchmarks *left out' --seconds 3
check "no time left is not a missing cuDNN" 3 '^device tests, training *left out' --seconds 3 --only device
check "no step" 2 'takes steps' --only ,
tests test_cuda 7 CudaOpTable.forward/relu
check "one skipped row of the op table" 1 '^op table on the device *FAILED.*CudaOpTable.forward/relu'
good
tests test_plugin 0 Plugin.opens
check "a program that skipped everything" 1 '^CUDA library opened late *FAILED'
good
tests test_cuda 7 Recurrent.cudnn_matches_the_own_cell
check "one skipped test" 1 'FAILED.*skipped although there is a device: Recurrent.cudnn_matches_the_own_cell'
check "a device without cuDNN" 1 '^cuDNN *FAILED'
good
program test_optim <<<'#!/bin/sh
exit 3'
check "a program that fails" 1 '^golden tests on cuda *FAILED .*exit 3'
good
sed -i '2i case "$*" in *distributed*) shift=5 ;; *) shift=4 ;; esac' "$work/build/bin/rnn"
sed -i 's/loss 4/loss $shift/' "$work/build/bin/rnn"
check "losses that differ" 1 '^rnn on the device *FAILED'
sed -i 's/shift=5/shift=nan/' "$work/build/bin/rnn"
check "losses that are none" 1 '^rnn on the device *FAILED'
rm "$work/build/bin/rnn"
check "a build without rnn" 0 '^rnn on the device *left out'
good
printf '#!/bin/sh\necho No devices were found\nexit 6\n' >"$work/path/nvidia-smi"
tests test_cuda 1 Recurrent.cudnn_matches_the_own_cell
check "no device" 0 'no GPU here'
[ "$failures" -eq 0 ] && echo "gpu_check.sh: all as expected"
exit "$failures"
