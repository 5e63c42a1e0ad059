#!/usr/bin/env bash
# Checks Gantry with third-party clients: the official `openai`, `anthropic` and `ollama` libraries for Python and Node against
# `gantry llm serve`; validators of the OpenAPI document (openapi-spec-validator, Redocly, Spectral); clients that openapi-typescript and
# openapi-python-client generate from it, and schemathesis, against the public API. Takes the gantry binary: `tests/clients/check.sh BINARY`.
# Needs an engine with the job image. Uses its own data directory and ports, and removes its jobs at the end.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
gantry="$(realpath "${1:?the gantry binary}")"
python="${CLIENTS_PYTHON:-python3}"
schemathesis="${CLIENTS_SCHEMATHESIS:-schemathesis}"
node="${CLIENTS_NODE:-node}"
node_directory="${CLIENTS_NODE_DIRECTORY:?a directory in which npm installed package.json}"
work="$(mktemp -d)"
pids=()

cleanup() {
  local pid
  for pid in "${pids[@]}"; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  docker ps -aq --filter "label=gantry.instance-id=$GANTRY_INSTANCE_ID" | xargs -r docker rm -f >/dev/null
  rm -rf "$work"
}

free_port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

wait_for() {
  local deadline=$((SECONDS + 60))
  until curl -fsS -o /dev/null --max-time 5 "$1" 2>/dev/null; do
    [ "$SECONDS" -lt "$deadline" ] || { echo "clients: $1 does not answer" >&2; return 1; }
    sleep 0.2
  done
}

GANTRY_INSTANCE_ID="$("$python" -c 'import uuid; print(uuid.uuid4())')"
export GANTRY_INSTANCE_ID GANTRY_DATA_DIR="$work/data"
trap cleanup EXIT

echo "--- the official client libraries against gantry llm serve"
port="$(free_port)"
"$gantry" llm serve --script "$here/clients.yaml" --bind "127.0.0.1:$port" >"$work/llm.log" 2>&1 &
pids+=($!)
wait_for "http://127.0.0.1:$port/v1/models"
"$python" "$here/check_clients.py" "http://127.0.0.1:$port"
# The script counts how often some rules were used, so Node gets a separate server. Modules are found from a file's own directory.
port="$(free_port)"
"$gantry" llm serve --script "$here/clients.yaml" --bind "127.0.0.1:$port" >"$work/llm-node.log" 2>&1 &
pids+=($!)
wait_for "http://127.0.0.1:$port/v1/models"
cp "$here/check_clients.mjs" "$node_directory/"
"$node" "$node_directory/check_clients.mjs" "http://127.0.0.1:$port"

echo "--- validators of /api/openapi.json"
port="$(free_port)"
GANTRY_BIND="127.0.0.1:$port" RUST_LOG=warn "$gantry" serve >"$work/serve.log" 2>&1 &
pids+=($!)
wait_for "http://127.0.0.1:$port/readyz"
curl -fsS -o "$work/openapi.json" "http://127.0.0.1:$port/api/openapi.json"
"$python" -m openapi_spec_validator "$work/openapi.json"
tools="$node_directory/node_modules/.bin"
# The programs of both package managers find `node` and `ruff` on the path.
programs="$(dirname "$python")"
export PATH="$programs:$PATH" REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true
"$tools/redocly" lint --extends recommended-strict "$work/openapi.json"
"$tools/spectral" lint --ruleset "$here/spectral.yaml" --fail-severity warn "$work/openapi.json"

echo "--- generated clients against the public API"
token() { "$gantry" token create --user "$1" --role user --ttl 1h; }
export GANTRY_URL="http://127.0.0.1:$port" PYTHONDONTWRITEBYTECODE=1
mkdir "$work/typescript" "$work/python"
cp "$here/check_api.ts" "$here/tsconfig.json" "$here/package.json" "$work/typescript/"
# Modules are found from a file's own directory.
ln -s "$node_directory/node_modules" "$work/typescript/node_modules"
"$tools/openapi-typescript" "$work/openapi.json" --output "$work/typescript/gantry.d.ts"
"$tools/tsc" --project "$work/typescript"
GANTRY_TOKEN="$(token typescript)" "$node" "$work/typescript/out/check_api.js"
"$python" -m openapi_python_client generate --path "$work/openapi.json" --output-path "$work/python/gantry_client" --meta none --fail-on-warning
PYTHONPATH="$work/python" GANTRY_TOKEN="$(token python)" "$python" "$here/check_api.py"

echo "--- schemathesis against the public API"
# Some requests that match the schema are refused with a documented status (an invented cursor, a reused idempotency key), so
# "positive data acceptance" is not among the checks. Two streams have no end to wait for.
cd "$work" # it leaves a cache where it runs
export SCHEMATHESIS_HOOKS=hooks PYTHONPATH="$here"
"$schemathesis" run "$GANTRY_URL/api/openapi.json" -H "Authorization: Bearer $(token schema)" \
  --checks not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance \
  --exclude-path /api/events --exclude-path /api/chat/events --max-examples 40 --seed 1
