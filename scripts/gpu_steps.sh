# The steps of gpu_check.sh, which reads this file and sets most of the variables. step_NAME adds the rows of
# a step. Functions that `step` calls see their `limit`, and `own`.
# shellcheck shell=bash disable=SC2034,SC2154

build_googletest() {  # from the carried sources, where the machine has none; uses the caller's generator
  [ -d "$carried/googletest" ] || return 0
  limited "$limit" cmake -S "$carried/googletest" -B build/gpu_googletest "${generator[@]}" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_STANDARD=17 \
    -DCMAKE_INSTALL_PREFIX="$PWD/build/gpu_prefix" -DCMAKE_INSTALL_LIBDIR=lib &&
    limited "$limit" cmake --build build/gpu_googletest -j "$(nproc)" --target install
}
build() {
  local arch generator=() prefix=()
  arch=$(timeout -k 5 30 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) || arch=''
  arch=${arch%%$'\n'*} arch=${arch//./}
  command -v ninja >/dev/null && generator=(-G Ninja)
  [ ! -d "$carried" ] || prefix=(-DCMAKE_PREFIX_PATH="$PWD/build/gpu_prefix;$PWD/$carried/prefix")
  [ ! -f "$cublas/include/cublasLt.h" ] || prefix+=(-DWEFT_CUBLAS_DIR="$cublas")
  [ ! -f "$cudnn/include/cudnn.h" ] || prefix+=(-DWEFT_CUDNN_INCLUDE_DIR="$cudnn/include")
  build_googletest &&
    limited "$limit" cmake -S . -B build/gpu "${generator[@]}" "${prefix[@]}" \
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG" -DWEFT_CUDA=ON \
      -DWEFT_CUDA_ARCHITECTURES="${arch:-90}" -DWEFT_WERROR=OFF -DWEFT_DISTRIBUTED=OFF \
      -DWEFT_BUILD_EXAMPLES=ON -DWEFT_INSTALL=OFF &&
    limited "$limit" cmake --build build/gpu -j "$(nproc)" \
      --target test_cuda test_plugin test_nn test_optim bench_gpu hello_cuda
}


# Not brief: only the long form names the skipped tests.
# cuDNN's recurrent layers repeat their bits with the first. Attention is on weft's kernels, as by default;
# its tests on cuDNN switch that on themselves.
repeats=(env "CUBLAS_WORKSPACE_CONFIG=${CUBLAS_WORKSPACE_CONFIG:-:4096:2}" WEFT_CUDNN_ATTENTION=0)
# in_parts FILTER COMMAND...: the tests of the filter, shared among processes, since most of their time
# goes to gradients on the host. The command starts each of them, with `{}` replaced by its number from 10. A
# part without time is cut off, and the log says how many. One that runs into the step's own limit has failed.
in_parts() {
  local filter=$1 parts part status=0 code cut=0 pids=()
  shift
  parts=$(nproc)
  [ "$parts" -le 16 ] || parts=16
  for part in $(seq 0 $((parts - 1))); do
    limited "$limit" env GTEST_TOTAL_SHARDS="$parts" GTEST_SHARD_INDEX="$part" \
      "${@//\{\}/$((part + 10))}" "$bin/test_cuda" --gtest_filter="$filter" \
      >"$results/$name.part.$part" 2>&1 &
    pids+=($!)
  done
  for part in $(seq 0 $((parts - 1))); do
    code=0
    wait "${pids[$part]}" || code=$?
    if [ "$code" -eq 124 ] && [ "$limit" -lt "$own" ]; then
      cut=$((cut + 1))
    elif [ "$code" -ne 0 ]; then
      status=$code
    fi
    cat "$results/$name.part.$part"
    rm -f "$results/$name.part.$part"
  done
  [ "$cut" -eq 0 ] || echo "gpu_check.sh: cut off: $cut of $parts parts had no time to end"
  return "$status"
}
# With WEFT_CUDA_SYNC a bad index shows in the call that was given it, as the table expects.
op_table() { in_parts 'CudaOpTable*' env WEFT_CUDA_SYNC=1 "${repeats[@]}"; }
step_ops() { step "op table on the device" op_table 180 op_table; }

# The figures on standard output and in a file, in half of the time that is left. With the environment that
# the user gave PyTorch: its own libraries and workspace.
pytorch() {
  local file=$results/$name.pytorch.txt code=0 half=$(($(left) / 2))
  [ "$half" -ge "$limit" ] || limit=$half
  LD_LIBRARY_PATH=$peer_path PYTHONDONTWRITEBYTECODE=1 limited "$limit" \
    "$python" bench/peers/torch_gpu.py "$filter" "${quick[@]}" | tee "$file" || code=$?
  if [ "$code" -eq 124 ] && [ "$limit" -lt "$own" ]; then
    echo "gpu_check.sh: cut off: it had $limit s of --seconds $seconds"
    code=0
  fi
  echo "gpu_check.sh: $(wc -l <"$file") figures"
  return "$code"
}
# join_parts PART...: makes one log and one JSON of those of the parts, in place of earlier ones, and adds a
# row. The caller counts the parts that failed in `bad`. Rows older than PyTorch's figures get them here.
join_parts() {
  local part logs=() json=() start=$results/$name.bench rows=0 left_out status=passed
  for part in "$@"; do
    [ ! -f "$start.$part.log" ] || logs+=("$start.$part.log")
    [ ! -f "$start.$part.json" ] || json+=("$start.$part.json")
  done
  [ "${#logs[@]}" -gt 0 ] || return  # no part had time
  cat "${logs[@]}" >"$start.log"
  rm -f "$start.json"
  if [ "${#json[@]}" -gt 0 ]; then
    awk '
      NF == 2 && !/"/ { peers[$1] = $2 }
      /^ "context"/ && (context == "" || context ~ /second": 0}/) { context = $0 }
      /^  {"name"/ {
        sub(/,$/, "")
        split($0, words, "\"")
        peer = words[4]  # its name there: Bench::peer_of
        gsub(/(Persistent|Wavefront|Cudnn(Dropout|Unordered)?(Flat)?)\//, "/", peer)
        if (peer in peers && !/pytorch_real_time/) sub(/}$/, ", \"pytorch_real_time\": " peers[peer] "}")
        rows = rows (rows == "" ? "" : ",") "\n" $0
      }
      END { printf "{\n%s\n \"benchmarks\": [%s\n ]\n}\n", context, rows }' \
      "${peers[@]#--peers=}" "${json[@]}" >"$start.json"
    rows=$(grep -c '^  {"name"' "$start.json")
  fi
  left_out=$(grep -c ' left out: ' "$start.log")
  rm -f "${logs[@]}" "${json[@]}"
  [ "$bad" -eq 0 ] && [ $((rows + left_out)) -gt 0 ] || status=FAILED
  row "benchmarks" "$status" 0 "$rows rows, $left_out left out, $bad parts failed"
}
measure() {  # measure PART...: adds them to the `ran` of the caller, and those that fail to its `bad`
  local part
  for part in "$@"; do
    if [ "$(left)" -lt 10 ]; then leave_out "benchmarks from $part on"; return; fi
    ran+=("$part")
    step "benchmarks: $part" "bench.$part" "$own" "$bin/bench_gpu" --part="$part" "${quick[@]}" \
      "${peers[@]}" --benchmark_filter="$filter" --benchmark_out="$results/$name.bench.$part.json" ||
      bad=$((bad + 1))
  done
}
step_bench() {
  local parts own=300 peers=() bad=0 ran=() handed wrong
  if [ "$(left)" -lt 10 ]; then leave_out "benchmarks"; return; fi
  parts=$(timeout 60 "$bin/bench_gpu" --list-parts)
  [ -n "$parts" ] || { row "benchmarks" FAILED 0 "bench_gpu does not list its parts"; return; }
  fresh 'bench.*.*'
  [ "${#quick[@]}" -eq 0 ] || own=90
  # Training steps go before PyTorch, which may take much of the time.
  # shellcheck disable=SC2046
  measure $(grep -x 'model\|large_model' <<<"$parts")
  ! grep -qs '^bench_gpu: nothing measured' "$results/$name.bench."*.log || return
  if [ -n "$python" ] && [ "$(left)" -lt 60 ]; then
    leave_out "PyTorch's figures"
  elif [ -n "$python" ]; then
    step "PyTorch's figures" pytorch 150 pytorch
    peers=(--peers="$results/$name.pytorch.txt")
  fi
  # shellcheck disable=SC2046
  measure $(grep -vx 'model\|large_model' <<<"$parts")
  join_parts "${ran[@]}" || return
  handed=$(grep -s '^Ipc' "$results/$name.bench.log" | tr -s ' ')
  wrong=$(grep -m 1 ' failed: ' <<<"$handed") && handed=$wrong || handed=$(tail -1 <<<"$handed")
  case $handed in
    '') ;;  # not among the rows of the filter
    *' failed: '*) row "memory between processes" FAILED 0 "$handed" ;;
    *'left out: '*) row "memory between processes" skipped 0 "${handed#*left out: }" ;;
    *) row "memory between processes" passed 0 "$handed" ;;
  esac
}

step_device() {
  local log=$results/$name.device.log made
  if [ "$(left)" -lt 10 ]; then leave_out "device tests, training"; return; fi
  fresh device.log
  step "device tests, training" device 300 "${repeats[@]}" "$bin/test_cuda" --gtest_filter='-CudaOpTable*'
  for made in "cuDNN=.cudnn_matches_the_own_cell" "attention on cuDNN=.attention_on_cudnn_matches"; do
    if [ -f "$log" ] && grep -q "OK.*${made#*=}" "$log"; then
      row "${made%=*}" passed 0 "found, and its results match weft's"
    elif [ -f "$log" ] && [ "$device" != none ]; then
      row "${made%=*}" FAILED 0 "not found, or it refuses a case: its results were not compared with weft's"
    fi
  done
}

step_plugin() {
  local plugins
  plugins=$(realpath -m "$bin/../plugin")
  step "CUDA library opened late" plugin 300 env WEFT_TEST_PLUGIN_DIR="$plugins" \
    LD_LIBRARY_PATH="$plugins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$bin/test_plugin"
}

step_golden() {
  local golden_on=cpu
  [ "$device" = none ] || golden_on=cuda
  step "golden tests on $golden_on" golden 300 env WEFT_TEST_DEVICE=$golden_on bash -c \
    "'$bin/test_nn' --gtest_filter='*Golden*:WordLm*' && '$bin/test_optim' --gtest_filter='*Trajectory*'"
}

run_rnn() {  # run_rnn FILE FLAGS: its output goes to the file, and after a failure to the log too
  local code=0 time
  time=$(at_most 100)
  # shellcheck disable=SC2086
  limited "$time" "$bin/rnn" $2 >"$1" 2>&1 || code=$?
  [ "$code" -ne 0 ] || return 0
  echo "rnn $2:"
  cat "$1"
  [ "$code" -eq 124 ] && [ "$time" -eq 100 ] || return "$code"  # 124 as this script's: no time left
  echo "gpu_check.sh: rnn ran into its limit of $time s"
  return 1
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
  run_rnn "$corpus/cpu.txt" "$flags --mode local" || return
  for title in "--mode local --device cuda" "--mode local --place encoder=cuda,decoder=cuda" \
    "--mode distributed --device cuda"; do
    run_rnn "$corpus/device.txt" "$flags $title" || return
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
step_programs() {
  local left_out="not in this build; a build that finds gRPC has it, for --prebuilt"
  [ ! -x "$bin/hello_cuda" ] || step "hello_cuda" hello 120 "$bin/hello_cuda"
  if [ ! -x "$bin/rnn" ]; then
    row "rnn on the device" "left out" 0 "$left_out"
  elif [ "$device" = none ]; then
    row "rnn on the device" skipped 0 "no device"
  else
    step "rnn on the device" rnn 400 programs
  fi
  # One rank on the device; its numbers are those of one process.
  if [ ! -x "$bin/hybrid" ]; then
    row "NCCL, one rank" "left out" 0 "hybrid is $left_out"
  elif [ "$device" = none ]; then
    row "NCCL, one rank" skipped 0 "no device"
  elif [ -z "${WEFT_NCCL_LIBRARY:-}" ] && ! grep -q 'libnccl\.so\.2' <<<"$known"; then
    row "NCCL, one rank" skipped 0 "no libnccl.so.2 found; WEFT_NCCL_LIBRARY names one"
  else
    step "NCCL, one rank" nccl 60 "$bin/hybrid" --steps 5 --trainers 1 --device cuda
  fi
}

# One training step of the language model with a span per launch: the number and the time of each name.
traced() {
  local file=$results/$name.trace.json
  fresh trace.json trace.txt
  limited "$limit" env WEFT_CUDA_TRACE="$file" "$bin/bench_gpu" --part=model --quick \
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
step_trace() {
  if [ "$device" = none ]; then
    row "trace of a training step" skipped 0 "no device"
  else
    step "trace of a training step" trace 120 traced
  fi
}

# Parts and rows of bench_gpu, and the kernels of each that are profiled.
profiled=(memory:Add/float32/64M:Map memory:Tanh/float32/64M:Map rows:Gelu/float32/64M:Map
  memory:Gelu/bfloat16/64M:Map memory:Dropout/float32/64M:Dropout
  memory:Transpose/float32/8192x8192:Transpose memory:SumColumns/float32/8192x8192:ReduceColumns
  memory:Softmax/float32/65536x1024:Softmax memory:Softmax/float32/2048x32768:Softmax
  rows:LayerNorm/forward/65536x1024:LayerNorm losses:CrossEntropy/forward/8192x50000:CrossEntropy
  optimizers:Step/Adam/1GB:Adam recurrent:Lstm/float32/35x20x650:CellStep
  recurrent_forms:LstmPersistent/float32/35x20x650:LstmPersistent)
profile() {
  local item part bench_row kernel status=0 code cut=0 end=$((SECONDS + limit)) time
  local out=$results/$name.profile.row
  for item in "${profiled[@]}"; do
    IFS=: read -r part bench_row kernel <<<"$item"
    code=124 time=$((end - SECONDS < 60 ? end - SECONDS : 60))
    if [ "$(left)" -ge 20 ] && [ "$time" -gt 0 ]; then
      printf '\n--- %s\n' "$bench_row"
      code=0
      limited "$(at_most "$time")" ncu --clock-control none --kernel-name-base mangled \
        --kernel-name "regex:$kernel" --launch-skip 2 --launch-count 1 --section SpeedOfLight \
        --section MemoryWorkloadAnalysis --section Occupancy --section LaunchStats --section WarpStateStats \
        "$bin/bench_gpu" --part="$part" --quick --benchmark_filter="^$bench_row\$" >"$out" 2>&1 || code=$?
      cat "$out"
    fi
    case $code in
      0)
        ! grep -q 'No kernels were profiled' "$out" || {
          echo "gpu_check.sh: no kernel of $bench_row was profiled"
          status=1
        }
        ;;
      124) cut=$((cut + 1)) ;;
      *) status=$code ;;
    esac
  done
  rm -f "$out"
  [ "$cut" -eq 0 ] || echo "gpu_check.sh: cut off: $cut of ${#profiled[@]} rows had no time to end"
  return "$status"
}
step_profile() {
  local probe=$results/$name.profile_probe.log
  if [ "$device" = none ]; then
    row "profile of kernels" skipped 0 "no device"
  elif ! command -v ncu >/dev/null; then
    row "profile of kernels" skipped 0 "ncu is not on PATH"
  elif [ "$(left)" -lt 60 ]; then
    leave_out "profile of kernels"
  # Counters may be closed to users; that is the machine's, not ours.
  elif await "profile of kernels" timeout -k 10 60 ncu --launch-count 1 --section SpeedOfLight \
    "$bin/bench_gpu" --part=small --quick --benchmark_filter='^LaunchCost' >"$probe" 2>&1; then
    step "profile of kernels" profile 600 profile
  else
    row "profile of kernels" skipped 0 "does not work here, see $probe"
  fi
}

# sanitize TOOL: the forward rows of the op table, and the tests of kernels that are no rows of it, under
# a tool of compute-sanitizer, our kernels alone. initcheck would take results of the other kernels for unset
# memory. So it sees all kernels, and no rows that call cuBLASLt or cuDNN. WEFT_NO_CACHE: a block of its own
# for each tensor, so that an overrun is one.
sanitize() {
  local own=100000  # its time is a share of what there is, so a part without time has not failed
  local filter='CudaOpTable.forward/*' kernels=(--kernel-name kns=weft)
  if [ "$1" = initcheck ]; then
    kernels=()
    filter+='-*/*matmul*:*/mm:*/mv:*/dot:*/bmm:*/addmm*:*/*linear*:*/feed_forward:*/einsum*'
    filter+=':*/lstm*:*/gru*:*/rnn*:*/scaled_dot*'
  else
    filter+=':CudaRecurrent.a_persistent*:CudaRecurrent.a_stack_in_chunks*:CudaAttention*'
  fi
  in_parts "$filter" env WEFT_NO_CACHE=1 compute-sanitizer --tool "$1" "${kernels[@]}" \
    --port '49{}0' --error-exitcode 9 --print-limit 20
}
step_sanitizer() {
  local probe=$results/$name.sanitizer_probe.log tools=(memcheck racecheck synccheck initcheck) i share
  if [ "$device" = none ]; then
    row "compute-sanitizer" skipped 0 "no device"
  elif ! command -v compute-sanitizer >/dev/null; then
    row "compute-sanitizer" skipped 0 "not on PATH"
  elif [ "$(left)" -lt 120 ]; then
    leave_out "compute-sanitizer"
  # A sanitizer that cannot attach says so; that is the machine's, not ours.
  elif await "compute-sanitizer" timeout -k 10 120 compute-sanitizer --tool memcheck \
    "$bin/test_cuda" --gtest_filter='CudaLibrary.with_a_device_it_computes' >"$probe" 2>&1; then
    for i in "${!tools[@]}"; do
      share=$(($(left) / (${#tools[@]} - i)))  # of the time, equal for each tool
      [ "$share" -le 600 ] || share=600
      step "compute-sanitizer ${tools[i]}" "${tools[i]}" "$share" sanitize "${tools[i]}"
    done
  else
    row "compute-sanitizer" skipped 0 "does not work here, see $probe"
  fi
}
