#!/usr/bin/env bash
# Checks the dashboard's files without a browser: the vendored packages are unchanged, the types fit the API's description, and the unit
# tests: `tests/browser/check.sh OPENAPI_JSON`. The stories need a server and a browser: `stories.test.mjs` says how to run them.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
openapi="$(realpath "${1:?the OpenAPI document of the server}")"
dashboard="$here/../../orchestrator/dashboard"
node_directory="${BROWSER_NODE_DIRECTORY:-$here}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

echo "--- the vendored packages are those of the lock file"
"$dashboard/vendor.sh" "$work/vendor"
diff -r "$work/vendor" "$dashboard/vendor"

echo "--- the types of the dashboard fit /api/openapi.json"
mkdir "$work/types"
cp -r "$dashboard/app" "$dashboard/jsconfig.json" "$dashboard/package.json" "$dashboard/package-lock.json" "$work/types/"
(cd "$work/types" && npm ci --ignore-scripts --silent --no-audit --no-fund)
"$node_directory/node_modules/.bin/openapi-typescript" "$openapi" --output "$work/types/openapi.d.ts"
"$node_directory/node_modules/.bin/tsc" --project "$work/types/jsconfig.json"

echo "--- unit tests"
node --test "$here/unit.test.mjs"
