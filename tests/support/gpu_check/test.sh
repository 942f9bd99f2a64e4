#!/usr/bin/env bash
# Tests scripts/gpu_check.sh with stand-ins: programs that print fixed results, and an `nvidia-smi` that names
# a device.
#   tests/support/gpu_check/test.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tree/scripts" "$work/tree/bench/peers" "$work/path" "$work/build/bin" "$work/build/plugin"
cp "$root/scripts/gpu_check.sh" "$root/scripts/gpu_pack.sh" "$work/tree/scripts/"
failures=0
for name in python3 python; do  # no PyTorch on any machine
  printf '#!/bin/sh\nexit 1\n' >"$work/path/$name"
  chmod +x "$work/path/$name"
done

program() {  # program NAME: a script from standard input
  cat >"$work/build/bin/$1"
  chmod +x "$work/build/bin/$1"
}
tool() {  # tool NAME: a script from standard input, on PATH
  cat >"$work/path/$1"
  chmod +x "$work/path/$1"
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
  for made in Recurrent.cudnn_matches_the_own_cell A.attention_on_cudnn_matches_wefts_kernels; do
    sed -i "2i echo '[       OK ] $made (1 ms)'" "$work/build/bin/test_cuda"
  done
  tests test_plugin 2
  tests test_nn 3
  tests test_optim 3
  program bench_gpu <<'BENCH'
#!/bin/sh
echo figures
[ -z "$WEFT_CUDA_TRACE" ] || cat >"$WEFT_CUDA_TRACE" <<'TRACE'
{"ph": "X", "pid": 0, "tid": 0, "ts": 1.000, "dur": 9.000, "name": "add"},
{"ph": "X", "pid": 1, "tid": 0, "ts": 2.000, "dur": 3.000, "name": "add"},
{"ph": "X", "pid": 1, "tid": 0, "ts": 5.000, "dur": 4.500, "name": "add"}
TRACE
BENCH
  program rnn <<'RNN'
#!/bin/sh
i=0
while [ $i -lt 100 ]; do i=$((i + 1)); echo "step $i loss 4.$i"; done
RNN
  tests hello_cuda 1
  tool nvidia-smi <<<'#!/bin/sh
echo Stand-in'
  tool compute-sanitizer <<'SANITIZER'  # prints its arguments, and runs the program behind them
#!/bin/sh
echo "sanitizer $*"
while [ "${1#*/test_cuda}" = "$1" ]; do shift; done
"$@"
SANITIZER
  tool ncu <<<'#!/bin/sh
echo "ncu $*"'
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
expect() {  # expect TITLE COMMAND...
  local title=$1
  shift
  "$@" >/dev/null || { echo "FAILED: $title"; failures=$((failures + 1)); }
}
expect "the table is kept" [ "$(grep -c . "$work/results/stand-in.table.txt")" -ge 8 ]
expect "benchmarks come first" grep -q '^benchmarks' <(head -1 "$work/results/stand-in.table.txt")
expect "launches of a trace are added up" grep -q ' 7.5 us *2 times  add$' "$work/results/stand-in.trace.txt"
expect "a dozen kernels are profiled" \
  [ "$(grep -c '^ncu --clock-control none' "$work/results/stand-in.profile.log")" -ge 12 ]
for tool in memcheck racecheck synccheck; do
  expect "$tool sees the kernels of weft alone" \
    grep -q "^sanitizer --tool $tool --kernel-name kns=weft --port 49100 " "$work/results/stand-in.$tool.log"
done
expect "initcheck sees all kernels" grep -q '^sanitizer --tool initcheck --port' \
  "$work/results/stand-in.initcheck.log"
check "each tool has a row" 0 '^compute-sanitizer synccheck *passed' --only sanitizer
program test_nn <<NN
#!/bin/sh
tar -tzf "$work/results/stand-in.tar.gz" | grep -q bench.log || exit 5
echo '[==========] 1 tests from 1 test suite ran.'
echo '[  PASSED  ] 1 tests.'
NN
check "an archive is there before the last step" 0 '^golden tests on cuda *passed' --only bench,golden
good
sed -i '2i case "$*" in *racecheck*) exit 9 ;; esac' "$work/path/compute-sanitizer"
check "a tool that finds something" 1 '^compute-sanitizer racecheck *FAILED .*exit 9' --only sanitizer
good
sed -i '2i case "$* $GTEST_SHARD_INDEX" in *memcheck*0) exit 124 ;; esac' "$work/path/compute-sanitizer"
check "a part of a tool without time" 3 '^compute-sanitizer memcheck *partly .*cut off: 1 of' --only sanitizer
good
tool ncu <<<'#!/bin/sh
exit 1'
check "a profiler without counters" 0 '^profile of kernels *skipped .*does not work here' --only profile
good
sed -i '2i echo "Ipc/HandOver/64MiB      12.5 us"' "$work/build/bin/bench_gpu"
check "memory handed over" 0 '^memory between processes *passed .*Ipc/HandOver/64MiB 12.5 us' --only bench
good
sed -i '2i echo "Ipc/Open/64MiB  failed: an error"; echo "Ipc/HandOver/64MiB  12.5 us"' \
  "$work/build/bin/bench_gpu"
check "a row between others that fails" 1 '^memory between processes *FAILED .*Open/64MiB failed: an error' \
  --only bench
sed -i '2i echo "Ipc      left out: no IPC here"' "$work/build/bin/bench_gpu"
check "a failure beside a row left out" 1 '^memory between processes *FAILED' --only bench
good
sed -i '2i echo "Ipc      left out: no IPC here"' "$work/build/bin/bench_gpu"
check "a device without IPC" 0 '^memory between processes *skipped .*no IPC here' --only bench
good
sed -i 's/"pid": 1/"pid": 0/' "$work/build/bin/bench_gpu"
check "a trace without the device" 1 '^trace of a training step *FAILED' --only trace
good
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
check "a device whose cuDNN takes no attention" 1 '^attention on cuDNN *FAILED'
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
tool nvidia-smi <<<'#!/bin/sh
echo No devices were found
exit 6'
tests test_cuda 1 Recurrent.cudnn_matches_the_own_cell
check "no device" 0 'no GPU here'
check "no device to trace" 0 '^trace of a training step *skipped'
cp "$(command -v bash)" "$work/build/bin/rnn"  # a program with libraries
expect "a build is carried" "$work/tree/scripts/gpu_check.sh" --carry "$work/build"
expect "a build is packed" "$work/tree/scripts/gpu_check.sh" --carry "$work/build" "$work/packed/it.tar.xz"
expect "its folder is in the file" grep -q '^build/gpu_carry/bin/rnn$' <(tar -tJf "$work/packed/it.tar.xz")
expect "its programs are there" [ -x "$work/tree/build/gpu_carry/bin/rnn" ]
expect "its plugins are there" [ -d "$work/tree/build/gpu_carry/plugin" ]
expect "its libraries are there" grep -q . <(find "$work/tree/build/gpu_carry/lib" -type f)
expect "the C library stays" [ ! -e "$work/tree/build/gpu_carry/lib/libc.so.6" ]
expect "a carried program runs" \
  env LD_LIBRARY_PATH="$work/tree/build/gpu_carry/lib" "$work/tree/build/gpu_carry/bin/rnn" -c true
[ "$failures" -eq 0 ] && echo "gpu_check.sh: all as expected"
exit "$failures"
