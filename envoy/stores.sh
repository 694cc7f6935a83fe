# shellcheck shell=bash
# Stores that the distribution may not have: Valkey, and a newer Redis. They come from Debian's own
# archive with all their libraries, into TOOLS_DIR and for this checkout alone: nothing is installed,
# no list of packages is changed, and no root is needed. FAIRSHARE_DEBIAN_MIRROR names another mirror.
# envoy/lib.sh is read before this file.

readonly STORES_SUITE=trixie
readonly STORES_MIRROR=${FAIRSHARE_DEBIAN_MIRROR:-http://deb.debian.org/debian}
readonly STORES_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# Sets VALKEY_BIN: as it is set, else from PATH, else from Debian, else from the distribution's package.
get_valkey() {
  if [ -n "${VALKEY_BIN:-}" ]; then
    [ -x "$VALKEY_BIN" ] || die "VALKEY_BIN names $VALKEY_BIN, which is no program: correct it, or unset it to have Valkey fetched"
  elif ! VALKEY_BIN=$(command -v valkey-server); then
    VALKEY_BIN=$PWD/$TOOLS_DIR/bin/valkey-server
    fetch_store valkey-server valkey-server ||
      { apt_install valkey-server && VALKEY_BIN=$(command -v valkey-server); } ||
      die "valkey-server is missing and could be had neither from Debian nor from this distribution (see above): install it, or set VALKEY_BIN"
  fi
  export VALKEY_BIN
}

# Fetches the Redis of a newer Debian as .tools/bin/redis-server-8.
get_redis_8() {
  fetch_store redis-server redis-server-8 ||
    die "Redis 8 could not be fetched from Debian (see above): compare with another one by REDIS_BIN"
}

# fetch_store PACKAGE NAME: gets the program that is called like its package as .tools/bin/NAME.
fetch_store() {
  local package=$1 program=$TOOLS_DIR/bin/$2 home=$TOOLS_DIR/$2
  [ ! -x "$program" ] || return 0
  if ! { command -v apt-get && command -v dpkg-deb && [ -f "$STORES_KEYRING" ]; } >/dev/null; then
    note "this machine has no apt-get or not Debian's keys ($STORES_KEYRING)"
    return 1
  fi
  note "fetching $package from Debian $STORES_SUITE into $TOOLS_DIR"
  rm -rf "$home"
  mkdir -p "$home/apt/lists/partial" "$home/apt/archives/partial" "$TOOLS_DIR/bin"
  unpack_package "$package" "$home" || return 1
  rm -rf "$home/apt"
  write_starter "$package" "$2"
  "$program" --version >&2 || {
    rm -f "$program"
    return 1
  }
}

# unpack_package PACKAGE HOME: the package and all that it depends on. An empty status file makes apt
# take libraries that this machine has in other versions, too.
unpack_package() {
  local package=$1 home=$2 apt=$PWD/$2/apt archive
  printf 'deb [signed-by=%s] %s %s main\n' "$STORES_KEYRING" "$STORES_MIRROR" "$STORES_SUITE" >"$apt/sources.list"
  : >"$apt/status"
  local options=(
    -o "Dir::State::lists=$apt/lists" -o "Dir::State::status=$apt/status"
    -o "Dir::State::extended_states=$apt/extended" -o "Dir::Cache=$apt" -o "Dir::Cache::archives=$apt/archives"
    -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null
    -o Debug::NoLocking=true -o APT::Sandbox::User= -o APT::Install-Recommends=false
    -o Acquire::Languages=none -o Acquire::Retries=3
    -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
  )
  apt-get -qq "${options[@]}" update >&2 || return 1
  apt-get -qq "${options[@]}" install --yes --download-only "$package" >&2 || return 1
  for archive in "$apt"/archives/*.deb; do
    dpkg-deb --extract "$archive" "$home" || return 1
  done
}

# The program runs with its own C library, through that library's loader, so that it does not matter how
# old this machine's is.
write_starter() {
  local package=$1 name=$2
  cat >"$TOOLS_DIR/bin/$name.new" <<END
#!/bin/sh
home=\$(dirname "\$0")/../$name
libraries=\$(echo "\$home"/usr/lib/*-linux-gnu* | tr ' ' ':')
exec "\$home"/usr/lib*/ld-linux-*.so.* --library-path "\$libraries" "\$home/usr/bin/$package" "\$@"
END
  chmod +x "$TOOLS_DIR/bin/$name.new"
  mv "$TOOLS_DIR/bin/$name.new" "$TOOLS_DIR/bin/$name"
}
