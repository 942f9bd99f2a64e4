#!/usr/bin/env bash
# Tests scripts/gpu_check.sh with stand-ins: programs that print fixed results, and an `nvidia-smi` that names
# a device.
#   tests/support/gpu_check/test.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tree/scripts" "$work/tree/bench/peers" "$work/path" "$work/build/bin" "$work/build/plugin"
cp "$root"/scripts/gpu_*.sh "$work/tree/scripts/"
export CALLS=$work/calls SAYS=$work/says  # of stand-ins: their arguments, and files that change their output
unset CUDA_PATH WEFT_NCCL_LIBRARY WEFT_CUDNN_LIBRARY
failures=0

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
says() {  # says PART: a script from standard input, which bench_gpu runs in this part
  cat >"$SAYS.$1"
}
good() {  # a machine without faults
  rm -f "$CALLS" "$SAYS".*
  for name in python3 python; do  # no PyTorch on any machine
    tool "$name" <<<'#!/bin/sh
exit 1'
  done
  tool sed <<SED  # no driver on any machine
#!/bin/sh
case "\$*" in */proc/driver/nvidia/*) cat "$SAYS.driver" 2>/dev/null; exit ;; esac
exec $(command -v sed) "\$@"
SED
  tool nproc <<<'#!/bin/sh
echo 3'
  tests test_cuda 7 CudaLibrary.without_a_device_the_error_names_what_is_missing
  for made in Recurrent.cudnn_matches_the_own_cell A.attention_on_cudnn_matches_wefts_kernels; do
    sed -i "2i echo '[       OK ] $made (1 ms)'" "$work/build/bin/test_cuda"
  done
  tests test_plugin 2
  tests test_nn 3
  tests test_optim 3
  program bench_gpu <<'BENCH'
#!/bin/sh
echo "$*" >>"$CALLS"
for flag in "$@"; do
  case $flag in
    --list-parts) printf '%s\n' model memory ipc; exit ;;
    --part=*) part=${flag#*=} ;;
    --benchmark_out=*) out=${flag#*=} ;;
  esac
done
[ -z "$out" ] || cat >"$out" <<JSON
{
 "context": {"device": "Stand-in", "copy_bytes_per_second": $([ "$part" = memory ] && echo 4e12 || echo 0)},
 "benchmarks": [
  {"name": "$part/1", "real_time": 1},
  {"name": "$part/2", "real_time": 2}
 ]
}
JSON
[ ! -f "$SAYS.$part" ] || . "$SAYS.$part"
echo "figures of $part"
echo "bench_gpu: 2 rows, 0 left out, 0 failed"
[ -z "$WEFT_CUDA_TRACE" ] || cat >"$WEFT_CUDA_TRACE" <<'TRACE'
{"ph": "X", "pid": 0, "tid": 0, "ts": 1.000, "dur": 9.000, "name": "add"},
{"ph": "X", "pid": 1, "tid": 0, "ts": 2.000, "dur": 3.000, "name": "add"},
{"ph": "X", "pid": 1, "tid": 0, "ts": 5.000, "dur": 4.500, "name": "add"}
TRACE
BENCH
  program hybrid <<<'#!/bin/sh
echo "$* with $WEFT_NCCL_LIBRARY, matches reference: yes"'
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

expect() {  # expect TITLE COMMAND...
  local title=$1
  shift
  "$@" >/dev/null || { echo "FAILED: $title"; failures=$((failures + 1)); }
}
results=$work/results/stand-in
archive() { tar -xzf "$1" -O "stand-in.$2"; }  # archive FILE NAME: prints that result

good
check "all is well" 0 '^rnn on the device *passed'
expect "the table is kept" [ "$(grep -c . "$results.table.txt")" -ge 8 ]
expect "the values come first" grep -q '^op table' <(sed -n 2p "$results.table.txt")
expect "no start of bench_gpu makes the tensors of all parts" \
  [ -z "$(grep -v -e '--part=\|--list-parts' "$CALLS")" ]
expect "the parts have one JSON" \
  [ "$(grep -c '"name": "\(model\|memory\|ipc\)/[12]"' "$results.bench.json")" -eq 6 ]
expect "with the rate of a copy" grep -q '"copy_bytes_per_second": 4e12' "$results.bench.json"
expect "the parts have one log" [ "$(grep -c '^figures of' "$results.bench.log")" -eq 3 ]
expect "and no other files" [ -z "$(find "$work/results" -name '*bench.*.*')" ]
expect "launches of a trace are added up" grep -q ' 7.5 us *2 times  add$' "$results.trace.txt"
expect "a dozen kernels are profiled" \
  [ "$(grep -c '^ncu --clock-control none' "$results.profile.log")" -ge 12 ]
for tool in memcheck racecheck synccheck; do
  expect "$tool sees the kernels of weft alone" \
    grep -q "^sanitizer --tool $tool --kernel-name kns=weft --port 49100 " "$results.$tool.log"
done
expect "memcheck sees the kernels that no row launches" \
  grep -q ':CudaRecurrent.a_persistent\*:CudaRecurrent.a_stack_in_chunks\*:CudaAttention\*$' \
  "$results.memcheck.log"
expect "initcheck sees all kernels" grep -q '^sanitizer --tool initcheck --port' "$results.initcheck.log"
expect "but no library's" [ -z "$(grep CudaAttention "$results.initcheck.log")" ]
check "each tool has a row" 0 '^compute-sanitizer synccheck *passed' --only sanitizer
good
check "a step alone" 0 '^CUDA library opened late *passed' --only plugin
expect "leaves the results of others" [ -s "$results.bench.json" ]
expect "and goes on with the table" grep -q '^benchmarks ' "$results.table.txt"
expect "which is in the archive" grep -q '^CUDA library' <(archive "$results.tar.gz" table.txt)
rm -rf "$work/results"
program test_nn <<NN
#!/bin/sh
tar -tzf "$results.tar.gz" | grep -q bench.log || exit 5
echo '[==========] 1 tests from 1 test suite ran.'
echo '[  PASSED  ] 1 tests.'
NN
check "an archive is there before the last step" 0 '^golden tests on cuda *passed' --only bench,golden
tool tar <<<'#!/bin/sh
echo broken
exit 2'
sum=$(cksum "$results.tar.gz")
check "an archive that cannot be made" 0 '^CUDA library opened late *passed' --only plugin
expect "replaces none" [ "$(cksum "$results.tar.gz")" = "$sum" ]
rm "$work/path/tar"

good
says memory <<<'kill -9 $$'
check "a part that ends early" 1 '^benchmarks: memory *FAILED .*exit 137' --only bench
check "leaves the other parts" 1 '^benchmarks *FAILED .*6 rows, 0 left out, 1 parts failed' --only bench
says memory <<<'exit 124'
check "a part that hangs" 1 '^benchmarks: memory *FAILED .*ran into its limit of 90 s' --only bench --quick
says memory <<<'echo "bench_gpu: 0 rows, 0 left out, 0 failed"; rm "$out"; exit 1'
check "a part without rows of the filter" 0 '^benchmarks *passed .*4 rows, 0 left out, 0 parts failed' \
  --only bench
says memory <<<'echo "Tanh  left out: a call issues no tanh"
echo "bench_gpu: 1 rows, 1 left out, 0 failed"; exit 0'
check "a row that is left out" 0 '^benchmarks: memory *passed .*1 rows, 1 left out' --only bench
good
check "all steps" 0 '^compute-sanitizer memcheck *passed'
kept() { (cd "$work/results" && find . -name 'stand-in.*.*' ! -name '*.table.txt' ! -name '*.gz' | sort); }
before=$(kept)
check "no step has time" 3 '^benchmarks *left out' --seconds 3
expect "and the results of the earlier run stay" [ "$(kept)" = "$before" ]
sed -i '2i [ "$1" != --list-parts ] || sleep 4' "$work/build/bin/bench_gpu"
check "the time ends before the first part" 3 '^benchmarks.* left out' --seconds 17 --only bench
expect "and its results stay" [ "$(kept)" = "$before" ]
good
ahead() {  # ahead FILE LINE SECONDS: its clock is ahead behind this line
  sed -i "s/^ *$2.*/&\nSECONDS=\$((SECONDS + $3))/" "$work/tree/scripts/$1"
}
ahead gpu_check.sh 'step() {' 200
check "or where it would start" 3 '^benchmarks: model *left out' --seconds 100 --only bench
expect "without a word on results" [ "$(tail -1 "$results.table.txt" | cut -c 1-16)" = "benchmarks from " ]
expect "of which none is lost" [ "$(kept)" = "$before" ]
ahead gpu_steps.sh 'IFS=: read -r part bench_row' 250
cp "$root/scripts/gpu_check.sh" "$work/tree/scripts/"
check "the limit of a profile" 3 '^profile of kernels *partly .*cut off: 12 of 14 rows' --only profile
cp "$root/scripts/gpu_steps.sh" "$work/tree/scripts/"
tool ncu <<<'#!/bin/sh
exit 1'
check "no profile" 0 '^profile of kernels *skipped' --only profile
expect "and that of the earlier run stays" [ -s "$results.profile.log" ]

# signals NAME WAIT STEPS: starts them, sends the signal once WAIT is there, and waits for the end
signals() {
  local i process
  rm -rf "$work/back"
  PATH=$work/path:$PATH "$work/tree/scripts/gpu_check.sh" --prebuilt "$work/build" --only "$3" \
    --results "$work/results" --archive "$work/back/all.tar.gz" >/dev/null 2>&1 &
  process=$!
  for ((i = 0; i < 300; i++)); do [ ! -s "$2" ] || break; sleep 0.1; done
  kill -"$1" "$process"
  wait "$process" 2>/dev/null || true
}
good
says memory <<SAYS
echo \$\$ >"$work/memory.pid"
exec sleep 60
SAYS
rm -f "$work/memory.pid"
rm -rf "$work/results"
signals TERM "$work/memory.pid" bench
expect "a signal to end packs the results" \
  grep -q '^benchmarks: memory *FAILED .*ended by a signal' <(archive "$work/back/all.tar.gz" table.txt)
expect "those of earlier parts" grep -q 'figures of model' <(archive "$work/back/all.tar.gz" bench.log)
expect "in one JSON, with the part that has ended" \
  [ "$(archive "$work/back/all.tar.gz" bench.json | grep -c '"name": "\(model\|memory\)/[12]"')" -eq 4 ]
expect "which has failed" \
  grep -q '^benchmarks *FAILED .*4 rows, 0 left out, 1 parts failed' "$results.table.txt"
for ((i = 0; i < 100; i++)); do kill -0 "$(cat "$work/memory.pid")" 2>/dev/null || break; sleep 0.1; done
expect "the part has ended" [ "$i" -lt 100 ]
rm -f "$work/memory.pid"
signals KILL "$work/memory.pid" bench
kill "$(cat "$work/memory.pid")"
expect "an end without a signal leaves the earlier parts" \
  grep -q 'figures of model' <(archive "$work/back/all.tar.gz" bench.model.log)
expect "and the JSON of an earlier run" grep -q '"model/1"' <(archive "$work/back/all.tar.gz" bench.json)
good
tool ncu <<SAYS
#!/bin/sh
echo \$\$ >"$work/ncu.pid"
exec sleep 60
SAYS
rm -rf "$work/results"
signals TERM "$work/ncu.pid" plugin,profile
expect "a signal while ncu is tried is of that step" \
  grep -q '^profile of kernels *FAILED .*ended by a signal' "$results.table.txt"
expect "and not of the one before" [ "$(grep -c '^CUDA library' "$results.table.txt")" -eq 1 ]

good
(cd "$work" &&
  PATH=$work/path:$PATH tree/scripts/gpu_check.sh --prebuilt "$work/build" --only plugin >/dev/null)
expect "the folder of a build has the results" [ -s "$work/tree/build/gpu_results/stand-in.plugin.log" ]
expect "the recorded ones stay" [ ! -e "$work/tree/bench/results" ]

tool timeout <<'TIMEOUT'  # notes the limits
#!/bin/sh
[ "$1" != -k ] || shift 2
limit=$1
shift
echo "timeout $limit $*" >>"$CALLS"
exec "$@"
TIMEOUT
tool python3 <<'PYTHON'  # with PyTorch, whose benchmark fails after two rows
#!/bin/sh
[ "$1" != -c ] || exit 0
printf '%s\n' "model/1 2.5" "memory/1 3"
echo "no memory" >&2
exit 1
PYTHON
limit_of() { sed -n "s|^timeout \([0-9]*\) .*$1.*|\1|p" "$CALLS" | sort -n | tail -1; }  # the greatest
check "PyTorch that fails after two rows" 1 "^PyTorch's figures *FAILED .*exit 1, 2 figures" \
  --only bench,ops,device
expect "its figures are used" [ "$(grep -c -e "--part=.*--peers=$results.pytorch.txt" "$CALLS")" -eq 4 ]
expect "training steps come before it, and get them too" \
  grep -q '"model/1", "real_time": 1, "pytorch_real_time": 2.5}' "$results.bench.json"
expect "they stand once in a row" [ "$(grep -c 'model/1.*pytorch' "$results.bench.json")" -eq 1 ]
expect "the limit of nvidia-smi" [ "$(limit_of nvidia-smi)" -eq 30 ]
expect "the limit of the search for PyTorch" [ "$(limit_of 'python3 -c import torch')" -eq 90 ]
expect "its rows" [ "$(cat "$results.pytorch.txt")" = "model/1 2.5"$'\n'"memory/1 3" ]
expect "its error is kept" grep -q '^no memory' "$results.pytorch.log"
expect "the limit of PyTorch" [ "$(limit_of torch_gpu.py)" -le 150 ]
expect "the limit of a part" [ "$(limit_of part=memory)" -le 300 ]
expect "the limit of the op table" [ "$(limit_of filter=CudaOpTable)" -le 180 ]
expect "the limit of the device tests" [ "$(limit_of filter=-CudaOpTable)" -le 300 ]
sed -i 's/^exec/case "$*" in *torch_gpu*) exit 124 ;; esac\nexec/' "$work/path/timeout"
check "PyTorch that runs into its limit" 1 "^PyTorch's figures *FAILED .*limit of 150 s" --only bench
check "PyTorch that has half of the time" 3 "^PyTorch's figures *partly .*cut off: .* --seconds 120" \
  --only bench --seconds 120
check "little time for programs" 0 '^rnn on the device *passed' --only programs --seconds 60
rm -f "$CALLS"
check "little time for programs" 0 '^rnn on the device *passed' --only programs --seconds 60
expect "none takes longer" [ "$(limit_of bin/)" -le 55 ]
rm "$work/path/timeout"

good
tool ldconfig <<<'#!/bin/sh'
check "no NCCL" 0 '^NCCL, one rank *skipped .*no libnccl' --only programs
mkdir -p "$work/nccl/lib"
touch "$work/nccl/lib/libnccl.so.2"
tool python3 <<PYTHON
#!/bin/sh
case "\$2" in *nvidia.nccl*) echo "$work/nccl" ;; *) exit 1 ;; esac
PYTHON
check "NCCL of a python package" 0 '^NCCL, one rank *passed' --only programs
expect "is found, for one rank" \
  grep -q "^--steps 5 --trainers 1 --device cuda with $work/nccl/lib/libnccl.so.2," "$results.nccl.log"
program hybrid <<<'#!/bin/sh
exit 1'
check "another result over NCCL" 1 '^NCCL, one rank *FAILED .*exit 1' --only programs
rm "$work/build/bin/hybrid" "$work/path/ldconfig"
check "a build without hybrid" 0 '^NCCL, one rank *left out' --only programs

good
sed -i '2i case "$*" in *racecheck*) exit 9 ;; esac' "$work/path/compute-sanitizer"
check "a tool that finds something" 1 '^compute-sanitizer racecheck *FAILED .*exit 9' --only sanitizer
good
sed -i '2i case "$* $GTEST_SHARD_INDEX" in *memcheck*0) exit 124 ;; esac' "$work/path/compute-sanitizer"
check "a part of a tool without time" 3 '^compute-sanitizer memcheck *partly .*cut off: 1 of' --only sanitizer
sed -i '2s/exit 124/kill -9 $$/' "$work/path/compute-sanitizer"
check "a part of a tool without memory" 1 '^compute-sanitizer memcheck *FAILED .*exit 137' --only sanitizer
good
sed -i '2i [ "$GTEST_SHARD_INDEX" != 0 ] || exit 124' "$work/build/bin/test_cuda"
check "a part of the op table that hangs" 1 '^op table on the device *FAILED .*its limit of 180 s' --only ops
check "one without time" 3 '^op table on the device *partly .*cut off: 1 of 3' --only ops --seconds 100
sed -i '2s/exit 124/kill -9 $$/' "$work/build/bin/test_cuda"
check "one without memory" 1 '^op table on the device *FAILED .*exit 137' --only ops --seconds 100
good
tool ncu <<<'#!/bin/sh
exit 1'
check "a profiler without counters" 0 '^profile of kernels *skipped .*does not work here' --only profile
good
sed -i '2i case "$*" in *Tanh*) echo "==WARNING== No kernels were profiled." ;; esac' "$work/path/ncu"
check "a kernel that is not found" 1 '^profile of kernels *FAILED .*no kernel of Tanh/float32/64M was' \
  --only profile
good
sed -i '2i case "$*" in *Tanh*) exit 124 ;; esac' "$work/path/ncu"
check "a kernel without time" 3 '^profile of kernels *partly .*cut off: 1 of 14 rows' --only profile
sed -i '2s/exit 124/kill -9 $$/' "$work/path/ncu"
check "a kernel without memory" 1 '^profile of kernels *FAILED .*exit 137' --only profile
good
says ipc <<<'echo "Ipc/HandOver/64MiB      12.5 us"'
check "memory handed over" 0 '^memory between processes *passed .*Ipc/HandOver/64MiB 12.5 us' --only bench
says ipc <<<'echo "Ipc/Open/64MiB  failed: an error"; echo "Ipc/HandOver/64MiB  12.5 us"'
check "a row between others that fails" 1 '^memory between processes *FAILED .*Open/64MiB failed: an error' \
  --only bench
says ipc <<<'echo "Ipc   left out: no IPC here"; echo "Ipc/Open/64MiB  failed: an error"'
check "a failure beside a row left out" 1 '^memory between processes *FAILED' --only bench
says ipc <<<'echo "Ipc      left out: no IPC here"'
check "a device without IPC" 0 '^memory between processes *skipped .*no IPC here' --only bench
good
sed -i 's/"pid": 1/"pid": 0/' "$work/build/bin/bench_gpu"
check "a trace without the device" 1 '^trace of a training step *FAILED' --only trace
good
check "one step alone" 0 '^golden tests on cuda *passed' --only golden
check "a step that is not there" 2 "there is no step 'speed'" --only golden,speed
check "no time left" 3 '^golden tests on cuda *left out' --seconds 3
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
says driver <<<'Stand-in Of The Driver'
check "a device without nvidia-smi and PyTorch" 1 'summary: device Stand-in Of The Driver ' --only plugin,ops
rm "$SAYS.driver"
none='{ echo "[==========] 0 tests from 0 test suites ran."; exit; }'
sed -i "2i [ \"\${GTEST_SHARD_INDEX:-0}\" -eq 0 ] || $none" "$work/build/bin/test_cuda"
check "no device, and parts without a test" 0 '^op table on the device *\(passed\|partly\)' --only ops
says model <<<'echo "bench_gpu: nothing measured: no driver"; exit 0'
check "nothing to measure" 0 '^benchmarks: model *skipped' --only bench
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
