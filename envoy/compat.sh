# shellcheck shell=bash
# The end-to-end cases on every Envoy and every store that can be had, and the table of what came of
# it. envoy/lib.sh and envoy/stores.sh are read before this file.

# The newest version of each minor that PyPI has; its 1.38.3 was built without the V8 runtime.
readonly COMPAT_ENVOYS=(1.36.4 1.37.0 1.38.2 1.39.3 1.40.0)
# The rows of the table: an Envoy with this machine's Redis, or a store with the usual Envoy.
readonly COMPAT_ROWS=("${COMPAT_ENVOYS[@]/#/envoy-}" redis-8 valkey)
readonly COMPAT_DIR=target/compat COMPAT_PAGES=(docs/compatibility.md README.md)

is_compat_row() {
  [[ " ${COMPAT_ROWS[*]} " = *" $1 "* ]]
}

# run_compat [ROW...] [NAME...]: the rows, or all of them; of the end-to-end cases those whose names
# contain one of NAME, or all of them. The table has the rows in which all cases ran.
run_compat() {
  local word rows=() names=()
  for word in "$@"; do
    if is_compat_row "$word"; then rows+=("$word"); else names+=("$word"); fi
  done
  [ ${#rows[@]} -gt 0 ] || rows=("${COMPAT_ROWS[@]}")
  mkdir -p "$COMPAT_DIR"
  for word in "${rows[@]}"; do
    step "$word" run_compat_row "$word" "${names[@]}"
  done
  [ ${#names[@]} -gt 0 ] || write_compat_tables "${rows[@]}"
}

# run_compat_row ROW [NAME...]: leaves its line of the table in a file. Cases that fail are run once more,
# one at a time, because some of them need a machine that has time for them.
run_compat_row() {
  local row=$1 log=$COMPAT_DIR/$1.log again=$COMPAT_DIR/$1.again.log failed=()
  shift
  use_compat_row "$row"
  rm -f "$again"
  cargo test --locked --test e2e -- "$@" >"$log" 2>&1 || true
  grep -E '^test .* FAILED$|^test result:|^error' "$log" || true
  mapfile -t failed < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log")
  if [ ${#failed[@]} -gt 0 ]; then
    cargo test --locked --test e2e -- --test-threads 1 --exact "${failed[@]}" >"$again" 2>&1 || true
    grep -E '^test .* FAILED$|^test result:' "$again" || true
  fi
  compat_line "$row" "$log" "$again" >"$COMPAT_DIR/$row.line" || die "nothing ran: see $log"
  grep -q '| 0 |$' "$COMPAT_DIR/$row.line" || die "cases fail twice: see $again"
}

# Sets ENVOY_BIN and REDIS_BIN to the row's.
use_compat_row() {
  case $1 in
    envoy-*) fetch_envoy_version "${1#envoy-}" ;;
    redis-8)
      get_redis_8
      REDIS_BIN=$PWD/$TOOLS_DIR/bin/redis-server-8
      ;;
    valkey) REDIS_BIN=$VALKEY_BIN ;;
  esac
  export ENVOY_BIN REDIS_BIN
}

# compat_line ROW LOG AGAIN_LOG: what the row's programs say that they are, how many cases passed, how
# many of these at the second try only, and how many failed.
compat_line() {
  local passed failed again=0
  read -r passed failed < <(counts "$2") && [ "$((passed + failed))" -gt 0 ] || return 1
  [ ! -f "$3" ] || read -r again failed < <(counts "$3")
  echo "| \`$1\` | $(envoy_version) | $(store_version) | $((passed + again)) | $again | $failed |"
}

# counts LOG: how many passed, and how many failed.
counts() {
  sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p' "$1"
}

store_version() {
  "$REDIS_BIN" --version | sed -n 's/^\(Redis\|Valkey\) server v=\([0-9.]*\).*/\1 \2/p'
}

# write_compat_tables ROW...: these rows are new; the others stay as the first page has them.
write_compat_tables() {
  local row table page next
  table=$(printf '%s\n' '| row | Envoy | store | passed | at the second try | failed |' '|---|---|---|---|---|---|')
  for row in "${COMPAT_ROWS[@]}"; do
    if [[ " $* " = *" $row "* ]] && [ -s "$COMPAT_DIR/$row.line" ]; then
      next=$(<"$COMPAT_DIR/$row.line")
    else
      next=$(grep -m 1 "^| \`$row\` |" "${COMPAT_PAGES[0]}") || continue
    fi
    table+=$'\n'$next
  done
  for page in "${COMPAT_PAGES[@]}"; do
    awk -v table="$table" '/^<!-- end of compat -->$/ { inside = 0 }
      !inside { print }
      /^<!-- compat / { inside = 1; print table }' "$page" >"$page.new"
    mv "$page.new" "$page"
  done
}
