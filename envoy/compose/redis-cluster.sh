#!/usr/bin/env bash
# Makes a Redis Cluster of the nodes that are named, the second half replicas of the first one.
set -euo pipefail

# Nodes know each other by address, and each tells its own to whom it is connected with.
address_of() {
  until [[ $(redis-cli -h "$1" CLIENT INFO 2>/dev/null) =~ laddr=([0-9.]+:[0-9]+) ]]; do sleep 0.1; done
  printf '%s\n' "${BASH_REMATCH[1]}"
}

addresses=()
for node in "$@"; do addresses+=("$(address_of "$node")"); done
# Nodes that were made one before stay so.
if [[ $(redis-cli -h "$1" CLUSTER INFO) == *cluster_state:ok* ]]; then exit; fi
redis-cli --cluster create "${addresses[@]}" --cluster-replicas 1 --cluster-yes
