#!/usr/bin/env bash
# What runs in a container with Envoy: the reference configuration, with the addresses of
# docker-compose.yaml.
#
# SIGHUP starts a new Envoy that takes over the listeners from the old one (a hot restart), so that a
# new module or a new plugin JSON is used without closing a connection.
set -euo pipefail
cd /fairshare
# shellcheck source=envoy/lib.sh
. envoy/lib.sh

readonly CONFIGURATION=/tmp/envoy.yaml
readonly DRAIN_S=1

# Within the container everything may connect to Envoy, and Redis and the upstream have names.
write_configuration() {
  local yaml redis=${FAIRSHARE_REDIS:?} upstream=${FAIRSHARE_UPSTREAM:?}
  local loopback='socket_address: {address: 127.0.0.1, port_value: '
  export FAIRSHARE_PORT=10000 FAIRSHARE_ADMIN_PORT=9901 FAIRSHARE_UPSTREAM_PORT=upstream
  export FAIRSHARE_WASM=/fairshare/fairshare.wasm FAIRSHARE_REDIS_SOCKET=redis
  yaml=$(fill_in /fairshare/plugin.json)
  yaml=${yaml//"${loopback}upstream}"/"socket_address: {address: ${upstream%:*}, port_value: ${upstream#*:}}"}
  yaml=${yaml//'pipe: {path: "redis"}'/"socket_address: {address: ${redis%:*}, port_value: ${redis#*:}}"}
  yaml=${yaml//"$loopback"/'socket_address: {address: 0.0.0.0, port_value: '}
  for name in upstream redis; do
    yaml=${yaml//"- name: $name"$'\n'"    type: STATIC"/"- name: $name"$'\n'"    type: STRICT_DNS"}
  done
  printf '%s\n' "$yaml" >"$CONFIGURATION"
}

start_envoy() {
  envoy -c "$CONFIGURATION" --log-level warning --concurrency 2 --restart-epoch "$epoch" \
    --drain-time-s 2 --parent-shutdown-time-s 4 &
  envoy=$!
}

hot_restart() {
  epoch=$((epoch + 1))
  write_configuration
  start_envoy
}

# Has clients go elsewhere before it stops: each answer closes its connection.
drain() {
  exec 3<>/dev/tcp/127.0.0.1/9901 || return 0
  printf 'POST /healthcheck/fail HTTP/1.1\r\nhost: envoy\r\ncontent-length: 0\r\n\r\n' >&3
  exec 3<&- 3>&-
  sleep "$DRAIN_S"
}

stop() {
  trap '' TERM INT
  drain
  # shellcheck disable=SC2046 # One word a process.
  kill -TERM $(jobs -p) 2>/dev/null || true
  wait
  exit 0
}

epoch=0
trap hot_restart HUP
trap stop TERM INT
write_configuration
start_envoy
# A signal ends `wait` early; what ends the container is the end of the newest Envoy.
while kill -0 "$envoy" 2>/dev/null; do wait -n "$envoy" || true; done
