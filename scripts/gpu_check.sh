#!/usr/bin/env bash
# Checks the CUDA backend on a machine with a GPU: builds it, runs the op table on the device against the CPU, memory checks, golden tests and a
# training run, then the benchmarks (PyTorch's beside them where a python with torch is found), and prints one table. Raw logs and JSON
# are kept in bench/results/gpu. Needs a CUDA toolkit, CMake and a compiler, no network and no root.
#   scripts/gpu_check.sh [--quick] [--prebuilt BUILD_FOLDER] [--filter RE] [--skip-bench]
#   scripts/gpu_check.sh --pack [FILE.tar.gz]    on a machine that has them: packs the sources together with those of Eigen and GoogleTest
# A build folder that is to travel is made without what the other machine may lack, and lies there beside the sources' scripts and tests:
#   cmake --preset cuda -DWEFT_ONEDNN=OFF && cmake --build --preset cuda --target test_cuda test_plugin test_nn test_optim bench_gpu
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for toolkit in "${CUDA_PATH:-}" "${CUDA_HOME:-/usr/local/cuda}"; do  # a toolkit that is installed, but not on PATH
  [ ! -x "$toolkit/bin/nvcc" ] || command -v nvcc >/dev/null || PATH=$PATH:$toolkit/bin
done
export CUBLAS_WORKSPACE_CONFIG=${CUBLAS_WORKSPACE_CONFIG:-:4096:2}  # cuDNN's recurrent layers repeat their bits with it
quick=() prebuilt='' filter=. bench=yes carried=build/gpu_pack
usage() { sed -n '2,8s/^# \{0,1\}//p' "$0"; }

pack() {  # pack FILE: the tracked sources and, in build/gpu_pack, Eigen's and GoogleTest's
  local file=$1 from
  rm -rf "$carried"
  mkdir -p "$carried/prefix/include" "$carried/prefix/share/eigen3" "$(dirname "$file")"
  for from in /usr/include/eigen3 "${EIGEN_DIR:-}"; do
    [ -f "$from/Eigen/Core" ] && cp -r "$from" "$carried/prefix/include/eigen3" && break
  done
  [ -f "$carried/prefix/include/eigen3/Eigen/Core" ] || { echo "gpu_check.sh: no Eigen headers found (Debian: libeigen3-dev; or EIGEN_DIR=their folder)" >&2; return 1; }
  rm -rf "$carried/prefix/include/eigen3/unsupported"
  mkdir -p "$carried/prefix/share/eigen3/cmake"
  cat >"$carried/prefix/share/eigen3/cmake/Eigen3Config.cmake" <<'CMAKE'
get_filename_component(prefix ${CMAKE_CURRENT_LIST_DIR}/../../.. ABSOLUTE)
if(NOT TARGET Eigen3::Eigen)
  add_library(Eigen3::Eigen INTERFACE IMPORTED)
  set_target_properties(Eigen3::Eigen PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${prefix}/include/eigen3)
endif()
CMAKE
  printf 'set(PACKAGE_VERSION 3.4.0)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n' >"$carried/prefix/share/eigen3/cmake/Eigen3ConfigVersion.cmake"
  for from in /usr/src/googletest "${GOOGLETEST_DIR:-}"; do
    [ -f "$from/CMakeLists.txt" ] && cp -r "$from" "$carried/googletest" && break
  done
  [ -f "$carried/googletest/CMakeLists.txt" ] || { echo "gpu_check.sh: no GoogleTest sources found (Debian: googletest; or GOOGLETEST_DIR=their folder)" >&2; return 1; }
  { git ls-files -z; find "$carried" -type f -print0; } | tar --null --files-from=- -czf "$file" --transform 's,^,weft/,' || return 1
  echo "packed $(du -h "$file" | cut -f1) into $file: unpack it there and run weft/scripts/gpu_check.sh"
}

while [ $# -gt 0 ]; do
  case "$1" in
    -h|--help) usage; exit 0 ;;
    --pack) pack "${2:-build/weft_gpu.tar.gz}"; exit ;;
    --quick) quick=(--quick) ;;
    --prebuilt) prebuilt=${2:?--prebuilt takes a build folder}; shift ;;
    --filter) filter=${2:?--filter takes a regular expression}; shift ;;
    --skip-bench) bench=no ;;
    *) echo "gpu_check.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done

python=''
for candidate in python3 python; do
  "$candidate" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1 && python=$candidate && break
done
device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
[ -n "$device" ] || [ -z "$python" ] || device=$("$python" -c 'import torch; print(torch.cuda.get_device_name())')
[ -n "$device" ] || device=none
# cuDNN and cuBLAS may have come with python packages instead of the toolkit.
package_with() {  # package_with FILE MODULE...: the folder of the first python package that has the file
  local file=$1 module folder
  shift
  for module in "$@"; do
    folder=$(python3 -c "import $module as m; print(list(m.__path__)[0])" 2>/dev/null) && compgen -G "$folder/$file" >/dev/null && echo "$folder" && return
  done
}
cudnn=$(package_with 'lib/libcudnn.so.9' nvidia.cudnn)
cublas=$(package_with 'lib/libcublasLt.so*' nvidia.cublas nvidia.cu13 nvidia.cu12)
known=$(ldconfig -p 2>/dev/null)  # kept, since grep -q would end ldconfig early and the pipe read as a failure
if [ -z "${WEFT_CUDNN_LIBRARY:-}" ] && [ -n "$cudnn" ] && ! grep -q 'libcudnn\.so\.9' <<<"$known"; then
  export WEFT_CUDNN_LIBRARY=$cudnn/lib/libcudnn.so.9
fi
# A build folder made elsewhere looks for the libraries where they were there; here they are found behind what is set already.
compiler=$(command -v nvcc) && compiler=$(readlink -f "$compiler")
for folder in "${compiler%/bin/nvcc}/lib64" "${CUDA_PATH:-}/lib64" "${CUDA_HOME:-/usr/local/cuda}/lib64" "$cublas/lib"; do
  ! compgen -G "$folder/libcudart.so*" >/dev/null && ! compgen -G "$folder/libcublasLt.so*" >/dev/null || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
name=$(printf '%s' "$device" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9][^a-z0-9]*/-/g')
results=bench/results/gpu
mkdir -p "$results" build
table=() failed=0
row() { table+=("$(printf '%-26s %-8s %6s s  %s' "$1" "$2" "$3" "$4")"); [ "$2" != FAILED ] || failed=1; }

step() {  # step TITLE LOG COMMAND...: runs it, keeps its output, adds a row
  local title=$1 log=$results/$name.$2.log start=$SECONDS status=passed note=''
  shift 2
  printf '\n=== %s ===\n' "$title"
  "$@" 2>&1 | tee "$log"
  local code=${PIPESTATUS[0]}
  if grep -q '^\[==========\].* ran' "$log"; then
    note=$(sed -n 's/^\[==========\] \([0-9]* tests\?\).*ran.*/\1/p' "$log" | tail -1)
    note+=$(sed -n 's/^\[  \(PASSED\|SKIPPED\|FAILED\) *\] \([0-9][0-9]*\) tests\?.*/, \2 \1/p' "$log" | tr -d '\n' | tr '[:upper:]' '[:lower:]')
    local programs passed
    programs=$(grep -c '^\[==========\].* ran' "$log") passed=$(grep -c '^\[  PASSED  \] [1-9]' "$log")
    if grep -q '^\[==========\] 0 tests.* ran' "$log"; then
      code=1 note+=", a program had no test to run"
    elif [ "$passed" -eq 0 ]; then
      status=skipped
    elif [ "$passed" -lt "$programs" ]; then
      status=partly
    fi
  elif grep -q '^bench_gpu: nothing measured' "$log"; then
    status=skipped
  fi
  # What skips without a device has no reason to where there is one.
  if [ "$device" != none ] && [ "$status" != passed ]; then code=1 note+=", skipped although there is a device"; fi
  note=${note#, }
  [ "$code" -eq 0 ] || { status=FAILED; note="exit $code${note:+, }$note"; }
  [ "$code" -ne 124 ] || note="ran into its time limit"
  row "$title" "$status" $((SECONDS - start)) "$note"
  return "$code"
}

build_googletest() {  # from the carried sources, where the machine has none; uses the caller's generator
  [ -d "$carried/googletest" ] || return 0
  cmake -S "$carried/googletest" -B build/gpu_googletest "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_STANDARD=17 -DCMAKE_INSTALL_PREFIX="$PWD/build/gpu_prefix" -DCMAKE_INSTALL_LIBDIR=lib &&
    cmake --build build/gpu_googletest -j "$(nproc)" --target install
}
build() {
  local arch generator=() prefix=()
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .)
  command -v ninja >/dev/null && generator=(-G Ninja)
  [ ! -d "$carried" ] || prefix=(-DCMAKE_PREFIX_PATH="$PWD/build/gpu_prefix;$PWD/$carried/prefix")
  [ ! -f "$cublas/include/cublasLt.h" ] || prefix+=(-DWEFT_CUBLAS_DIR="$cublas")
  [ ! -f "$cudnn/include/cudnn.h" ] || prefix+=(-DWEFT_CUDNN_INCLUDE_DIR="$cudnn/include")
  build_googletest || return 1
  cmake -S . -B build/gpu "${generator[@]}" "${prefix[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG" -DWEFT_CUDA=ON \
    -DWEFT_CUDA_ARCHITECTURES="${arch:-90}" -DWEFT_WERROR=OFF -DWEFT_DISTRIBUTED=OFF -DWEFT_BUILD_EXAMPLES=OFF -DWEFT_INSTALL=OFF &&
    cmake --build build/gpu -j "$(nproc)" --target test_cuda test_plugin test_nn test_optim bench_gpu
}

bin=${prebuilt:-build/gpu}/bin
if [ -z "$prebuilt" ]; then
  step "build" build build || { printf '%s\n' "${table[@]}"; exit 1; }
fi

step "op table on the device" op_table timeout 1200 "$bin/test_cuda" --gtest_brief=1 --gtest_filter='CudaOpTable*'
export WEFT_TEST_DATA_DIR=$PWD/tests/golden
step "device tests, training" device timeout 900 "$bin/test_cuda" --gtest_filter='-CudaOpTable*'
plugins=$(realpath "$bin/../plugin")
step "CUDA library opened late" plugin env WEFT_TEST_PLUGIN_DIR="$plugins" LD_LIBRARY_PATH="$plugins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" timeout 300 "$bin/test_plugin"
golden_on=cpu
[ "$device" = none ] || golden_on=cuda
step "golden tests on $golden_on" golden env WEFT_TEST_DEVICE=$golden_on timeout 300 bash -c "'$bin/test_nn' --gtest_filter='*Golden*:WordLm*' && '$bin/test_optim' --gtest_filter='*Trajectory*'"
if grep -q 'there is no cuDNN here' "$results/$name.device.log" 2>/dev/null; then
  row "cuDNN" skipped 0 "not found: recurrent layers ran on weft's own cell"
elif grep -q 'OK.*cudnn_matches_the_own_cell' "$results/$name.device.log" 2>/dev/null; then
  row "cuDNN" passed 0 "used by the recurrent layers"
fi
if [ "$device" = none ]; then
  row "compute-sanitizer" skipped 0 "no device"
elif ! command -v compute-sanitizer >/dev/null; then
  row "compute-sanitizer" skipped 0 "not on PATH"
else
  # A sanitizer that cannot attach says so; that is the machine's, not ours.
  if timeout 120 compute-sanitizer --tool memcheck "$bin/test_cuda" --gtest_filter='CudaLibrary.with_a_device_it_computes' >"$results/$name.sanitizer_probe.log" 2>&1; then
    for tool in memcheck racecheck synccheck initcheck; do  # WEFT_NO_CACHE: a block of its own for each tensor, so that an overrun is one
      step "compute-sanitizer $tool" "$tool" timeout 600 env WEFT_NO_CACHE=1 compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/test_cuda" --gtest_brief=1 --gtest_filter='CudaOpTable.forward/*'
    done
  else
    row "compute-sanitizer" skipped 0 "does not work here, see $results/$name.sanitizer_probe.log"
  fi
fi
if [ "$bench" = yes ]; then
  peers=()
  if [ -n "$python" ]; then
    printf '\n=== PyTorch on the same device ===\n'
    PYTHONDONTWRITEBYTECODE=1 timeout 500 "$python" bench/peers/torch_gpu.py "$filter" "${quick[@]}" 2>"$results/$name.pytorch.log" | tee "$results/$name.pytorch.txt"
    peers=(--peers="$results/$name.pytorch.txt")
  fi
  step "benchmarks" bench timeout 900 "$bin/bench_gpu" "${quick[@]}" "${peers[@]}" --benchmark_filter="$filter" --benchmark_out="$results/$name.bench.json"
fi

printf '\n=== summary: device %s ===\n' "$device"
printf '%s\n' "${table[@]}"
[ "$device" != none ] || echo "no GPU here: what needs one was skipped, and nothing above is a GPU figure"
echo "logs and JSON: $results/$name.*"
exit "$failed"
