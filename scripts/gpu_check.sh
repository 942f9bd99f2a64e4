#!/usr/bin/env bash
# Checks the CUDA backend on a machine with a GPU. It builds it, and runs the op table on the device against
# the CPU and the benchmarks (PyTorch's beside them where a python with torch is found). It runs golden tests,
# training runs, a traced training step, a profile of a dozen kernels and memory checks, and prints one table.
# The table, raw logs and JSON are kept in build/gpu_results as they come, and after each row in one archive.
# Needs a CUDA toolkit, CMake and a compiler, no network and no root.
#   scripts/gpu_check.sh [--only STEP,...] [--seconds N] [--quick] [--filter RE] [--prebuilt BUILD_FOLDER]
#                        [--results FOLDER] [--archive FILE.tar.gz]
#   scripts/gpu_check.sh --pack [FILE.tar.gz]    on a machine that has them: packs the sources together with
#                                                those of Eigen and GoogleTest, without which `build` fails
#   scripts/gpu_check.sh --carry BUILD_FOLDER [FILE.tar.xz]
#                                                copies its programs, stripped, with the shared libraries that
#                                                they need, to build/gpu_carry, for --prebuilt elsewhere, and
#                                                packs that folder into the file
# Steps: build, ops, bench, device, plugin, golden, programs, trace, profile, sanitizer. They run in this
# order, or in that of --only. Those that --seconds leaves no time for are named in the table, and the exit
# status is 3 then. --filter and --quick are the benchmarks'. Each part of the benchmarks is a process of its
# own, training steps of the language model first, PyTorch after them. A step replaces its own results of an
# earlier run, and the table goes on. Where few files come back from a machine, put the archive among them:
# --archive names it. A signal to end adds a row and packs once more.
# Two runs fit a machine that is at hand for a quarter of an hour: --quick --seconds 330 --only ops,bench, and
# the same with the other steps.
# A build folder to travel is made for one kind of device and without oneDNN, which is not needed there, and
# lies beside the sources. A build that finds gRPC has the example `rnn`, and with Gloo `hybrid`, which trains
# over NCCL. The commands below made a folder of 250 MiB and a file of 44.3 MB; oneDNN alone has 39.6 MB, and
# 7.0 MB in such a file.
#   cmake --preset cuda -B build/gpu -DWEFT_CUDA_ARCHITECTURES=90-real -DWEFT_ONEDNN=OFF && \
#     cmake --build build/gpu --target test_cuda test_plugin test_nn test_optim bench_gpu hello_cuda \
#                                      rnn hybrid
#   scripts/gpu_check.sh --carry build/gpu build/gpu_carry.tar.xz, and there, in a copy of the sources:
#   tar -xJf build/gpu_carry.tar.xz && scripts/gpu_check.sh --prebuilt build/gpu_carry
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
# A toolkit that is installed, but not on PATH.
for toolkit in "${CUDA_PATH:-}" "${CUDA_HOME:-/usr/local/cuda}"; do
  [ ! -x "$toolkit/bin/nvcc" ] || command -v nvcc >/dev/null || PATH=$PATH:$toolkit/bin
done
quick=() prebuilt='' filter=. only='' seconds=0 results=build/gpu_results archive=''
carried=build/gpu_pack
steps=build,ops,bench,device,plugin,golden,programs,trace,profile,sanitizer
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
    --archive) archive=${2:?--archive takes a file}; shift ;;
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
  timeout -k 5 90 "$candidate" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' \
    >/dev/null 2>&1 &&
    python=$candidate && break
done
# The text of nvidia-smi on a failure goes to its output too.
device=$(timeout -k 5 30 nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null) || device=''
device=${device%%$'\n'*}
[ -n "$device" ] || [ -z "$python" ] ||
  device=$(timeout -k 5 90 "$python" -c 'import torch; print(torch.cuda.get_device_name())')
[ -n "$device" ] ||  # a driver without its programs
  device=$(sed -n 's/^Model:[[:space:]]*//p' /proc/driver/nvidia/gpus/*/information 2>/dev/null | head -1)
[ -n "$device" ] || device=none
# cuDNN, cuBLAS and NCCL may have come with python packages instead of the toolkit.
package_with() {  # package_with FILE MODULE...: the folder of the first python package that has the file
  local file=$1 module folder
  shift
  for module in "$@"; do
    folder=$(python3 -c "import $module as m; print(list(m.__path__)[0])" 2>/dev/null) && [ -n "$folder" ] &&
      compgen -G "$folder/$file" >/dev/null && echo "$folder" && return
  done
}
cudnn=$(package_with 'lib/libcudnn.so.9' nvidia.cudnn)
cublas=$(package_with 'lib/libcublasLt.so*' nvidia.cu13 nvidia.cublas)
nccl=$(package_with 'lib/libnccl.so.2' nvidia.nccl)
# Kept, since grep -q would end ldconfig early and the pipe read as a failure.
known=$(ldconfig -p 2>/dev/null)
if [ -z "${WEFT_CUDNN_LIBRARY:-}" ] && [ -n "$cudnn" ] && ! grep -q 'libcudnn\.so\.9' <<<"$known"; then
  export WEFT_CUDNN_LIBRARY=$cudnn/lib/libcudnn.so.9
fi
if [ -z "${WEFT_NCCL_LIBRARY:-}" ] && [ -n "$nccl" ] && ! grep -q 'libnccl\.so\.2' <<<"$known"; then
  export WEFT_NCCL_LIBRARY=$nccl/lib/libnccl.so.2
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
[ -n "$archive" ] || archive=$results/$name.tar.gz
mkdir -p "$results" "$(dirname "$archive")" build
table=() failed=0 late=0 running='' current=''
printf '# %s: %s\n' "$(date '+%F %T')" "${only:-$steps}" >>"$results/$name.table.txt"
fresh() {  # fresh PATTERN...: drops such results of an earlier run
  local pattern
  for pattern in "$@"; do
    # shellcheck disable=SC2086
    rm -f "$results/$name."$pattern
  done
}
keep() {  # one file to fetch, complete after each row; one that is broken off replaces none
  local code=0
  find "$results" -maxdepth 1 -type f -name "$name.*" ! -name '*.tar.gz*' -printf '%f\0' |
    tar -C "$results" --null --files-from=- -czf "$archive.part" || code=$?
  [ "$code" -gt 1 ] || mv -f "$archive.part" "$archive"  # 1: a log has grown meanwhile
}
row() {  # row TITLE STATUS SECONDS NOTE
  table+=("$(printf '%-30s %-8s %6s s  %s' "$1" "$2" "$3" "$4")")
  printf '%s\n' "${table[-1]}" >>"$results/$name.table.txt"
  [ "$2" != FAILED ] || failed=1
  keep
}
finish() {
  printf '\n=== summary: device %s ===\n' "$device"
  printf '%s\n' "${table[@]}"
  [ "$device" != none ] || echo "no GPU here: steps that need one were skipped; nothing above is a GPU figure"
  echo "table, logs and JSON: $results/$name.*, together in $archive"
  [ "$failed" -ne 0 ] || exit "$late"
  exit 1
}
# await TITLE COMMAND...: runs it so that a signal to this script is heard meanwhile, which gets a row of that
# title.
await() {
  local code=0
  current=$1
  shift
  "$@" &
  running=$!
  wait "$running" || code=$?
  running='' current=''
  return "$code"
}
end_tree() {  # end_tree PROCESS: ends it and those that it has started
  local child
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do end_tree "$child"; done
  kill "$1" 2>/dev/null
}
ended() {
  trap '' TERM INT HUP
  row "${current:-the check}" FAILED "$SECONDS" "ended by a signal"
  [ -z "$running" ] || end_tree "$running"
  if [ -n "${ran:-}" ]; then  # in the middle of the benchmarks
    [[ "$current" != "benchmarks: "* ]] || bad=$((bad + 1))
    join_parts "${ran[@]}"
  fi
  finish
}
trap ended TERM INT HUP
left() {  # seconds, at least 1: `timeout 0` would be none
  local time=$((seconds - SECONDS - 5))
  if [ "$seconds" -eq 0 ]; then echo 100000; elif [ "$time" -lt 1 ]; then echo 1; else echo "$time"; fi
}
at_most() {  # at_most SECONDS: or the time that is left
  local time
  time=$(left)
  if [ "$1" -lt "$time" ]; then echo "$1"; else echo "$time"; fi
}
# limited LIMIT COMMAND...: 124 if it runs into its limit, also where it has to be killed then. So 137 has
# another reason, such as a lack of memory.
limited() {
  local limit=$1 start=$SECONDS code=0
  shift
  timeout -k 10 "$limit" "$@" || code=$?
  [ "$code" -ne 137 ] || [ $((SECONDS - start)) -lt "$limit" ] || code=124
  return "$code"
}
leave_out() { late=3 && row "$1" "left out" 0 "no time left of --seconds $seconds"; }
logged() {  # logged FILE COMMAND...
  local file=$1
  shift
  "$@" 2>&1 | tee "$file"
}
# tests_of LOG: the words of programs of GoogleTest, for the `note`, `status` and `code` of the caller
tests_of() {
  local programs passed skipped
  note=$(awk '/^\[==========\].* ran/ { n += $2 }
    /^\[  (PASSED|SKIPPED|FAILED) *\] [0-9]+ tests?/ {
      if (!($2 in of)) order[++kinds] = $2
      of[$2] += $4
    }
    END {
      printf "%d tests", n
      for (i = 1; i <= kinds; i++) printf ", %d %s", of[order[i]], tolower(order[i])
    }' "$1")
  programs=$(grep -c '^\[==========\] [1-9].* ran' "$1") passed=$(grep -c '^\[  PASSED  \] [1-9]' "$1")
  # Listed at the end of each program. Without a device everything may skip; with one, only tests of its
  # absence or of other devices.
  skipped=$(sed -n 's/^\[  SKIPPED \] \([A-Za-z0-9_/]*\.[A-Za-z0-9_/]*\)$/\1/p' "$1" |
    grep -v 'without_a_device\|instruction_sets' | sort -u | head -3 | tr '\n' ' ')
  if [ "$device" != none ] && grep -q '^\[==========\] 0 tests.* ran' "$1"; then
    code=1 note+=", a program had no test to run"
  elif [ "$passed" -eq 0 ]; then
    status=skipped
  elif [ "$passed" -lt "$programs" ]; then
    status=partly
  fi
  if [ "$device" != none ] && [ -n "$skipped" ]; then
    code=1 note+=", skipped although there is a device: ${skipped% }"
  fi
}

# step TITLE LOG LIMIT COMMAND...: runs it, keeps its output, adds a row. LIMIT: most seconds. A function sees
# them as `own`, and as `limit` those that there is time for, and ends in time. Lines `gpu_check.sh: ...` of
# the output go to the row.
step() {
  local title=$1 log=$results/$name.$2.log own=$3 start=$SECONDS status=passed note='' limit code=0 said
  shift 3
  limit=$(at_most "$own")
  if [ "$limit" -lt 10 ]; then leave_out "$title"; return 0; fi
  printf '\n=== %s ===\n' "$title"
  if [ "$(type -t "$1")" = function ]; then
    await "$title" logged "$log" "$@" || code=$?
  else
    await "$title" logged "$log" limited "$limit" "$@" || code=$?
  fi
  if grep -q '^\[==========\].* ran' "$log"; then
    tests_of "$log"
  elif grep -q '^bench_gpu: nothing measured' "$log"; then
    status=skipped
  elif grep -q '^bench_gpu: 0 rows, 0 left out, 0 failed' "$log"; then
    return 0  # a part without rows of the filter
  else
    note=$(sed -n 's/^bench_gpu: \([0-9]* rows.*\)/\1/p' "$log")
  fi
  said=$(sed -n 's/^gpu_check.sh: //p' "$log" | tail -3 | paste -sd ';' | sed 's/;/; /g')
  note+=${said:+${note:+, }$said}
  if [ "$code" -eq 124 ] && [ "$limit" -lt "$own" ]; then
    code=0 status=partly late=3 note="cut off: no time left of --seconds $seconds"
  elif [ "$code" -eq 0 ] && grep -q '^gpu_check.sh: cut off' "$log"; then
    status=partly late=3
  elif [ "$device" != none ] && [ "$code" -eq 0 ] && [ "$status" != passed ]; then
    code=1 note+="${note:+, }skipped although there is a device"
  fi
  if [ "$code" -eq 124 ]; then
    status=FAILED note="ran into its limit of $limit s${note:+, $note}"
  elif [ "$code" -ne 0 ]; then
    status=FAILED note="exit $code${note:+, $note}"
  fi
  row "$title" "$status" $((SECONDS - start)) "$note"
  return "$code"
}

bin=${prebuilt:-build/gpu}/bin
export WEFT_TEST_DATA_DIR=$PWD/tests/golden
. scripts/gpu_steps.sh
only=${only:-$steps}
for chosen in ${only//,/ }; do
  if [ "$chosen" != build ]; then
    "step_$chosen"
  elif [ -z "$prebuilt" ]; then
    step "build" build 3000 build || finish
  fi
done
finish
