#!/usr/bin/env bash
# Starts Envoy with the filter, an echo upstream and Redis on loopback, and stays until Ctrl-C.
#
#   ./envoy/up.sh [--detach] [--config FILE] [--no-redis]
#
#   --detach       returns when everything is ready; ./envoy/down.sh stops it
#   --config FILE  the plugin's JSON; envoy/plugin/default.json where this is not given
#   --no-redis     no Redis: limits on this node alone (then the default is envoy/plugin/no-redis.json)
#
# FAIRSHARE_PORT (10000) and FAIRSHARE_ADMIN_PORT (9901) choose the ports, ENVOY_BIN and REDIS_BIN the
# programs. What is missing is fetched. State and logs are in target/run.
set -euo pipefail

usage() {
  sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
}

detach='' config='' redis=1
while [ $# -gt 0 ]; do
  case $1 in
    --detach) detach=1 ;;
    --no-redis) redis='' ;;
    --config)
      [ $# -gt 1 ] || { usage >&2 && exit 2; }
      config=$(realpath -m -- "$2")
      shift
      ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=envoy/lib.sh
. envoy/lib.sh

export FAIRSHARE_PORT=${FAIRSHARE_PORT:-10000} FAIRSHARE_ADMIN_PORT=${FAIRSHARE_ADMIN_PORT:-9901}
plugin=envoy/plugin/default.json
[ -n "$redis" ] || plugin=envoy/plugin/no-redis.json
plugin=${config:-$plugin}
supervisor_log=$RUN_DIR/supervisor.log

# Holds file 9 for as long as this checkout's set-up runs, in the supervisor too.
lock() {
  # The configuration may hold the store's password.
  mkdir -p "$RUN_DIR" && chmod 700 "$RUN_DIR"
  exec 9>"$RUN_DIR/lock"
  flock -n 9 || die "this checkout's set-up is running already: stop it with ./envoy/down.sh first"
  # Left over where a supervisor was killed.
  stop_recorded "$PROCESSES" || true
  rm -f "$PROCESSES" "$SUPERVISOR" "$RUN_DIR"/ready "$RUN_DIR"/*.log "$RUN_DIR"/redis.sock
}

prepare() {
  [ -f "$plugin" ] || die "there is no file $plugin: --config wants the path of a plugin JSON"
  get_envoy
  if [ -n "$redis" ]; then get_redis; else unset REDIS_BIN; fi
  note "building the module and the native programs"
  ./wasm-build.sh 9>&-
  build_native 9>&-
  fairshare check "$plugin" >"$RUN_DIR/check.log" 2>&1 || {
    cat "$RUN_DIR/check.log" >&2
    die "the configuration has errors, so nothing was started"
  }
}

# Starts the supervisor and waits until it says that all is ready.
start_supervisor() {
  ${detach:+setsid} envoy/supervise.sh "$plugin" >"$supervisor_log" 2>&1 </dev/null &
  supervisor=$!
  trap stop_supervisor EXIT
  trap 'exit 130' INT TERM HUP
  until [ -e "$RUN_DIR/ready" ]; do
    if ! kill -0 "$supervisor" 2>/dev/null; then
      cat "$supervisor_log" >&2
      exit 1
    fi
    sleep 0.1
  done
}

stop_supervisor() {
  trap '' INT TERM HUP
  kill -TERM "$supervisor" 2>/dev/null || return 0
  wait "$supervisor" || true
}

greet() {
  local proxy=http://127.0.0.1:$FAIRSHARE_PORT admin=http://127.0.0.1:$FAIRSHARE_ADMIN_PORT
  cat <<END
fairshare is up
  proxy    $proxy  (plugin JSON: ${plugin#"$PWD"/})
  metrics  $admin/stats/prometheus
  logs     $RUN_DIR/*.log

Try
END
  if [ -z "$config" ]; then
    cat <<END
  # six calls of one tenant: five pass, the sixth is over its share of 5 in 10 s
  for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{http_code}\n' -H 'x-tenant-id: acme' $proxy/; done
  # why, and when to come back
  curl -i -H 'x-tenant-id: acme' $proxy/
  # another tenant still passes
  curl -i -H 'x-tenant-id: globex' $proxy/
END
    [ -z "$redis" ] || cat <<END
  # a budget in Redis, for all proxies together: 3 in 10 s
  for i in 1 2 3 4; do curl -s -o /dev/null -w '%{http_code}\n' -H 'x-tenant-id: initech' $proxy/global/; done
END
  else
    printf '  curl -i -H %s %s/\n' "'x-tenant-id: acme'" "$proxy"
  fi
  printf '  curl -s %s/stats/prometheus | grep ^fairshare\n\n' "$admin"
}

lock
need_port "$FAIRSHARE_PORT" FAIRSHARE_PORT
need_port "$FAIRSHARE_ADMIN_PORT" FAIRSHARE_ADMIN_PORT
[ "$FAIRSHARE_PORT" != "$FAIRSHARE_ADMIN_PORT" ] ||
  die "FAIRSHARE_PORT and FAIRSHARE_ADMIN_PORT are both $FAIRSHARE_PORT: choose two ports"
prepare
start_supervisor
if [ -n "$detach" ]; then
  trap - EXIT
  greet
  echo "Stop it with ./envoy/down.sh"
  exit 0
fi
greet
echo "Stop it with Ctrl-C"
wait "$supervisor" || {
  cat "$supervisor_log" >&2
  exit 1
}
