#!/usr/bin/env bash
# Measures the filter beside others, alternating within one run, and writes target/bench/summary.json
# and target/bench/report.md with charts. What is missing is fetched.
#
#   ./envoy/bench.sh [--quick] [NAME…]    everything, or what gives the keys that contain a NAME
#
# --quick takes under three minutes, and its figures are rough. docs/benchmarks.md tells what is
# measured and how.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=envoy/lib.sh
. envoy/lib.sh

readonly NEIGHBOURS=$TOOLS_DIR/neighbours
# Debian packages: the programs, and the libraries that a small installation lacks.
readonly PACKAGES=(nginx haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 libpcre2-8-0)

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}

# Packages are unpacked and not installed: an installed nginx or HAProxy would start as a service.
unpack_packages() {
  local package
  command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 0
  [ -e "$NEIGHBOURS/complete" ] && return
  note "unpacking ${PACKAGES[*]} from Debian's packages into $NEIGHBOURS"
  rm -rf "$NEIGHBOURS"
  mkdir -p "$NEIGHBOURS/packages"
  download_packages || { apt-get update -qq && download_packages; } || return 0
  for package in "$NEIGHBOURS"/packages/*.deb; do dpkg -x "$package" "$NEIGHBOURS"; done
  touch "$NEIGHBOURS/complete"
}

download_packages() {
  (cd "$NEIGHBOURS/packages" && apt-get download -qq "${PACKAGES[@]}") >&2
}

# need_neighbour VARIABLE PROGRAM ARGUMENT: sets the variable to a program that runs, from PATH or from
# the unpacked packages; leaves it empty where there is none, and what needs it is left out.
need_neighbour() {
  local candidate
  if [ -n "${!1:-}" ]; then
    LD_LIBRARY_PATH=${NEIGHBOUR_LIBRARIES:-} "${!1}" "$3" >/dev/null 2>&1 || die "$1 names ${!1}, which does not run"
    return
  fi
  for candidate in "$(command -v "$2")" "/usr/sbin/$2" "$PWD/$NEIGHBOURS/usr/sbin/$2"; do
    if LD_LIBRARY_PATH=${NEIGHBOUR_LIBRARIES:-} "$candidate" "$3" >/dev/null 2>&1; then
      export "$1=$candidate"
      return
    fi
  done
  note "$2 is not to be had, and is left out: install it, or set $1"
}

# What is measured beside Envoy. None of it has to be there.
get_neighbours() {
  unpack_packages || note "not all of Debian's packages could be unpacked"
  NEIGHBOUR_LIBRARIES=$(find "$PWD/$NEIGHBOURS/usr/lib" -maxdepth 2 -name '*.so.*' -printf '%h\n' 2>/dev/null | sort -u | head -n 1)
  export NEIGHBOUR_LIBRARIES
  need_neighbour NGINX_BIN nginx -v
  need_neighbour HAPROXY_BIN haproxy -v
}

# The plugin that does nothing, as anybody would build one.
build_empty_plugin() {
  env -u CARGO_TARGET_DIR cargo build --quiet --release --locked --target wasm32-wasip1 \
    --manifest-path tools/empty-plugin/Cargo.toml --target-dir target/tools
}

for argument in "$@"; do
  case $argument in
    --quick) ;;
    -*) usage ;;
  esac
done
command -v setpriv >/dev/null || die "setpriv is missing, which ends what a benchmark starts: install util-linux"
get_envoy
get_redis
get_neighbours
./wasm-build.sh
build_empty_plugin
# What a run leaves behind when it is interrupted is in here; when it fails, its logs stay.
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' INT TERM
FAIRSHARE_WASM_FRESH=1 cargo bench --quiet --locked --bench envoy -- "$@"
rm -rf "$TMPDIR"
