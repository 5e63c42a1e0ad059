#!/usr/bin/env bash
# Copies the packages of package-lock.json that the dashboard loads, unchanged, and their licences: `vendor.sh [DIRECTORY]`, by default into
# `vendor/`. The tests run it into an empty directory and compare. Needs npm; building and running Gantry do not.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
target="${1:-$here/vendor}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

cp "$here/package.json" "$here/package-lock.json" "$work/"
(cd "$work" && npm ci --ignore-scripts --silent --no-audit --no-fund)
modules="$work/node_modules"

mkdir -p "$target"
rm -f "$target"/*.js "$target/LICENSES"
cp "$modules/preact/dist/preact.mjs" "$target/preact.js"
cp "$modules/preact/hooks/dist/hooks.mjs" "$target/hooks.js"
cp "$modules/@preact/signals/dist/signals.mjs" "$target/signals.js"
cp "$modules/@preact/signals-core/dist/signals-core.mjs" "$target/signals-core.js"
cp "$modules/htm/dist/htm.mjs" "$target/htm.js"
for package in preact @preact/signals @preact/signals-core htm; do
  printf '%s %s\n\n' "$package" "$(node -p 'require(process.argv[1]).version' "$modules/$package/package.json")"
  cat "$modules/$package/LICENSE"
  printf '\n\n'
done >"$target/LICENSES"
