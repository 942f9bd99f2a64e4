#!/usr/bin/env bash
# Tries the tree's HEAD on a bare machine, a Debian 12 root of mmdebstrap's variant minbase. It runs
# scripts/demo.sh with 20 steps and installs weft. It builds and runs examples/find_package against it with
# Makefiles, Ninja and pkg-config. The bare root and its downloads are kept in the folder weft/bare of
# $XDG_CACHE_HOME or ~/.cache, and each run works on a copy. CCACHE_DIR, when set, is its compiler cache.
#   scripts/bare_check.sh            the last line is "bare: demo ok, consumers ok"
#   scripts/bare_check.sh --tests    scripts/test.sh as well: "bare: demo ok, consumers ok, N tests ok"
#   scripts/bare_check.sh --keep     leave the copy there, and say where
# Exits 77 with the reason where it cannot run: without root, mmdebstrap, mounts, Debian 12 or the network, or
# when another check runs for more than half an hour.
set -euo pipefail

usage() { sed -n '2,10s/^# \{0,1\}//p' "$0"; }
tests=no keep=no
for argument in "$@"; do
  case "$argument" in
    --tests) tests=yes ;;
    --keep) keep=yes ;;
    -h|--help) usage; exit 0 ;;
    *) echo "bare_check.sh: unknown argument '$argument'" >&2; usage >&2; exit 2 ;;
  esac
done

skip() { echo "the bare machine was not tried: $*"; exit 77; }
step() { printf '\n--- bare: %s (%d s)\n' "$*" "$SECONDS"; }

# The parts that run in the root, where /weft is the clone.
refresh_lists() { apt-get -q update -o APT::Update::Error-Mode=any; }
demo() {
  cd /weft
  scripts/demo.sh --max-steps 20 --log-interval 10 --emsize 16 --nhid 16 --nlayers 1 --generate 10
}
consumers() {
  cmake --install /weft/build/release --prefix /opt/weft >/dev/null
  for generator in "Unix Makefiles" Ninja; do
    rm -rf /tmp/consumer
    cmake -S /weft/examples/find_package -B /tmp/consumer -G "$generator" -DCMAKE_PREFIX_PATH=/opt/weft
    cmake --build /tmp/consumer -j "$(nproc)"
    for program in fit where remote_sum simulated_sum inspected_sum; do "/tmp/consumer/$program"; done
  done
  PKG_CONFIG_PATH=$(dirname "$(find /opt/weft -name weft.pc)")
  export PKG_CONFIG_PATH
  for pair in weft:fit weft-distributed:remote_sum weft-distributed-sim:simulated_sum \
      weft-distributed-inspection:inspected_sum; do
    # shellcheck disable=SC2046
    g++ -std=c++20 "/weft/examples/find_package/${pair#*:}.cpp" -o /tmp/program \
      $(pkg-config --cflags --libs "${pair%:*}")
    /tmp/program
  done
}
all_tests() { cd /weft && scripts/test.sh --output-log /tmp/ctest.log; }

copy_settings() {  # copy_settings ROOT: the host's sources, keys and settings of apt, certificates, resolver
  local root=$1 path
  for path in /etc/apt/{apt.conf,apt.conf.d,sources.list,sources.list.d,preferences,preferences.d} \
      /etc/apt/{keyrings,trusted.gpg,trusted.gpg.d} /usr/share/keyrings /etc/ssl/certs \
      /etc/resolv.conf /etc/hosts; do
    [ -e "$path" ] || continue
    mkdir -p "$root${path%/*}"
    rm -rf "${root:?}$path"
    cp -rL "$path" "$root$path" 2>/dev/null || true  # a link to nothing stays behind
  done
}

make_base() {  # make_base ROOT
  local sources=() path
  for path in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ ! -s "$path" ] || sources+=("$path")
  done
  rm -rf "$top/settings"
  copy_settings "$top/settings"
  # The sources named here are for mmdebstrap's own checks; the copied ones replace them before any download.
  # shellcheck disable=SC2016
  SETTINGS=$top/settings mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io \
    --setup-hook='rm -f "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*; cp -a "$SETTINGS/." "$1"' \
    bookworm "$1" "${sources[@]}"
}

in_root() {  # in_root FUNCTION: runs it in the work copy, with mounts of its own that end with it
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
    root=$1 kept=$2 ccache=$3
    mkdir -p "$root/kept" "$root/proc" "$root/dev/shm"
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/dev/shm"
    mount --bind "$kept" "$root/kept"
    if [ -n "$ccache" ]; then mkdir -p "$root/ccache"; mount --bind "$ccache" "$root/ccache"; fi
    exec chroot "$root" /usr/bin/env -i "${@:4}"
  ' - "$work" "$kept" "${CCACHE_DIR:-}" "${settings[@]}" \
    bash -euo pipefail -c "$(declare -f "$1"); $1" </dev/null
}

[ "$(id -u)" -eq 0 ] || skip "making a root needs root"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is missing (scripts/setup.sh --ci installs it)"
unshare --mount --pid --fork true 2>/dev/null || skip "this host allows no mounts of one's own"
codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
[ "$codename" = bookworm ] || skip "this host's packages are of '$codename', not of Debian 12 (bookworm)"

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
top=${XDG_CACHE_HOME:-$HOME/.cache}/weft/bare
kept=$top/kept
mkdir -p "$kept/archives/partial" "$kept/lists/partial"
exec 9>"$top/lock"
if ! flock -n 9; then
  echo "bare: waiting for another check to end"
  flock -w 1800 9 || skip "another check has held $top/lock for half an hour"
fi
# Packages and lists lie here, where no setting that cleans apt's own folders finds them.
printf 'Dir::Cache::Archives "/kept/archives";\nDir::State::Lists "/kept/lists";\n' >"$kept/apt.conf"

if [ ! -d "$top/base" ]; then
  step "making the bare root, once"
  rm -rf "$top/base.part"
  if ! make_base "$top/base.part" 2>&1 | tee "$top/base.log"; then
    rm -rf "$top/base.part"
    if grep -qE 'resolv|onnect|Failed to fetch|timed out|network' "$top/base.log"; then
      skip "the package servers of this host's sources do not answer"
    fi
    if grep -qE 'not permitted|Permission denied|mount' "$top/base.log"; then
      skip "this host does not let mmdebstrap make a root"
    fi
    echo "mmdebstrap could make no root from this host's package sources" >&2
    exit 1
  fi
  mv "$top/base.part" "$top/base"
fi

work=$(mktemp -d "$top/run.XXXXXX")
trap '[ "$keep" = yes ] || rm -rf --one-file-system "$work"' EXIT
cp -a --reflink=auto "$top/base/." "$work"
copy_settings "$work"
settings=(HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin APT_CONFIG=/kept/apt.conf)
for name in http_proxy https_proxy no_proxy; do [ -z "${!name:-}" ] || settings+=("$name=${!name}"); done
if [ -n "${CCACHE_DIR:-}" ]; then
  mkdir -p "$CCACHE_DIR"
  settings+=(CCACHE_DIR=/ccache)
  # The size that the host allows: a cache without settings of its own would be cut to ccache's default.
  if size=$(ccache --get-config=max_size 2>/dev/null); then settings+=("CCACHE_MAXSIZE=$size"); fi
fi
git -c safe.directory="$tree" clone --quiet --no-hardlinks "$tree" "$work/weft"

step "package lists"
in_root refresh_lists || skip "the package servers of this host's sources do not answer"
said="bare:"
for part in demo consumers all_tests; do
  [ "$part" != all_tests ] || [ "$tests" = yes ] || continue
  step "${part/_/ }"
  in_root "$part" || { echo "bare: ${part/_/ } FAILED"; exit 1; }
  if [ "$part" = all_tests ]; then
    count=$(sed -n 's/^100% tests passed, 0 tests failed out of \([0-9]*\)$/\1/p' "$work/tmp/ctest.log")
    said+=" $count tests ok"
  else
    said+=" $part ok,"
  fi
done
[ "$keep" = no ] || echo "bare: kept in $work"
printf '\n(%d s)\n%s\n' "$SECONDS" "${said%,}"
