#!/usr/bin/env bash
# Checks the dashboard: the vendored packages are unchanged, the types fit the API's description, unit tests, and stories in a real browser.
# Takes the gantry binary, and optionally the only stories to run: `tests/browser/check.sh BINARY [STORY…]`. Needs an engine with the job image. Uses its own data directory and port, and
# removes its jobs at the end. GANTRY_TEST_SOAK_SECONDS is how long the last test sends events: 20 by default.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
gantry="$(realpath "${1:?the gantry binary}")"
shift
# In this order: the first job of the user is one of the stories of jobs, and the last ones look at pages that are not empty.
readonly ALL=(session jobs demo files shell chat routines memory usage settings now palette admin accessibility)
dashboard="$here/../../orchestrator/dashboard"
tools="${BROWSER_NODE_DIRECTORY:?a directory in which npm installed package.json}/node_modules/.bin"
work="$(mktemp -d)"
server=""

# A server that is started again when a story kills it.
start() {
  local code=137
  while [ "$code" -eq 137 ]; do
    code=0
    GANTRY_BIND="127.0.0.1:$port" RUST_LOG=warn "$gantry" serve >>"$work/serve.log" 2>&1 &
    echo $! >"$work/pid"
    wait $! || code=$?
  done &
  server=$!
  wait_for "$GANTRY_URL/readyz"
}
stop() {
  if [ -z "$server" ]; then return; fi
  kill "$(cat "$work/pid")" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  server=""
}
cleanup() {
  stop
  docker ps -aq --filter "label=gantry.instance-id=$GANTRY_INSTANCE_ID" | xargs -r docker rm -f >/dev/null
  rm -rf "$work"
}
free_port() { node -e 'const s = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close(); })'; }

wait_for() {
  local deadline=$((SECONDS + 60))
  until curl -fsS -o /dev/null --max-time 5 "$1" 2>/dev/null; do
    [ "$SECONDS" -lt "$deadline" ] || { echo "browser: $1 does not answer" >&2; cat "$work/serve.log" >&2; return 1; }
    sleep 0.2
  done
}

GANTRY_INSTANCE_ID="$(node -p 'crypto.randomUUID()')"
port="$(free_port)"
trap cleanup EXIT
export GANTRY_INSTANCE_ID GANTRY_DATA_DIR="$work/data" GANTRY_URL="http://127.0.0.1:$port"
start
curl -fsS -o "$work/openapi.json" "$GANTRY_URL/api/openapi.json"

echo "--- the vendored packages are those of the lock file"
"$dashboard/vendor.sh" "$work/vendor"
diff -r "$work/vendor" "$dashboard/vendor"

echo "--- the types of the dashboard fit /api/openapi.json"
mkdir "$work/types"
cp -r "$dashboard/app" "$dashboard/jsconfig.json" "$dashboard/package.json" "$dashboard/package-lock.json" "$work/types/"
(cd "$work/types" && npm ci --ignore-scripts --silent --no-audit --no-fund)
"$tools/openapi-typescript" "$work/openapi.json" --output "$work/types/openapi.d.ts"
"$tools/tsc" --project "$work/types/jsconfig.json"

echo "--- unit tests"
node --test "$here/unit.test.mjs" "$here"/unit/*.test.mjs

echo "--- stories in a browser"
GANTRY_TOKEN="$("$gantry" token create --user ada --role user --ttl 1h)"
export GANTRY_TOKEN
GANTRY_TEST_ADMIN_TOKEN="$("$gantry" token create --user root --role admin --ttl 1h)"
GANTRY_TEST_VIEWER_TOKEN="$("$gantry" token create --user eve --role viewer --ttl 1h)"
export GANTRY_TEST_ADMIN_TOKEN GANTRY_TEST_VIEWER_TOKEN
code() { "$gantry" dashboard | sed 's/.*#code=//'; }
export GANTRY_TEST_URL="$GANTRY_URL" GANTRY_TEST_TOKEN="$GANTRY_TOKEN" GANTRY_TEST_PID_FILE="$work/pid"
GANTRY_TEST_CODES="$(code),$(code)"
export GANTRY_TEST_CODES
only=("$@")
[ "$#" -gt 0 ] || only=("${ALL[@]}")
for story in "${only[@]}"; do
  node --test --test-timeout=300000 "$here/stories/$story.test.mjs"
done
if [ "$#" -gt 0 ]; then exit; fi

echo "--- budgets with much data"
"$gantry" job run "run: true" >/dev/null
# 1,006 files: the last ones, by path, have no room in the list of changes; large.txt has 64 MiB.
# The dollar signs are for the job's shell.
# shellcheck disable=SC2016
GANTRY_TEST_FILES_JOB="$("$gantry" job run --detach 'run: mkdir z; for i in $(seq -w 0 0999); do echo $i >f$i.txt; done; for i in 1 2 3 4 5; do echo $i >z/$i.txt; done; awk '"'"'BEGIN { for (i = 1; ; i += 1) printf "line %d %056d\n", i, 0 }'"'"' | head -c 67108864 >large.txt')"
export GANTRY_TEST_FILES_JOB
"$gantry" job wait "$GANTRY_TEST_FILES_JOB" >/dev/null
stop
read -r GANTRY_TEST_LONG_JOB GANTRY_TEST_LARGE_JOB <<<"$(python3 "$here/seed.py" "$GANTRY_DATA_DIR/gantry.db" 1000 10000 2600)"
export GANTRY_TEST_LONG_JOB GANTRY_TEST_LARGE_JOB
start
node --test --test-timeout=600000 "$here/budgets.test.mjs"

echo "--- budgets while events arrive"
node --test --test-timeout=600000 "$here/budgets_live.test.mjs"
