#!/usr/bin/env bash
# Checks that a running job survives an upgrade: the old version starts it, the new one adopts it, and it completes. A pending
# job is run by the new version. Run by hand, because it needs the programs and images of two versions:
#   tests/upgrade.sh OLD_GANTRY OLD_IMAGE NEW_GANTRY NEW_IMAGE
#   docker cp "$(docker create gantry:old)":/usr/local/bin/gantry /tmp/gantry-old    # takes a program out of its image
# Does not touch other installations on the engine, and leaves nothing but the images.
set -euo pipefail

readonly WAIT_SECONDS=60

[ $# -eq 4 ] || {
  sed -n '4,5s/^# *//p' "$0" >&2
  exit 2
}
old_gantry="$1" old_image="$2" new_gantry="$3" new_image="$4"
# In /tmp because socket paths must be short.
data="$(mktemp -d /tmp/gu.XXXX)"
instance="$(cat /proc/sys/kernel/random/uuid)"
port="$((20000 + RANDOM % 10000))"
# An upgrade keeps the image's name: a pending job is run by the new worker.
image="gantry-upgrade:$instance"
server=

fail() {
  printf 'upgrade: %s\n' "$*" >&2
  tail -n 20 "$data/log" >&2
  exit 1
}

tidy() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi
  docker ps -aq --filter "label=gantry.instance-id=$instance" | xargs -r docker rm -f >/dev/null
  docker rmi "$image" >/dev/null 2>&1 || true
  rm -rf "$data"
}
trap tidy EXIT

# Sets `environment` for a version.
use() {
  program="$1"
  environment=(env -i "PATH=$PATH" "GANTRY_DATA_DIR=$data/data" "GANTRY_INSTANCE_ID=$instance" "GANTRY_BIND=127.0.0.1:$port"
    GANTRY_LLM_PROVIDER=scripted GANTRY_MAX_PARALLEL_JOBS=1 "GANTRY_SANDBOX_IMAGE=$image" GANTRY_DISK_FLOOR_MB=0
    "GANTRY_URL=http://127.0.0.1:$port" "GANTRY_TOKEN=${token:-}")
}

gantry() { "${environment[@]}" "$program" "$@"; }

# Starts a version and waits until it has migrated the database and responds.
start() {
  local deadline=$((SECONDS + WAIT_SECONDS))
  docker tag "$2" "$image"
  use "$1"
  # Not through the function: signals must reach the program, not a shell around it.
  "${environment[@]}" "$program" serve >>"$data/log" 2>&1 &
  server=$!
  until curl -fsS "http://127.0.0.1:$port/healthz" 2>/dev/null | grep -q '"status":"ok"'; do
    kill -0 "$server" 2>/dev/null || fail "$program ended"
    [ "$SECONDS" -lt "$deadline" ] || fail "$program does not respond"
    sleep 0.1
  done
}

stop() {
  kill "$server"
  wait "$server" || fail "$program exited with an error"
  server=
}

state_of() { gantry job show "$1" --json | jq -r .state; }

wait_for() {
  local deadline=$((SECONDS + WAIT_SECONDS)) state
  until state="$(state_of "$1")" && [ "$state" = "$2" ]; do
    case "$state" in completed | failed | cancelled) fail "job $1 is $state, not $2: $(gantry job show "$1" --json)" ;; esac
    [ "$SECONDS" -lt "$deadline" ] || fail "job $1 is $state after $WAIT_SECONDS s, not $2"
    sleep 0.1
  done
}

use "$old_gantry"
token="$(gantry token create --init --user upgrade --ttl 1h)"
start "$old_gantry" "$old_image"
working="$(gantry job create "run: touch begun; until [ -e go ]; do sleep 0.1; done; echo done")"
waiting="$(gantry job create "run: true")"
wait_for "$working" in_progress
until [ -e "$data/data/workspaces/$working/begun" ]; do sleep 0.1; done
stop
start "$new_gantry" "$new_image"
[ "$(state_of "$working")" = in_progress ] || fail "the running job was ended: $(gantry job show "$working" --json)"
touch "$data/data/workspaces/$working/go"
wait_for "$working" completed
wait_for "$waiting" completed
for job in "$working" "$waiting"; do
  [ "$(gantry job show "$job" --json | jq .attempt)" = 1 ] || fail "job $job was run again"
done
stop
left="$(docker ps -aq --filter "label=gantry.instance-id=$instance")"
[ -z "$left" ] || fail "leftovers: $left"
echo "upgrade: the running and the pending job completed"
