#!/usr/bin/env bash
# Runs every check and test of the project, on a real Envoy and a real Redis. What is missing is fetched.
#
#   ./envoy/test.sh               everything
#   ./envoy/test.sh supply-chain  licences, sources and advisories of all that is built here, by cargo-deny
#   ./envoy/test.sh e2e [NAME…]   the end-to-end cases whose names contain one of NAME
#   ./envoy/test.sh compat [ROW…] [NAME…]
#                                 the same on every Envoy and every store, or on these rows of the table
#                                 in docs/compatibility.md, which a run without NAME writes
#   ./envoy/test.sh compose       the fleet of envoy/docker-compose.yaml comes up (needs Docker and root)
#   ./envoy/test.sh chaos [NAME…] the same fleet with its network cut, its parts killed and restarted
#
# ENVOY_BIN, REDIS_BIN and VALKEY_BIN choose the programs. Tests take free ports. FAIRSHARE_ADVISORY_DB is a
# copy of the database of advisories, where the network does not have it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=envoy/lib.sh
. envoy/lib.sh
# shellcheck source=envoy/stores.sh
. envoy/stores.sh
# shellcheck source=envoy/compat.sh
. envoy/compat.sh

readonly MODULE_FLAGS=(--lib --no-default-features --target wasm32-wasip1)
readonly PRUNE_FLAGS=(--manifest-path tools/prune/Cargo.toml --target-dir target/tools)
readonly FUZZ_FLAGS=(--manifest-path fuzz/Cargo.toml --target-dir target/fuzz)
readonly HOST_FLAGS=(--manifest-path tools/module-host/Cargo.toml --target-dir target/tools)
readonly CARGO_DENY_VERSION=0.20.2
readonly ADVISORY_DB=https://github.com/RustSec/advisory-db # As cargo-deny calls it.
summary=()
failures=0
last_status=0
table='' # The file with the rows that the summary shows.

# === the checks, each a function that fails where something is wrong ===

check_format() {
  cargo fmt --check
  cargo fmt --check --manifest-path tools/prune/Cargo.toml
  cargo fmt --check --manifest-path tools/module-host/Cargo.toml
  cargo fmt --check --manifest-path tools/empty-plugin/Cargo.toml
  cargo fmt --check --manifest-path fuzz/Cargo.toml
}

check_scripts() {
  if ! command -v shellcheck >/dev/null; then
    note "shellcheck is not here, so the scripts are not checked"
    return
  fi
  shellcheck --external-sources wasm-build.sh envoy/*.sh envoy/compose/*.sh .ci/run
}

lint_native() {
  cargo clippy --locked --all-targets -- -D warnings
}

lint_module() {
  cargo clippy --locked "${MODULE_FLAGS[@]}" -- -D warnings
  cargo clippy --locked "${MODULE_FLAGS[@]}" --features test-trap -- -D warnings
  cargo clippy --locked --target wasm32-wasip1 --manifest-path tools/empty-plugin/Cargo.toml \
    --target-dir target/tools -- -D warnings
}

# In the profile in which the module's build uses the tool.
test_prune() {
  cargo clippy --locked --release --all-targets "${PRUNE_FLAGS[@]}" -- -D warnings
  cargo test --locked --release "${PRUNE_FLAGS[@]}"
}

# The built module in a host that fails as it is told to.
test_module() {
  cargo clippy --locked --release --all-targets "${HOST_FLAGS[@]}" -- -D warnings
  cargo test --locked --release "${HOST_FLAGS[@]}"
}

# The committed inputs through all fuzz targets; ./envoy/fuzz.sh looks for more.
test_corpora() {
  cargo clippy --locked --all-targets "${FUZZ_FLAGS[@]}" -- -D warnings
  cargo test --locked "${FUZZ_FLAGS[@]}"
}

build_documentation() {
  RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --lib
}

# Unit and integration tests: all but tests/e2e.rs. The simulation tries so many seeds.
test_native() {
  local file targets=()
  for file in tests/*.rs; do
    [ "$file" = tests/e2e.rs ] || targets+=(--test "$(basename "$file" .rs)")
  done
  FAIRSHARE_SEEDS=${FAIRSHARE_SEEDS:-10000} cargo test --locked --lib --bins "${targets[@]}"
  cargo test --locked --doc
}

# Builds a copy of the tree in another directory, and wants the same bytes.
check_reproducible() {
  local copy
  copy=$(mktemp -d)
  # shellcheck disable=SC2064 # The directory as it is now.
  trap "rm -rf '$copy'" EXIT
  tar --exclude=./target --exclude=./.tools --exclude=./.git -cf - . | tar -xf - -C "$copy"
  mkdir "$copy/target"
  ln -s "$PWD/target/tools" "$copy/target/tools"
  (unset CARGO_TARGET_DIR && "$copy/wasm-build.sh")
  cmp target/fairshare.wasm "$copy/target/fairshare.wasm"
}

# Every example is one that the command line understands, and that Envoy loads with the reference
# configuration, whichever way that leads to Redis; a broken one is refused, so this check can fail.
check_examples() {
  local plugin cluster directory yaml
  build_native
  directory=$(mktemp -d)
  # shellcheck disable=SC2064 # The directory as it is now.
  trap "rm -rf '$directory'" EXIT
  yaml=$directory/envoy.yaml
  export FAIRSHARE_PORT=10000 FAIRSHARE_ADMIN_PORT=9901 FAIRSHARE_UPSTREAM_PORT=8000
  export FAIRSHARE_WASM=target/fairshare.wasm FAIRSHARE_REDIS_SOCKET=redis.sock FAIRSHARE_ACCESS_LOG=/dev/null
  export FAIRSHARE_REDIS_HOST{,_1,_2}=redis.example FAIRSHARE_REDIS_PORT{,_1,_2}=6379
  export FAIRSHARE_REDIS_CA=$directory/ca.crt
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj /CN=example \
    -keyout "$directory/ca.key" -out "$FAIRSHARE_REDIS_CA" 2>/dev/null
  for plugin in envoy/plugin/*.json; do
    echo "$plugin"
    fairshare check "$plugin" >/dev/null
    fill_in "$plugin" >"$yaml"
    validate "$yaml"
  done
  for cluster in envoy/redis/*.yaml; do
    echo "$cluster"
    fill_in envoy/plugin/default.json "$cluster" >"$yaml"
    validate "$yaml"
  done
  fill_in <(echo '{"limits": 1}') >"$yaml"
  if validate "$yaml" >/dev/null 2>&1; then die "Envoy took a broken plugin JSON"; fi
}

validate() {
  "$ENVOY_BIN" --mode validate --log-level warning -c "$1"
}

# What tests/supply_chain.rs cannot see: texts of licences, yanked packages, advisories.
check_supply_chain() {
  local manifest manifests=(Cargo.toml tools/*/Cargo.toml fuzz/Cargo.toml)
  get_cargo_deny
  for manifest in "${manifests[@]}"; do
    echo "$manifest"
    # An exception of deny.toml is for one manifest, and not needed by the others.
    cargo deny --locked --manifest-path "$manifest" check \
      --allow unmatched-skip --allow unnecessary-skip licenses bans sources
  done
  if ! fetch_advisories; then
    note "the advisory database ($ADVISORY_DB) is out of reach, so no advisory was looked at: set FAIRSHARE_ADVISORY_DB to a copy of it"
    return
  fi
  for manifest in "${manifests[@]}"; do
    cargo deny --locked --manifest-path "$manifest" check advisories
  done
}

# Says how old the database is: a copy knows nothing newer.
fetch_advisories() {
  if [ -n "${FAIRSHARE_ADVISORY_DB:-}" ]; then
    export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.$FAIRSHARE_ADVISORY_DB.insteadOf" GIT_CONFIG_VALUE_0=$ADVISORY_DB
  fi
  cargo deny fetch db >/dev/null 2>&1 || return 1
  git -C "$TOOLS_DIR"/advisory-db/advisory-db-* log -1 --date=short --format='advisories of %cd (%h)'
}

get_cargo_deny() {
  PATH=$PWD/$TOOLS_DIR/bin:$PATH
  cargo deny --version >/dev/null 2>&1 && return
  note "fetching cargo-deny $CARGO_DENY_VERSION from crates.io into $TOOLS_DIR, which takes minutes"
  cargo install --quiet --locked --root "$TOOLS_DIR" --target-dir target/tools \
    "cargo-deny@$CARGO_DENY_VERSION" || die "cargo could not install cargo-deny (see above): check the network"
}

# test_e2e [NAME...]
test_e2e() {
  local log status=0
  log=$(mktemp)
  cargo test --locked --test e2e -- "$@" 2>&1 | tee "$log" || status=$?
  if [ $status = 0 ] && grep -q '^running 0 tests' "$log"; then
    status=1
    note "no end-to-end case is called so: $*"
  fi
  rm -f "$log"
  return $status
}

# test_containers NAME...: the cases of the fleet in containers, whose rows go into the table of the
# summary. Images that no variable names are made from this machine's programs.
test_containers() {
  local images log status=0
  if [ -z "${ENVOY_IMAGE:-}" ]; then
    images=$(./envoy/compose/images.sh)
    eval "$images"
  fi
  log=$(mktemp)
  cargo test --locked --test containers -- --ignored --nocapture --test-threads 1 "$@" 2>&1 | tee "$log" || status=$?
  awk '/^\| / && !seen[$0]++' "$log" >"$table"
  rm -f "$log"
  return $status
}

# The README's demonstration, on other ports.
try_demo() {
  FAIRSHARE_PORT=$(free_port)
  FAIRSHARE_ADMIN_PORT=$(free_port)
  export FAIRSHARE_PORT FAIRSHARE_ADMIN_PORT
  ./envoy/up.sh --detach
  trap ./envoy/down.sh EXIT
  expect_statuses '200 200 200 200 200 429' / 'x-tenant-id: acme'
  expect_statuses 200 / 'x-tenant-id: globex'
  expect_statuses '200 200 200 429' /global/ 'x-tenant-id: initech'
  expect_statuses '200 200 200 200 200 200' /healthz 'x-tenant-id: acme'
  http_get "$FAIRSHARE_PORT" / 'x-tenant-id: acme' | grep -i '^retry-after: [1-9]'
  http_get "$FAIRSHARE_ADMIN_PORT" /stats/prometheus | grep '^fairshare_requests{.*outcome="admitted"'
  ./envoy/down.sh
  trap - EXIT
  ./envoy/down.sh | grep 'was not up'
  if port_is_busy "$FAIRSHARE_PORT"; then die "down.sh left Envoy running"; fi
}

# expect_statuses 'STATUS...' PATH HEADER: as many requests as statuses, one after the other.
expect_statuses() {
  local expected=$1 found=() _
  for _ in $expected; do found+=("$(http_status "$FAIRSHARE_PORT" "$2" "$3")"); done
  echo "$2 ($3): ${found[*]}"
  [ "${found[*]}" = "$expected" ] || die "expected $expected"
}

# === the run ===

# step NAME COMMAND...: runs it in a shell of its own and notes how it went and how long it took.
step() {
  local name=$1 start=$SECONDS status
  shift
  printf '\n=== %s\n' "$name"
  # A condition around the command would switch off `set -e` inside it.
  set +e
  (
    set -e
    "$@"
  )
  status=$?
  set -e
  local result=ok
  [ $status = 0 ] || result=FAILED failures=$((failures + 1))
  last_status=$status
  summary+=("$(printf '%-28s %-6s %4d s' "$name" $result $((SECONDS - start)))")
  echo "=== ${summary[-1]}"
}

get_tools() {
  command -v cargo >/dev/null || die "cargo is missing: install Rust 1.95 or newer (https://rustup.rs)"
  get_envoy
  get_redis
  get_valkey
  get_openssl
  get_valgrind
  get_clients
}

need_lints() {
  cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return
  rustup component add rustfmt clippy ||
    die "rustfmt or clippy is missing: install both (rustup component add rustfmt clippy)"
}

run_all() {
  need_lints
  step "format" check_format
  step "scripts" check_scripts
  step "lints" lint_native
  step "unit and integration tests" test_native
  step "fuzzing corpora" test_corpora
  step "documentation" build_documentation
  step "prune tool" test_prune
  step "module" ./wasm-build.sh
  # Where it failed, an older module may lie there, which the end-to-end tests must not take.
  [ "$last_status" != 0 ] || export FAIRSHARE_WASM_FRESH=1
  step "module in a small host" test_module
  step "module lints" lint_module
  step "module is reproducible" check_reproducible
  step "examples load" check_examples
  step "end-to-end tests" test_e2e
  step "demonstration" try_demo
}

finish() {
  printf '\n=== summary\n'
  printf '%s\n' "${summary[@]}"
  [ -z "$table" ] || cat "$table"
  if [ "$failures" -gt 0 ]; then
    echo "$failures of ${#summary[@]} failed"
    exit 1
  fi
  echo "all ${#summary[@]} passed in $SECONDS s"
}

case ${1:-} in
  '')
    get_tools
    run_all
    ;;
  supply-chain)
    step "supply chain" check_supply_chain
    ;;
  e2e)
    shift
    get_tools
    step "end-to-end tests" test_e2e "$@"
    ;;
  compat)
    shift
    get_tools
    step "module" ./wasm-build.sh
    [ "$last_status" = 0 ] || finish
    export FAIRSHARE_WASM_FRESH=1
    run_compat "$@"
    ;;
  compose)
    table=$(mktemp)
    get_tools
    step "fleet in containers" test_containers compose_
    ;;
  chaos)
    shift
    [ $# -gt 0 ] || set -- chaos_
    table=$(mktemp)
    get_tools
    step "chaos" test_containers "$@"
    ;;
  *)
    sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
finish
