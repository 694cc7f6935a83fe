#!/usr/bin/env bash
# Runs everything at once against a real Envoy and a real Redis, and tells whether anything trapped,
# leaked or grew:
#
#   ./envoy/soak.sh [--minutes N]    10 minutes where N is not given
set -euo pipefail

minutes=10
while [ $# -gt 0 ]; do
  case $1 in
    --minutes)
      minutes=${2:-}
      shift
      ;;
    *)
      echo "usage: ./envoy/soak.sh [--minutes N]" >&2
      exit 2
      ;;
  esac
  shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=envoy/lib.sh
. envoy/lib.sh
[[ $minutes =~ ^[1-9][0-9]{0,3}$ ]] || die "--minutes is '$minutes': give a number from 1 to 9999"

get_envoy
get_redis
./wasm-build.sh
FAIRSHARE_WASM_FRESH=1 FAIRSHARE_SOAK_MINUTES=$minutes \
  cargo test --locked --test soak -- --ignored --nocapture
