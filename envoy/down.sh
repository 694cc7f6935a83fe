#!/usr/bin/env bash
# Stops what ./envoy/up.sh has started in this checkout, and nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=envoy/lib.sh
. envoy/lib.sh

stopped=''
stop_recorded "$SUPERVISOR" && stopped=1
# The supervisor stops its processes; some are left only where it was killed.
stop_recorded "$PROCESSES" && stopped=1
rm -f "$SUPERVISOR" "$PROCESSES" "$RUN_DIR/ready" "$RUN_DIR/redis.sock"
if [ -n "$stopped" ]; then echo "fairshare is down"; else echo "fairshare was not up"; fi
