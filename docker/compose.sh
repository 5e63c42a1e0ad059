#!/usr/bin/env bash
# Runs Compose for this project with the given arguments: `docker compose` if available, else `docker-compose`.
# If neither is installed, on Debian as root, installs the distribution's. GANTRY_ENV_FILE replaces the file .env.
# Never installs anything if one of them exists, and never touches another project.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

options=()
if [ -n "${GANTRY_ENV_FILE:-}" ]; then options=(--env-file "$GANTRY_ENV_FILE"); fi

# Compose 1.29 prints nothing when there is no container to run a command in.
say_if_stopped() {
  local id
  id="$(docker-compose "${options[@]}" ps -q gantry 2>/dev/null | head -n 1)"
  if [ -z "$id" ] || [ "$(docker inspect --format '{{.State.Running}}' "$id" 2>/dev/null)" != true ]; then
    echo "compose: the stack is not running; start it with docker/up.sh" >&2
  fi
}

if docker compose version >/dev/null 2>&1; then
  exec docker compose "${options[@]}" "$@"
fi
if ! command -v docker-compose >/dev/null; then
  if [ ! -e /etc/debian_version ] || [ "$(id -u)" -ne 0 ]; then
    echo "compose: neither 'docker compose' nor 'docker-compose' was found; install Docker Compose and run this again" >&2
    exit 1
  fi
  echo "compose: installing the distribution's docker-compose" >&2
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends docker-compose; } >/dev/null
fi
if [ "${1:-}" != exec ]; then exec docker-compose "${options[@]}" "$@"; fi
code=0
docker-compose "${options[@]}" "$@" || code="$?"
if [ "$code" -ne 0 ]; then say_if_stopped; fi
exit "$code"
