#!/usr/bin/env bash
# Stops Gantry: cancels what runs, takes the stack down, removes the job containers that are left over.
# Keeps the data volume unless told `--volumes`. Never touches a container or a volume of anybody else's: a job container
# is this install's when what it mounts lies in this install's volume.
set -euo pipefail

readonly CANCEL_SECONDS=20

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
down_options=()

say() { printf 'down: %s\n' "$*"; }

gantry() { docker/compose.sh exec -T -e GANTRY_TOKEN gantry gantry "$@" </dev/null; }

# The ids of every job that has not ended, as many as one page holds.
unfinished() {
  local state
  for state in in_progress pending stuck; do
    gantry job list --state "$state" --json | grep -oE '"id": ?"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"' | cut -d '"' -f 4 || true
  done
}

cancel_jobs() {
  local ids id asked="" deadline=$((SECONDS + CANCEL_SECONDS))
  # An operator of five minutes: it must see everybody's jobs.
  GANTRY_TOKEN="$(gantry token create --user operator --role admin --ttl 5m | tail -n 1 | tr -d '\r')" || return 1
  export GANTRY_TOKEN
  while ids="$(unfinished)" && [ -n "$ids" ]; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      say "some jobs did not end within ${CANCEL_SECONDS} s; their containers are removed below"
      return
    fi
    for id in $ids; do
      case "$asked" in *"$id"*) continue ;; esac
      say "cancelling job $id"
      # It may have ended in the meantime.
      gantry job cancel "$id" --reason "docker/down.sh" >/dev/null 2>&1 || true
      asked="$asked $id"
    done
  done
}

# The data volume's name: as the orchestrator's container $1 says, else as Compose gives it.
volume_name() {
  local container="$1" project
  if [ -n "$container" ]; then
    docker inspect --format '{{range .Mounts}}{{if eq .Destination "/var/lib/gantry"}}{{.Name}}{{end}}{{end}}' "$container"
    return
  fi
  project="$(docker/setting.sh COMPOSE_PROJECT_NAME "$(basename "$root" | tr '[:upper:]' '[:lower:]' | tr -cd 'a-z0-9_-')")"
  echo "${project}_gantry-data"
}

# Managed containers that mount the volume $1, or a folder in it, which the engine may show by its path.
own_job_containers() {
  local volume="$1" mountpoint id
  mountpoint="$(docker volume inspect --format '{{.Mountpoint}}' "$volume" 2>/dev/null)" || return 0
  for id in $(docker ps -aq --filter label=gantry.managed=true); do
    if docker inspect --format '{{range .Mounts}}{{println .Name}}{{println .Source}}{{end}}' "$id" 2>/dev/null |
      awk -v name="$volume" -v path="$mountpoint/" '$0 == name || index($0, path) == 1 { found = 1 } END { exit !found }'; then
      echo "$id"
    fi
  done
}

# What there was, and what is left of it: $1 whether anything ran, $2 the volume's name.
report() {
  local up="nothing is up" data="there is no data"
  if [ "$1" = yes ]; then up="everything is down"; fi
  if [ ${#down_options[@]} -gt 0 ]; then
    data="the data is deleted"
  elif docker volume inspect "$2" >/dev/null 2>&1; then
    data="the data volume is kept"
  fi
  say "$up; $data"
}

usage() { echo "usage: docker/down.sh [--volumes]   (--volumes also deletes the data: jobs, keys, workspaces)"; }

main() {
  local container volume left="" up=no
  case "${1:-}" in
    "") ;;
    --volumes) down_options=(--volumes) ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  if ! timeout 10 docker version >/dev/null 2>&1; then
    if [ -n "${DOCKER_HOST:-}" ]; then
      echo "down: DOCKER_HOST is set but nothing answers there; nothing was done" >&2
      exit 1
    fi
    say "no container engine answers here, so there is nothing to take down"
    return
  fi
  container="$(docker/compose.sh ps -a -q gantry)"
  volume="$(volume_name "$container")"
  if [ -n "$container" ]; then
    up=yes
    if [ "$(docker inspect --format '{{.State.Running}}' "$container")" = true ]; then
      cancel_jobs || say "the orchestrator does not answer; its job containers are removed below"
    fi
    docker/compose.sh stop >/dev/null 2>&1
  fi
  if [ -n "$volume" ]; then
    left="$(own_job_containers "$volume")"
    if [ -n "$left" ]; then
      say "removing left-over job containers"
      # shellcheck disable=SC2086
      docker rm --force $left >/dev/null
    fi
  fi
  docker/compose.sh down "${down_options[@]}" >/dev/null 2>&1
  report "$up" "$volume"
}

main "$@"
