#!/usr/bin/env bash
# Checks the CUDA backend on a machine with a GPU. It builds it and runs the benchmarks (PyTorch's beside them
# where a python with torch is found). It runs the op table on the device against the CPU, golden tests,
# training runs, a traced training step, a profile of a dozen kernels and memory checks, and prints one table.
# The table, raw logs and JSON are kept in bench/results/gpu as they come, and after each step in one archive.
# Needs a CUDA toolkit, CMake and a compiler, no network and no root.
#   scripts/gpu_check.sh [--only STEP,...] [--seconds N] [--quick] [--filter RE] [--prebuilt BUILD_FOLDER]
#                        [--results FOLDER]
#   scripts/gpu_check.sh --pack [FILE.tar.gz]    on a machine that has them: packs the sources together with
#                                                those of Eigen and GoogleTest, without which `build` fails
#   scripts/gpu_check.sh --carry BUILD_FOLDER [FILE.tar.xz]
#                                                copies its programs, stripped, with the shared libraries that
#                                                they need, to build/gpu_carry, for --prebuilt elsewhere, and
#                                                packs that folder into the file
# Steps: build, bench, ops, device, plugin, golden, programs, trace, profile, sanitizer. Those that --seconds
# leaves no time for are named in the table, and the exit status is 3 then. --filter and --quick are the
# benchmarks'. Two runs fit a machine that is lent for minutes: --only build,bench,ops and the other steps.
# A build folder to travel is made for one kind of device and without oneDNN, which is not needed there, and
# lies beside the sources. A build that finds gRPC has the example `rnn`. The commands below made a folder of
# 221 MB and a file of 37.0 MB; oneDNN alone has 39.6 MB, and 7.0 MB in such a file.
#   cmake --preset cuda -B build/gpu -DWEFT_CUDA_ARCHITECTURES=90-real -DWEFT_ONEDNN=OFF && \
#     cmake --build build/gpu --target test_cuda test_plugin test_nn test_optim bench_gpu hello_cuda rnn
#   scripts/gpu_check.sh --carry build/gpu build/gpu_carry.tar.xz, and there, in a copy of the sources:
#   tar -xJf build/gpu_carry.tar.xz && scripts/gpu_check.sh --prebuilt build/gpu_carry
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# A toolkit that is installed, but not on PATH.
for toolkit in "${CUDA_PATH:-}" "${CUDA_HOME:-/usr/local/cuda}"; do
  [ ! -x "$toolkit/bin/nvcc" ] || command -v nvcc >/dev/null || PATH=$PATH:$toolkit/bin
done
quick=() prebuilt='' filter=. only='' seconds=0 results=bench/results/gpu carried=build/gpu_pack
steps=build,bench,ops,device,plugin,golden,programs,trace,profile,sanitizer
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p;}' "$0"; }

while [ $# -gt 0 ]; do
  case "$1" in
    -h|--help) usage; exit 0 ;;
    --pack) . scripts/gpu_pack.sh; pack "${2:-build/weft_gpu.tar.gz}"; exit ;;
    --carry) . scripts/gpu_pack.sh; carry "${2:?--carry takes a build folder}" "${3:-}"; exit ;;
    --quick) quick=(--quick) ;;
    --prebuilt) prebuilt=${2:?--prebuilt takes a build folder}; shift ;;
    --filter) filter=${2:?--filter takes a regular expression}; shift ;;
    --only) only=${2:?--only takes steps: $steps}; shift ;;
    --seconds) seconds=${2:?--seconds takes a number}; shift ;;
    --results) results=${2:?--results takes a folder}; shift ;;
    *) echo "gpu_check.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done

for chosen in ${only//,/ }; do
  [[ ",$steps," == *",$chosen,"* ]] || {
    echo "gpu_check.sh: there is no step '$chosen' (steps: $steps)" >&2
    exit 2
  }
done
[ -z "$only" ] || [ -n "${only//,/}" ] || { echo "gpu_check.sh: --only takes steps: $steps" >&2; exit 2; }
[[ "$seconds" =~ ^(0|[1-9][0-9]*)$ ]] || {
  echo "gpu_check.sh: --seconds takes a number, not '$seconds'" >&2
  exit 2
}

python=''
for candidate in python3 python; do
  "$candidate" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1 &&
    python=$candidate && break
done
# The text of nvidia-smi on a failure goes to its output too.
device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null) || device=''
device=${device%%$'\n'*}
[ -n "$device" ] || [ -z "$python" ] ||
  device=$("$python" -c 'import torch; print(torch.cuda.get_device_name())')
[ -n "$device" ] || device=none
# cuDNN and cuBLAS may have come with python packages instead of the toolkit.
package_with() {  # package_with FILE MODULE...: the folder of the first python package that has the file
  local file=$1 module folder
  shift
  for module in "$@"; do
    folder=$(python3 -c "import $module as m; print(list(m.__path__)[0])" 2>/dev/null) &&
      compgen -G "$folder/$file" >/dev/null && echo "$folder" && return
  done
}
cudnn=$(package_with 'lib/libcudnn.so.9' nvidia.cudnn)
cublas=$(package_with 'lib/libcublasLt.so*' nvidia.cu13 nvidia.cublas)
# Kept, since grep -q would end ldconfig early and the pipe read as a failure.
known=$(ldconfig -p 2>/dev/null)
if [ -z "${WEFT_CUDNN_LIBRARY:-}" ] && [ -n "$cudnn" ] && ! grep -q 'libcudnn\.so\.9' <<<"$known"; then
  export WEFT_CUDNN_LIBRARY=$cudnn/lib/libcudnn.so.9
fi
peer_path=${LD_LIBRARY_PATH:-}  # PyTorch brings libraries of its own
# A build folder made elsewhere looks for the libraries where they were there; here they are found behind the
# paths that are set already.
compiler=$(command -v nvcc) && compiler=$(readlink -f "$compiler")
for folder in "${compiler%/bin/nvcc}/lib64" "${CUDA_PATH:-}/lib64" "${CUDA_HOME:-/usr/local/cuda}/lib64" \
  "$cublas/lib"; do
  ! compgen -G "$folder/libcudart.so*" >/dev/null && ! compgen -G "$folder/libcublasLt.so*" >/dev/null ||
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
if [ -d "$prebuilt/lib" ]; then  # from --carry
  LD_LIBRARY_PATH=$(realpath "$prebuilt/lib")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
fi
name=$(printf '%s' "$device" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9][^a-z0-9]*/-/g')
mkdir -p "$results" build
rm -f "$results/$name".*.log
table=() failed=0 late=0
: >"$results/$name.table.txt"
row() {  # row TITLE STATUS SECONDS NOTE
  table+=("$(printf '%-26s %-8s %6s s  %s' "$1" "$2" "$3" "$4")")
  printf '%s\n' "${table[-1]}" >>"$results/$name.table.txt"
  # one file to fetch, complete after each step
  find "$results" -maxdepth 1 -type f -name "$name.*" ! -name '*.tar.gz' -printf '%f\0' |
    tar -C "$results" --null --files-from=- -czf "$results/$name.tar.gz"
  [ "$2" != FAILED ] || failed=1
  return 0
}
finish() {
  printf '\n=== summary: device %s ===\n' "$device"
  printf '%s\n' "${table[@]}"
  [ "$device" != none ] || echo "no GPU here: steps that need one were skipped; nothing above is a GPU figure"
  echo "table, logs and JSON: $results/$name.*, together in $results/$name.tar.gz"
  [ "$failed" -ne 0 ] || exit "$late"
  exit 1
}
wanted() { [ -z "$only" ] || [[ ",$only," == *",$1,"* ]]; }
left() {  # seconds, at least 1: `timeout 0` would be none
  local time=$((seconds - SECONDS - 5))
  if [ "$seconds" -eq 0 ]; then echo 100000; elif [ "$time" -lt 1 ]; then echo 1; else echo "$time"; fi
}
leave_out() { row "$1" "left out" 0 "no time left of --seconds $seconds" && late=3; }

# step TITLE LOG LIMIT COMMAND...: runs it, keeps its output, adds a row. LIMIT: most seconds; a function asks
# `left` itself.
step() {
  local title=$1 log=$results/$name.$2.log limit=$3 start=$SECONDS status=passed note='' time
  shift 3
  time=$(left)
  if [ "$time" -lt 10 ]; then leave_out "$title"; return 0; fi
  [ "$limit" -le "$time" ] || limit=$time
  printf '\n=== %s ===\n' "$title"
  if [ "$(type -t "$1")" = function ]; then
    "$@" 2>&1 | tee "$log"
  else
    timeout -k 10 "$limit" "$@" 2>&1 | tee "$log"
  fi
  local code=${PIPESTATUS[0]}
  if grep -q '^\[==========\].* ran' "$log"; then
    note=$(awk '/^\[==========\].* ran/ { n += $2 }
      /^\[  (PASSED|SKIPPED|FAILED) *\] [0-9]+ tests?/ {
        if (!($2 in of)) order[++kinds] = $2
        of[$2] += $4
      }
      END {
        printf "%d tests", n
        for (i = 1; i <= kinds; i++) printf ", %d %s", of[order[i]], tolower(order[i])
      }' "$log")
    local programs passed skipped
    programs=$(grep -c '^\[==========\].* ran' "$log") passed=$(grep -c '^\[  PASSED  \] [1-9]' "$log")
    # Listed at the end of each program. Without a device everything may skip; with one, only tests of its
    # absence or of other devices.
    skipped=$(sed -n 's/^\[  SKIPPED \] \([A-Za-z0-9_/]*\.[A-Za-z0-9_/]*\)$/\1/p' "$log" |
      grep -v 'without_a_device\|instruction_sets' | sort -u | head -3 | tr '\n' ' ')
    if grep -q '^\[==========\] 0 tests.* ran' "$log"; then
      code=1 note+=", a program had no test to run"
    elif [ "$passed" -eq 0 ]; then
      status=skipped
    elif [ "$passed" -lt "$programs" ]; then
      status=partly
    fi
    if [ "$device" != none ] && [ -n "$skipped" ]; then
      code=1 note+=", skipped although there is a device: ${skipped% }"
    fi
  elif grep -q '^bench_gpu: nothing measured' "$log"; then
    status=skipped
  fi
  if [ "$code" -eq 0 ] && grep -q '^gpu_check.sh: cut off' "$log"; then
    status=partly late=3 note+=", $(sed -n 's/^gpu_check.sh: //p' "$log" | tail -1)"
  elif [ "$device" != none ] && [ "$code" -eq 0 ] && [ "$status" != passed ]; then
    code=1 note+=", skipped although there is a device"
  fi
  note=${note#, }
  [ "$code" -eq 0 ] || { status=FAILED; note="exit $code${note:+, }$note"; }
  [ "$code" -ne 124 ] || note="ran into its limit of $limit s"
  row "$title" "$status" $((SECONDS - start)) "$note"
  return "$code"
}

build_googletest() {  # from the carried sources, where the machine has none; uses the caller's generator
  [ -d "$carried/googletest" ] || return 0
  timeout -k 10 "$(left)" cmake -S "$carried/googletest" -B build/gpu_googletest "${generator[@]}" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_STANDARD=17 \
    -DCMAKE_INSTALL_PREFIX="$PWD/build/gpu_prefix" -DCMAKE_INSTALL_LIBDIR=lib &&
    timeout -k 10 "$(left)" cmake --build build/gpu_googletest -j "$(nproc)" --target install
}
build() {
  local arch generator=() prefix=()
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) || arch=''
  arch=${arch%%$'\n'*} arch=${arch//./}
  command -v ninja >/dev/null && generator=(-G Ninja)
  [ ! -d "$carried" ] || prefix=(-DCMAKE_PREFIX_PATH="$PWD/build/gpu_prefix;$PWD/$carried/prefix")
  [ ! -f "$cublas/include/cublasLt.h" ] || prefix+=(-DWEFT_CUBLAS_DIR="$cublas")
  [ ! -f "$cudnn/include/cudnn.h" ] || prefix+=(-DWEFT_CUDNN_INCLUDE_DIR="$cudnn/include")
  build_googletest &&
    timeout -k 10 "$(left)" cmake -S . -B build/gpu "${generator[@]}" "${prefix[@]}" \
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG" -DWEFT_CUDA=ON \
      -DWEFT_CUDA_ARCHITECTURES="${arch:-90}" -DWEFT_WERROR=OFF -DWEFT_DISTRIBUTED=OFF \
      -DWEFT_BUILD_EXAMPLES=ON -DWEFT_INSTALL=OFF &&
    timeout -k 10 "$(left)" cmake --build build/gpu -j "$(nproc)" \
      --target test_cuda test_plugin test_nn test_optim bench_gpu hello_cuda
}

# The example `rnn` as a user runs it, on the device and on the CPU: their losses over the first hundred
# steps.
programs() {
  local corpus=build/gpu_corpus flags line title
  mkdir -p "$corpus"
  for line in "train 4000 1" "valid 300 2" "test 300 3"; do
    # shellcheck disable=SC2086
    set -- $line
    awk -v n="$2" -v x="$3" 'BEGIN {
      while (n-- > 0) {
        x = (x * 1103515245 + 12345) % 2147483648
        printf "w%d%s", int(x / 65536) % 50, n % 12 ? " " : "\n"
      }
    }' >"$corpus/$1.txt"
  done
  flags="--data $corpus --emsize 32 --nhid 32 --batch-size 4 --bptt 8 --epochs 1"
  flags+=" --max-steps 100 --lr 2 --print-losses"
  # shellcheck disable=SC2086
  timeout 100 "$bin/rnn" $flags --mode local >"$corpus/cpu.txt" 2>&1 || { cat "$corpus/cpu.txt"; return 1; }
  for title in "--mode local --device cuda" "--mode local --place encoder=cuda,decoder=cuda" \
    "--mode distributed --device cuda"; do
    # shellcheck disable=SC2086
    timeout 100 "$bin/rnn" $flags $title >"$corpus/device.txt" 2>&1 || {
      echo "rnn $title:"
      cat "$corpus/device.txt"
      return 1
    }
    awk -v title="$title" -v limit=1e-3 '/^step [0-9]+ .*loss / {
        for (i = 1; i < NF; i++) if ($i == "loss") {
          if (FNR == NR) cpu[$2] = $(i + 1)
          else if ($(i + 1) ~ /^[0-9.]+(e[-+][0-9]+)?$/) {
            n++
            d = ($(i + 1) - cpu[$2]) / cpu[$2]
            if (d < 0) d = -d
            if (d > worst) worst = d
          }
        }
      }
      END {
        printf "rnn %s: %d losses, at most %.2g beside those of the CPU\n", title, n, worst
        exit !(n == 100 && worst < limit)
      }' "$corpus/cpu.txt" "$corpus/device.txt" || return 1
  done
}

bin=${prebuilt:-build/gpu}/bin
export WEFT_TEST_DATA_DIR=$PWD/tests/golden
if [ -z "$prebuilt" ] && wanted build; then
  step "build" build 3000 build || finish
fi
if wanted bench; then
  peers=()
  if [ -n "$python" ] && [ "$(left)" -lt 60 ]; then
    leave_out "PyTorch's figures"
  elif [ -n "$python" ]; then
    printf '\n=== PyTorch on the same device ===\n'
    start=$SECONDS limit=$(($(left) / 2))
    [ "$limit" -lt 500 ] || limit=500
    # With the environment that the user gave it: its own libraries and workspace.
    LD_LIBRARY_PATH=$peer_path PYTHONDONTWRITEBYTECODE=1 timeout "$limit" \
      "$python" bench/peers/torch_gpu.py "$filter" "${quick[@]}" 2>"$results/$name.pytorch.log" |
      tee "$results/$name.pytorch.txt"
    code=${PIPESTATUS[0]} note="$(wc -l <"$results/$name.pytorch.txt") figures"
    [ "$code" -ne 124 ] || note+=", ran into its limit of $limit s"
    if [ "$code" -eq 0 ]; then
      row "PyTorch's figures" passed $((SECONDS - start)) "$note"
    else
      row "PyTorch's figures" FAILED $((SECONDS - start)) \
        "exit $code, $note, see $results/$name.pytorch.log"
    fi
    peers=(--peers="$results/$name.pytorch.txt")
  fi
  step "benchmarks" bench 900 "$bin/bench_gpu" "${quick[@]}" "${peers[@]}" \
    --benchmark_filter="$filter" --benchmark_out="$results/$name.bench.json"
  handed=$(grep -s '^Ipc' "$results/$name.bench.log" | tr -s ' ')
  wrong=$(grep -m 1 ' failed: ' <<<"$handed") && handed=$wrong || handed=$(tail -1 <<<"$handed")
  case $handed in
    '') ;;  # not among the rows of the filter
    *' failed: '*) row "memory between processes" FAILED 0 "$handed" ;;
    *'left out: '*) row "memory between processes" skipped 0 "${handed#*left out: }" ;;
    *) row "memory between processes" passed 0 "$handed" ;;
  esac
fi
# cuDNN's recurrent layers repeat their bits with the first. Attention is on weft's kernels, as by default;
# its tests on cuDNN switch that on themselves.
repeats=(env "CUBLAS_WORKSPACE_CONFIG=${CUBLAS_WORKSPACE_CONFIG:-:4096:2}" WEFT_CUDNN_ATTENTION=0)
# in_parts LIMIT FILTER COMMAND...: the tests of the filter, shared among processes, since most of their time
# goes to gradients on the host. The command starts each of them, with `{}` replaced by its number from 10. A
# part without time is cut off, and the log says how many.
in_parts() {
  local limit=$1 filter=$2 parts part status=0 code cut=0 pids=()
  shift 2
  [ "$limit" -le "$(left)" ] || limit=$(left)
  parts=$(nproc)
  [ "$parts" -le 16 ] || parts=16
  for part in $(seq 0 $((parts - 1))); do
    timeout -k 10 "$limit" env GTEST_TOTAL_SHARDS="$parts" GTEST_SHARD_INDEX="$part" \
      "${@//\{\}/$((part + 10))}" "$bin/test_cuda" --gtest_filter="$filter" \
      >"$results/$name.part.$part" 2>&1 &
    pids+=($!)
  done
  for part in $(seq 0 $((parts - 1))); do
    code=0
    wait "${pids[$part]}" || code=$?
    case $code in
      0) ;;
      124 | 137) cut=$((cut + 1)) ;;
      *) status=$code ;;
    esac
    cat "$results/$name.part.$part"
    rm -f "$results/$name.part.$part"
  done
  [ "$cut" -eq 0 ] || echo "gpu_check.sh: cut off: $cut of $parts parts had no time to end"
  return "$status"
}
# Not brief: only the long form names the skipped tests.
# With WEFT_CUDA_SYNC a bad index shows in the call that was given it, as the table expects.
op_table() { in_parts 1200 'CudaOpTable*' env WEFT_CUDA_SYNC=1 "${repeats[@]}"; }
wanted ops && step "op table on the device" op_table 1200 op_table
if wanted device; then
  log=$results/$name.device.log
  step "device tests, training" device 900 "${repeats[@]}" "$bin/test_cuda" --gtest_filter='-CudaOpTable*'
  for made in "cuDNN=.cudnn_matches_the_own_cell" "attention on cuDNN=.attention_on_cudnn_matches"; do
    if [ -f "$log" ] && grep -q "OK.*${made#*=}" "$log"; then
      row "${made%=*}" passed 0 "found, and its results match weft's"
    elif [ -f "$log" ] && [ "$device" != none ]; then
      row "${made%=*}" FAILED 0 "not found, or it refuses a case: its results were not compared with weft's"
    fi
  done
fi
plugins=$(realpath -m "$bin/../plugin")
wanted plugin &&
  step "CUDA library opened late" plugin 300 env WEFT_TEST_PLUGIN_DIR="$plugins" \
    LD_LIBRARY_PATH="$plugins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$bin/test_plugin"
golden_on=cpu
[ "$device" = none ] || golden_on=cuda
wanted golden &&
  step "golden tests on $golden_on" golden 300 env WEFT_TEST_DEVICE=$golden_on bash -c \
    "'$bin/test_nn' --gtest_filter='*Golden*:WordLm*' && '$bin/test_optim' --gtest_filter='*Trajectory*'"
if wanted programs; then
  [ ! -x "$bin/hello_cuda" ] || step "hello_cuda" hello 120 "$bin/hello_cuda"
  if [ ! -x "$bin/rnn" ]; then
    row "rnn on the device" "left out" 0 "not in this build; a build that finds gRPC has it, for --prebuilt"
  elif [ "$device" = none ]; then
    row "rnn on the device" skipped 0 "no device"
  else
    step "rnn on the device" rnn 400 programs
  fi
fi
# One training step of the language model with a span per launch: the number and the time of each name.
traced() {
  local file=$results/$name.trace.json
  timeout -k 10 "$(left)" env WEFT_CUDA_TRACE="$file" "$bin/bench_gpu" --quick \
    --benchmark_filter='^LmStep/10000/650$' || return
  awk '/"ph": "X", "pid": [1-9]/ {
      dur = name = $0
      sub(/.*"dur": /, "", dur)
      sub(/.*"name": "/, "", name)
      sub(/"}.*/, "", name)
      count[name]++
      total[name] += dur + 0
    }
    END { for (n in count) printf "%12.1f us %8d times  %s\n", total[n], count[n], n }' "$file" |
    sort -rn >"$results/$name.trace.txt"
  [ -s "$results/$name.trace.txt" ] || { echo "no spans of the device in $file"; return 1; }
  echo "on the device, all steps of this run:"
  head -40 "$results/$name.trace.txt"
}
# Rows of bench_gpu, and the kernels of each that are profiled.
profiled=(Add/float32/64M:Map Tanh/float32/64M:Map Gelu/float32/64M:Map Gelu/bfloat16/64M:Map
  Dropout/float32/64M:Dropout Transpose/float32/8192x8192:Transpose SumColumns/float32/8192x8192:ReduceColumns
  Softmax/float32/65536x1024:Softmax Softmax/float32/2048x32768:Softmax LayerNorm/forward/65536x1024:LayerNorm
  CrossEntropy/forward/8192x50000:CrossEntropy Step/Adam/1GB:Adam Lstm/float32/35x20x650:CellStep
  LstmPersistent/float32/35x20x650:LstmPersistent)
profile() {
  local row status=0 limit
  for row in "${profiled[@]}"; do
    limit=$(left)
    [ "$limit" -ge 20 ] || { echo "gpu_check.sh: cut off before ${row%:*}"; break; }
    [ "$limit" -le 60 ] || limit=60
    printf '\n--- %s\n' "${row%:*}"
    timeout -k 10 "$limit" ncu --clock-control none --kernel-name-base mangled \
      --kernel-name "regex:${row##*:}" --launch-skip 2 --launch-count 1 --section SpeedOfLight \
      --section MemoryWorkloadAnalysis --section Occupancy --section LaunchStats --section WarpStateStats \
      "$bin/bench_gpu" --quick --benchmark_filter="^${row%:*}\$" || status=$?
  done
  return "$status"
}
if ! wanted trace; then
  :
elif [ "$device" = none ]; then
  row "trace of a training step" skipped 0 "no device"
else
  step "trace of a training step" trace 120 traced
fi
if ! wanted profile; then
  :
elif [ "$device" = none ]; then
  row "profile of kernels" skipped 0 "no device"
elif ! command -v ncu >/dev/null; then
  row "profile of kernels" skipped 0 "ncu is not on PATH"
elif [ "$(left)" -lt 60 ]; then
  leave_out "profile of kernels"
# Counters may be closed to users; that is the machine's, not ours.
elif timeout 60 ncu --launch-count 1 --section SpeedOfLight "$bin/bench_gpu" --quick \
  --benchmark_filter='^LaunchCost' >"$results/$name.profile_probe.log" 2>&1; then
  step "profile of kernels" profile 600 profile
else
  row "profile of kernels" skipped 0 "does not work here, see $results/$name.profile_probe.log"
fi
# sanitize TOOL LIMIT: the forward rows of the op table under a tool of compute-sanitizer, our kernels alone.
# initcheck would take results of the other kernels for unset memory. So it sees all kernels, and no rows that
# call cuBLASLt or cuDNN. WEFT_NO_CACHE: a block of its own for each tensor, so that an overrun is one.
sanitize() {
  local filter='CudaOpTable.forward/*' kernels=(--kernel-name kns=weft)
  if [ "$1" = initcheck ]; then
    kernels=()
    filter+='-*/*matmul*:*/mm:*/mv:*/dot:*/bmm:*/addmm*:*/*linear*:*/feed_forward:*/einsum*'
    filter+=':*/lstm*:*/gru*:*/rnn*:*/scaled_dot*'
  fi
  in_parts "$2" "$filter" env WEFT_NO_CACHE=1 compute-sanitizer --tool "$1" "${kernels[@]}" --port '49{}0' \
    --error-exitcode 9 --print-limit 20
}
if ! wanted sanitizer; then
  finish
elif [ "$device" = none ]; then
  row "compute-sanitizer" skipped 0 "no device"
elif ! command -v compute-sanitizer >/dev/null; then
  row "compute-sanitizer" skipped 0 "not on PATH"
# A sanitizer that cannot attach says so; that is the machine's, not ours.
elif [ "$(left)" -lt 120 ]; then
  leave_out "compute-sanitizer"
elif timeout 120 compute-sanitizer --tool memcheck \
  "$bin/test_cuda" --gtest_filter='CudaLibrary.with_a_device_it_computes' \
  >"$results/$name.sanitizer_probe.log" 2>&1; then
  tools=(memcheck racecheck synccheck initcheck)
  for i in "${!tools[@]}"; do
    share=$(($(left) / (${#tools[@]} - i)))  # of the time, equal for each tool
    [ "$share" -le 600 ] || share=600
    step "compute-sanitizer ${tools[i]}" "${tools[i]}" 600 sanitize "${tools[i]}" "$share"
  done
else
  row "compute-sanitizer" skipped 0 "does not work here, see $results/$name.sanitizer_probe.log"
fi
finish
