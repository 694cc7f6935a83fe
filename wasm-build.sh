#!/usr/bin/env bash
# Builds target/fairshare.wasm: release, pruned to what Envoy calls, same bytes for the same inputs.
#
#   ./wasm-build.sh             builds
#   ./wasm-build.sh --inputs    prints the hash of all that the module is made of, and builds nothing
#
# The module carries that hash, in the custom section fairshare.inputs.
#
# Gets the Rust target wasm32-wasip1 where rustup can. CARGO_TARGET_DIR moves cargo's own files; the
# module is always written to target/fairshare.wasm.
set -euo pipefail

readonly TARGET=wasm32-wasip1
readonly SIZE_LIMIT_BYTES=409600

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$root"
# shellcheck source=envoy/lib.sh
. envoy/lib.sh

# What rustc and the prune tool make of the module besides the first version of WebAssembly.
readonly FEATURES=(--enable-bulk-memory --enable-multivalue --enable-mutable-globals
  --enable-nontrapping-float-to-int --enable-reference-types --enable-sign-ext)

module=target/fairshare.wasm

# Standard library for the target: present, or installed by rustup, or one line that says what to do.
get_target() {
  if [ -d "$(rustc --print target-libdir --target "$TARGET" 2>/dev/null)" ]; then
    return
  fi
  command -v rustup >/dev/null ||
    die "the Rust target $TARGET is missing and rustup is not here to add it: install rustup (https://rustup.rs), or your distribution's Rust standard library for $TARGET"
  rustup target add "$TARGET" ||
    die "rustup could not add the Rust target $TARGET (see above): check the network, then run: rustup target add $TARGET"
}

# Absolute paths end up in panic messages. They are mapped to fixed names, so that neither the
# checkout's place, nor the user's home, nor an installed rust-src changes the module.
path_remapping() {
  local cargo_home=${CARGO_HOME:-$HOME/.cargo} rust_src commit
  rust_src=$(rustc --print sysroot)/lib/rustlib/src/rust
  commit=$(rustc -vV | sed -n 's/^commit-hash: //p')
  printf -- '--remap-path-prefix=%s=/cargo\x1f' "$cargo_home"
  printf -- '--remap-path-prefix=%s=/rustc/%s\x1f' "$rust_src" "$commit"
  printf -- '--remap-path-prefix=%s=/fairshare' "$root"
}

# LLVM inlines, unrolls and duplicates as if the module's size did not matter. With these limits a request
# takes a third fewer instructions than in a module optimised for size, of about as many bytes
# (docs/decisions/0028-compiled-for-speed.md).
module_flags() {
  path_remapping
  printf -- '\x1f-Cllvm-args=%s' -inline-threshold=20 -inlinehint-threshold=45 \
    -unroll-threshold=0 -unroll-runtime=false -jump-threading-threshold=2
}

build_module() {
  # The encoded form takes precedence over RUSTFLAGS, which must not change the module.
  CARGO_ENCODED_RUSTFLAGS=$(module_flags) cargo build --release --lib --no-default-features \
    --target "$TARGET" --locked --target-dir "$cargo_target_dir"
}

# Tools are built for this machine, apart from the plugin: own lock file, own target directory.
build_prune() {
  env -u CARGO_TARGET_DIR cargo build --quiet --release --locked \
    --manifest-path tools/prune/Cargo.toml --target-dir target/tools
}

# wasm-opt, of the distribution's package binaryen. Without it the module works as well, but is larger.
get_wasm_opt() {
  command -v wasm-opt >/dev/null || apt_install binaryen ||
    note "wasm-opt is missing, so the module is a tenth larger than it could be: install binaryen 108 or newer"
}

optimise() {
  command -v wasm-opt >/dev/null || return 0
  wasm-opt -Oz "${FEATURES[@]}" "$1" -o "$1"
}

# Two builds of the same inputs have the same bytes.
inputs_hash() {
  {
    rustc -vV | grep -E '^(release|commit-hash):'
    wasm-opt --version 2>/dev/null || true
    find src tools/prune/src tools/prune/Cargo.* Cargo.toml Cargo.lock build.rs wasm-build.sh -type f -print0 |
      LC_ALL=C sort -z | xargs -0 sha256sum
  } | sha256sum | cut -d' ' -f1
}

command -v cargo >/dev/null || die "cargo is missing: install Rust 1.95 or newer (https://rustup.rs)"
case ${1:-} in
  '') ;;
  --inputs)
    inputs_hash
    exit
    ;;
  *)
    sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
get_target
get_wasm_opt
# What changes while the compiler reads it makes the module stale.
inputs=$(inputs_hash)
build_module
build_prune

mkdir -p target
pruned=$(mktemp target/fairshare.wasm.XXXXXX)
trap 'rm -f "$pruned"' EXIT
target/tools/release/prune "$cargo_target_dir/$TARGET/release/fairshare.wasm" "$pruned" "$inputs"
optimise "$pruned"

size=$(wc -c <"$pruned")
if [ "$size" -gt "$SIZE_LIMIT_BYTES" ]; then
  die "the module has $size bytes, over the limit of $SIZE_LIMIT_BYTES: drop a dependency or code, or move the limit in wasm-build.sh with a reason"
fi
chmod 644 "$pruned"
mv "$pruned" "$module"
printf '%s  %s bytes  sha256 %s\n' "$module" "$size" "$(sha256sum "$module" | cut -d' ' -f1)"
