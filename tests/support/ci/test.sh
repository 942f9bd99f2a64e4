#!/usr/bin/env bash
# Tests the last line of .ci/run with stand-ins for its stages: a quiet run, a test failing once, and a stage
# that fails.
#   tests/support/ci/test.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tree/.ci" "$work/tree/scripts" "$work/path"
cp "$root/.ci/run" "$work/tree/.ci/"
stand_in() {  # stand_in FILE: a script from standard input
  { echo '#!/bin/sh'; cat; } >"$1"
  chmod +x "$1"
}
for name in setup bare_check format docs; do stand_in "$work/tree/scripts/$name.sh" </dev/null; done
for name in cmake ctest ccache clang++-14 clang-tidy-14 nvcc python3 setarch; do
  stand_in "$work/path/$name" </dev/null
done
failures=0

expect() {  # expect STATUS LAST_LINE: scripts/test.sh comes from standard input
  local status=0 last
  stand_in "$work/tree/scripts/test.sh"
  last=$(PATH="$work/path:/usr/bin:/bin" "$work/tree/.ci/run" 2>&1 </dev/null | tail -n 1) || status=$?
  if [ "$status" -ne "$1" ] || [ "$last" != "$2" ]; then
    echo "status $status and '$last', not $1 and '$2'"
    failures=$((failures + 1))
  fi
}

expect 0 'all stages passed' </dev/null
expect 0 'all stages passed, 1 test failed once' <<'END'
echo '  3/9 Test  #3: Rpc.echo .................***Failed    0.50 sec'
echo '      Test  #3: Rpc.echo .................   Passed    0.40 sec'
END
expect 0 'all stages passed, 2 tests failed once' <<'END'
echo '  3/9 Test  #3: Rpc.echo .................***Failed    0.50 sec'
echo '  4/9 Test #14: Rpc.slow .................***Timeout  60.00 sec'
END
expect 1 'some stages FAILED' <<'END'
exit 8
END
expect 0 'all stages passed' <<'END'
echo ' 3/9 Test  #3: test_explore.part_1 .......   Passed  100.50 sec'
echo ' 4/9 Test #12: test_fuzz.part_1 ..........   Passed   70.40 sec'
echo ' 5/9 Test #13: test_rpc.part_1 ...........   Passed  300.40 sec'
END
expect 0 'all stages passed; explorer and fuzzing above 180 s' <<'END'
echo ' 3/9 Test  #3: test_explore.part_1 .......   Passed  100.50 sec'
echo ' 4/9 Test #12: Fuzz.store ................   Passed   90.40 sec'
END
printf '#!/bin/sh\necho "no root"; exit 77\n' >"$work/tree/scripts/bare_check.sh"
expect 0 'all other stages passed, 1 test failed once; skipped: bare machine' <<'END'
echo '  3/9 Test  #3: Rpc.echo .................***Failed    0.50 sec'
END
echo "ci: $failures failures"
exit "$((failures > 0))"
