# Archives for gpu_check.sh elsewhere: of the sources (--pack), and of programs that are built (--carry).
# gpu_check.sh reads this file, and sets `carried`.
# shellcheck shell=bash disable=SC2154

pack() {  # pack FILE: the tracked sources and, in build/gpu_pack, Eigen's and GoogleTest's
  local file=$1 from
  rm -rf "$carried"
  mkdir -p "$carried/prefix/include" "$carried/prefix/share/eigen3" "$(dirname "$file")"
  for from in /usr/include/eigen3 "${EIGEN_DIR:-}"; do
    [ -f "$from/Eigen/Core" ] && cp -r "$from" "$carried/prefix/include/eigen3" && break
  done
  [ -f "$carried/prefix/include/eigen3/Eigen/Core" ] || {
    echo "gpu_check.sh: no Eigen headers found (Debian: libeigen3-dev; or EIGEN_DIR=their folder)" >&2
    return 1
  }
  rm -rf "$carried/prefix/include/eigen3/unsupported"
  mkdir -p "$carried/prefix/share/eigen3/cmake"
  cat >"$carried/prefix/share/eigen3/cmake/Eigen3Config.cmake" <<'CMAKE'
get_filename_component(prefix ${CMAKE_CURRENT_LIST_DIR}/../../.. ABSOLUTE)
if(NOT TARGET Eigen3::Eigen)
  add_library(Eigen3::Eigen INTERFACE IMPORTED)
  set_target_properties(Eigen3::Eigen PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${prefix}/include/eigen3)
endif()
CMAKE
  printf 'set(PACKAGE_VERSION 3.4.0)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n' \
    >"$carried/prefix/share/eigen3/cmake/Eigen3ConfigVersion.cmake"
  for from in /usr/src/googletest "${GOOGLETEST_DIR:-}"; do
    [ -f "$from/CMakeLists.txt" ] && cp -r "$from" "$carried/googletest" && break
  done
  [ -f "$carried/googletest/CMakeLists.txt" ] || {
    echo "gpu_check.sh: no GoogleTest sources found (Debian: googletest; or GOOGLETEST_DIR=their folder)" >&2
    return 1
  }
  { git ls-files -z; find "$carried" -type f -print0; } |
    tar --null --files-from=- -czf "$file" --transform 's,^,weft/,' || return 1
  echo "packed $(du -h "$file" | cut -f1) into $file: unpack it there and run weft/scripts/gpu_check.sh"
}

# carry BUILD_FOLDER [FILE]: see gpu_check.sh. Libraries of the C library, the driver and the toolkit stay.
carry() {
  local from=$1 file=${2:-} to=build/gpu_carry program library
  [ -x "$from/bin/test_cuda" ] || { echo "gpu_check.sh: no $from/bin/test_cuda to carry" >&2; return 1; }
  rm -rf "$to"
  mkdir -p "$to/bin" "$to/lib"
  [ ! -d "$from/plugin" ] || cp -r "$from/plugin" "$to/plugin" || return 1
  for program in test_cuda test_plugin test_nn test_optim bench_gpu hello_cuda rnn hybrid; do
    [ -x "$from/bin/$program" ] || { echo "gpu_check.sh: not in this build: $program"; continue; }
    cp "$from/bin/$program" "$to/bin/" || return 1
    strip --strip-unneeded "$to/bin/$program" 2>/dev/null
    for library in $(ldd "$from/bin/$program" 2>/dev/null | awk '$3 ~ /^\// { print $3 }'); do
      case "${library##*/}" in
        libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libcu* | \
          libnv* | libweft_*) ;;
        *) [ -e "$to/lib/${library##*/}" ] || cp -L "$library" "$to/lib/" || return 1 ;;
      esac
    done
  done
  find "$to/lib" "$to/plugin" -type f -exec strip --strip-unneeded {} + 2>/dev/null
  echo "copied $(du -sh "$to" | cut -f1) to $to"
  if compgen -G "$to/lib/libdnnl*" >/dev/null; then
    echo "gpu_check.sh: oneDNN is among the libraries: -DWEFT_ONEDNN=OFF makes a smaller build" >&2
  fi
  [ -n "$file" ] || return 0
  mkdir -p "$(dirname "$file")"
  tar -c "$to" | xz -6 -T 0 >"$file" || return 1
  echo "packed $(stat -c %s "$file") bytes into $file"
}
