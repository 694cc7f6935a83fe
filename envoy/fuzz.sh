#!/usr/bin/env bash
# Looks for inputs that break what must hold, target by target, and says how many were tried.
#
#   ./envoy/fuzz.sh [--minutes N] [TARGET...]   N minutes for each target (10)
#   ./envoy/fuzz.sh --minimise [TARGET...]      what was found so far, at most 150 inputs and 40 kB
#                                               for each target, becomes the committed corpus
#
# Targets are the names in fuzz/fuzz_targets. What breaks one is left in fuzz/artifacts: put it into
# fuzz/corpus once it is mended. Gets cargo-fuzz from crates.io into .tools where it is missing. Needs
# a C++ compiler, and no nightly Rust: without a sanitizer, of which code without unsafe needs none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=envoy/lib.sh
. envoy/lib.sh

readonly CARGO_FUZZ_VERSION=0.13.2
readonly FLAGS=(--features engine --sanitizer none --target-dir "$PWD/target/fuzz")
# What was found, apart from the committed corpus.
readonly FOUND=target/fuzz/found
readonly CORPUS_BYTES_MAX=40000 CORPUS_INPUTS_MAX=150
minutes=10
minimise=
targets=()

while [ $# -gt 0 ]; do
  case $1 in
    --minutes)
      minutes=${2:-}
      [[ $minutes =~ ^[1-9][0-9]*$ ]] || die "--minutes wants a whole number, as in --minutes 10"
      shift
      ;;
    --minimise) minimise=yes ;;
    -*)
      sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
    *)
      [ -f "fuzz/fuzz_targets/$1.rs" ] || die "there is no target $1: $(cd fuzz/fuzz_targets && echo *.rs)"
      targets+=("$1")
      ;;
  esac
  shift
done

get_cargo_fuzz() {
  command -v c++ >/dev/null || die "a C++ compiler is missing, which the engine needs: install g++"
  PATH=$PWD/$TOOLS_DIR/bin:$PATH
  cargo fuzz --version >/dev/null 2>&1 && return
  note "fetching cargo-fuzz $CARGO_FUZZ_VERSION from crates.io into $TOOLS_DIR"
  cargo install --quiet --locked --root "$TOOLS_DIR" --target-dir target/tools "cargo-fuzz@$CARGO_FUZZ_VERSION" ||
    die "cargo could not install cargo-fuzz (see above): check the network"
}

# fuzz TARGET: prints a line with the executions; fails where something was found.
fuzz() {
  local target=$1 log=$FOUND/$1.log status=0
  mkdir -p "$FOUND/$target" "fuzz/artifacts/$target"
  (cd fuzz && nice cargo fuzz run "${FLAGS[@]}" "$target" "../$FOUND/$target" "corpus/$target" -- \
    "-max_total_time=$((minutes * 60))" -max_len=8192 -timeout=20 -rss_limit_mb=4096 \
    -print_final_stats=1) >"$log" 2>&1 || status=$?
  printf '%-16s %10s executions  %s\n' "$target" \
    "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
    "$([ $status = 0 ] && echo "nothing found" || echo "FAILED, see $log")"
  return $status
}

# minimise TARGET: the smallest inputs of those found that reach something new.
minimise() {
  local target=$1 merged bytes=0 size name step
  merged=$(mktemp -d)
  (cd fuzz && cargo fuzz run "${FLAGS[@]}" "$target" "$merged" "../$FOUND/$target" "corpus/$target" -- \
    -merge=1 -max_len=4096 >/dev/null 2>&1)
  # Of too many, short and long ones alike.
  step=$((($(find "$merged" -type f | wc -l) + CORPUS_INPUTS_MAX - 1) / CORPUS_INPUTS_MAX))
  rm -rf "fuzz/corpus/$target"
  mkdir -p "fuzz/corpus/$target"
  while read -r size name; do
    bytes=$((bytes + size))
    [ "$bytes" -le "$CORPUS_BYTES_MAX" ] || break
    cp "$merged/$name" "fuzz/corpus/$target/$name"
  done < <(cd "$merged" && stat -c '%s %n' -- * | sort -n | awk -v "step=$step" 'NR % step == 0')
  rm -rf "$merged"
  printf '%-16s %s inputs\n' "$target" "$(find "fuzz/corpus/$target" -type f | wc -l)"
}

[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cd fuzz/fuzz_targets && printf '%s\n' *.rs | sed 's/\.rs$//')
get_cargo_fuzz
failures=0
for target in "${targets[@]}"; do
  if [ -n "$minimise" ]; then
    minimise "$target"
  else
    fuzz "$target" || failures=$((failures + 1))
  fi
done
[ "$failures" = 0 ]
