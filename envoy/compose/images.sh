#!/usr/bin/env bash
# Makes container images from the programs of this machine, for where no registry can be reached:
#
#   eval "$(./envoy/compose/images.sh)"
#   docker compose -f envoy/docker-compose.yaml up
#
# Prints the variables that docker-compose.yaml takes. Each image holds a few programs, the libraries
# that they are linked with, and a shell.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=envoy/lib.sh
. envoy/lib.sh

readonly SHELL_TOOLS=(bash cat sed grep sort head tail cut tac sleep mkdir date kill)

# make_image NAME PROGRAM...: an image of the programs, each under its own name in /usr/local/bin.
make_image() {
  local name=$1 root program path library
  shift
  root=$(mktemp -d)
  mkdir -p "$root"/{bin,usr/local/bin,tmp,etc,dev,proc,data,prometheus}
  chmod 1777 "$root/tmp"
  for program in "${SHELL_TOOLS[@]}" "$@"; do
    path=$(command -v "$program") || path=$program
    [ -x "$path" ] || path=/usr/bin/$program
    [ -x "$path" ] || die "$program is missing, which the image $name is made of"
    path=$(realpath "$path")
    cp "$path" "$root/usr/local/bin/${program##*/}"
    { ldd "$path" 2>/dev/null || true; } | grep -o '/[^ )]*' | while read -r library; do
      mkdir -p "$root/$(dirname "$library")"
      cp -Lu "$library" "$root/$library"
    done
  done
  # What looks up names, which no program is linked with.
  for library in /lib/*/libnss_dns.so.2 /lib/*/libnss_files.so.2 /lib/*/libresolv.so.2; do
    [ -e "$library" ] || continue
    mkdir -p "$root/$(dirname "$library")"
    cp -Lu "$library" "$root/$library"
  done
  ln -s /usr/local/bin/bash "$root/bin/bash"
  ln -s /usr/local/bin/bash "$root/bin/sh"
  printf 'root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$root/etc/passwd"
  printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
  tar -C "$root" -c . | docker import -c 'ENV PATH=/usr/local/bin:/bin' "${image_changes[@]}" - "$name" >&2
  rm -rf "$root"
}

command -v docker >/dev/null || die "docker is missing: install Docker Engine and its Compose plugin"
docker info >/dev/null 2>&1 || die "the Docker engine does not answer: start it, or ask for the right to use it"
get_envoy
get_redis
command -v prometheus >/dev/null || apt_install prometheus ||
  die "prometheus is missing and could not be installed: install the package, or set PROMETHEUS_IMAGE"

image_changes=()
make_image fairshare-local/envoy "$ENVOY_BIN"
make_image fairshare-local/redis "$REDIS_BIN" redis-cli
image_changes=(-c 'ENTRYPOINT ["prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]' -c 'EXPOSE 9090')
make_image fairshare-local/prometheus prometheus

cat <<'VARIABLES'
export ENVOY_IMAGE=fairshare-local/envoy REDIS_IMAGE=fairshare-local/redis PROMETHEUS_IMAGE=fairshare-local/prometheus
VARIABLES
