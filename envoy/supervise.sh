#!/usr/bin/env bash
# Runs Redis, the echo upstream and Envoy until it is told to stop (TERM) or one of them ends. up.sh
# calls it when everything is prepared, and with --detach it lives on when up.sh returns.
#
#   envoy/supervise.sh PLUGIN_JSON_FILE   with ENVOY_BIN, FAIRSHARE_PORT, FAIRSHARE_ADMIN_PORT and,
#                                         where there is to be a Redis, REDIS_BIN
# shellcheck disable=SC2317 # Functions are called by name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=envoy/lib.sh
. envoy/lib.sh

plugin=$1
export FAIRSHARE_UPSTREAM_PORT='' FAIRSHARE_WASM=target/fairshare.wasm
export FAIRSHARE_REDIS_SOCKET=$RUN_DIR/redis.sock FAIRSHARE_ACCESS_LOG=$RUN_DIR/access.log

# start NAME COMMAND...: in the background, with its output in NAME.log.
start() {
  local name=$1
  shift
  # File 9 is up.sh's lock, which is for this process to hold and not for its children.
  "$@" >"$RUN_DIR/$name.log" 2>&1 </dev/null 9>&- &
  printf '%s %s %s\n' "$name" $! "$(process_start_time $!)" >>"$PROCESSES"
}

# wait_for NAME COMMAND...: until the command succeeds; fails where NAME ends before.
wait_for() {
  local name=$1 pid start _
  shift
  read -r _ pid start < <(grep "^$name " "$PROCESSES")
  for _ in {1..600}; do
    "$@" && return
    if ! process_is_ours "$pid" "$start"; then
      tail -n 20 "$RUN_DIR/$name.log" >&2
      die "$name has ended; what it wrote last (in $RUN_DIR/$name.log) is above"
    fi
    sleep 0.1
  done
  die "$name is not ready after a minute: see $RUN_DIR/$name.log"
}

redis_is_ready() {
  [ -S "$FAIRSHARE_REDIS_SOCKET" ]
}

upstream_is_ready() {
  FAIRSHARE_UPSTREAM_PORT=$(sed -n 's/^listening on 127.0.0.1://p' "$RUN_DIR/upstream.log")
  [ -n "$FAIRSHARE_UPSTREAM_PORT" ]
}

envoy_is_ready() {
  [ "$(http_status "$FAIRSHARE_ADMIN_PORT" /ready)" = 200 ] && port_is_busy "$FAIRSHARE_PORT"
}

stop_all() {
  trap '' INT TERM HUP
  stop_recorded "$PROCESSES" || true
  rm -f "$PROCESSES" "$SUPERVISOR" "$RUN_DIR/ready" "$FAIRSHARE_REDIS_SOCKET"
}

trap stop_all EXIT
trap 'exit 0' INT TERM HUP
printf 'supervisor %s %s\n' $$ "$(process_start_time $$)" >"$SUPERVISOR"

if [ -n "${REDIS_BIN:-}" ]; then
  start redis "$REDIS_BIN" --port 0 --unixsocket "$FAIRSHARE_REDIS_SOCKET" --save '' --appendonly no
  wait_for redis redis_is_ready
fi
start upstream "$cargo_target_dir/debug/examples/echo_upstream"
wait_for upstream upstream_is_ready
fill_in "$plugin" >"$RUN_DIR/envoy.yaml"
start envoy "$ENVOY_BIN" -c "$RUN_DIR/envoy.yaml" --concurrency 2 --disable-hot-restart \
  --file-flush-interval-msec 100 -l warning --component-log-level wasm:info
wait_for envoy envoy_is_ready
# A store that is new grants nothing for half a second.
[ -z "${REDIS_BIN:-}" ] || sleep 1
: >"$RUN_DIR/ready"

# A signal ends the wait; so does the end of any of the three.
wait -n || true
die "one of the processes has ended by itself: see $RUN_DIR/*.log"
