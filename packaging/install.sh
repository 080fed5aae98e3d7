#!/bin/sh
# Installs the newest release of Modegate for this user, without root:
#
#   curl -LsSf https://github.com/modegate/modegate/releases/latest/download/install.sh | sh
#
# MODEGATE_VERSION selects a version, such as 0.1.0; MODEGATE_INSTALL_DIR the folder (default: ~/.local/bin).
# MODEGATE_DOWNLOAD replaces the address of the release's files.
set -eu

repository=https://github.com/modegate/modegate
folder=${MODEGATE_INSTALL_DIR:-"$HOME/.local/bin"}

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

fetch() {
  if command -v curl >/dev/null; then
    curl -fsSL --proto '=https,file' "$1" -o "$2"
  elif command -v wget >/dev/null; then
    wget -q "$1" -O "$2"
  else
    fail "curl or wget is needed"
  fi || fail "$1 cannot be downloaded"
}

sum() {
  if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1
}

main() {
  case $(uname -s)-$(uname -m) in
    Linux-x86_64) target=x86_64-unknown-linux-musl ;;
    Linux-aarch64 | Linux-arm64) target=aarch64-unknown-linux-musl ;;
    Darwin-arm64) target=aarch64-apple-darwin ;;
    Darwin-x86_64) target=x86_64-apple-darwin ;;
    *) fail "there is no binary for $(uname -s) $(uname -m); install it with: cargo install modegate" ;;
  esac
  base=$repository/releases/latest/download
  [ -z "${MODEGATE_VERSION:-}" ] || base=$repository/releases/download/v$MODEGATE_VERSION
  base=${MODEGATE_DOWNLOAD:-$base}
  temporary=$(mktemp -d)
  trap 'rm -rf "$temporary"' EXIT
  fetch "$base/SHA256SUMS" "$temporary/sums"
  archive=$(sed -n "s/^[0-9a-f]*  \(modegate-.*-$target\.tar\.gz\)$/\1/p" "$temporary/sums")
  [ -n "$archive" ] || fail "the release has no binary for $target"
  fetch "$base/$archive" "$temporary/$archive"
  expected=$(sed -n "s/^\([0-9a-f]*\)  $archive$/\1/p" "$temporary/sums")
  [ "$(sum "$temporary/$archive")" = "$expected" ] || fail "$archive does not have the checksum of the release"
  tar -xzf "$temporary/$archive" -C "$temporary"
  mkdir -p "$folder"
  # Moved, so that a running Modegate keeps its file.
  cp "$temporary/${archive%.tar.gz}/modegate" "$folder/.modegate.new"
  chmod 755 "$folder/.modegate.new"
  mv -f "$folder/.modegate.new" "$folder/modegate"
  "$folder/modegate" --version
  echo "installed: $folder/modegate"
  case :$PATH: in
    *":$folder:"*) ;;
    *) echo "add $folder to PATH" ;;
  esac
}

main
