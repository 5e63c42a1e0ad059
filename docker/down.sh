#!/usr/bin/env bash
# Stops Gantry: cancels all unfinished jobs, including pending and held ones, stops the stack, and removes remaining job
# containers and those of docker/gantry, whose commands end.
# Keeps the data volume unless `--volumes` is given. Never touches containers or volumes of others: a job container belongs
# to this installation if it mounts this installation's volume.
set -euo pipefail

readonly CANCEL_SECONDS=20
# A healthy engine lists, inspects and removes containers within this time, even under load.
readonly ENGINE_SECONDS=60

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
down_options=()

say() { printf 'down: %s\n' "$*"; }
fail() {
  printf 'down: %s\n' "$*" >&2
  exit 1
}

# An engine may return its version but hang on requests about containers.
engine() { timeout "$ENGINE_SECONDS" docker "$@"; }

# Runs a command; if it fails, prints the end of its output and fails with "could not $1".
must() {
  local what="$1" output
  shift
  output="$("$@" 2>&1)" && return
  if [ -n "$output" ]; then printf '%s\n' "$output" | tail -n 3 >&2; fi
  fail "could not $what; if the engine hangs, restart it (systemctl restart docker, or end dockerd and run docker/engine.sh), then run this again"
}

gantry() { docker/compose.sh exec -T -e GANTRY_TOKEN gantry gantry "$@" </dev/null; }

# The ids of unfinished jobs, up to one page of each state.
unfinished() {
  local state
  for state in in_progress pending stuck; do
    gantry job list --state "$state" --json | grep -oE '"id": ?"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"' | cut -d '"' -f 4 || true
  done
}

cancel_jobs() {
  local ids id asked="" deadline=$((SECONDS + CANCEL_SECONDS))
  # A short-lived admin token, to see the jobs of all users.
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
      # The job may have ended meanwhile.
      gantry job cancel "$id" --reason "docker/down.sh" >/dev/null 2>&1 || true
      asked="$asked $id"
    done
  done
}

# The name of the data volume: from the orchestrator's container $1, else as Compose would name it.
volume_name() {
  local container="$1" project
  if [ -n "$container" ]; then
    engine inspect --format '{{range .Mounts}}{{if eq .Destination "/var/lib/gantry"}}{{.Name}}{{end}}{{end}}' "$container"
    return
  fi
  project="$(docker/setting.sh --project)"
  echo "${project}_gantry-data"
}

# Managed containers that mount the volume $1 or a directory in it, which the engine may show by its path. Uses only the list,
# which works even if inspecting a single container hangs.
own_job_containers() {
  local volume="$1" mountpoint
  mountpoint="$(engine volume inspect --format '{{.Mountpoint}}' "$volume" 2>/dev/null)" || return 0
  engine ps -a --no-trunc --filter label=gantry.managed=true --format '{{.ID}},{{.Mounts}}' |
    awk -F , -v name="$volume" -v path="$mountpoint/" \
      '{ for (i = 2; i <= NF; i++) if ($i == name || index($i, path) == 1) { print $1; next } }'
}

# Removes the containers of docker/gantry: of commands that still run, such as `job list --watch`, and of killed ones.
remove_commands() {
  local left
  left="$(command_containers)"
  [ -n "$left" ] || return 0
  say "ending the running commands of docker/gantry"
  # Those that follow the server end with it, so the engine may be removing one already: only what is left counts.
  # shellcheck disable=SC2086
  engine rm --force $left >/dev/null 2>&1 || sleep 1
  left="$(command_containers)"
  # shellcheck disable=SC2086
  if [ -n "$left" ]; then must "remove the containers of docker/gantry" engine rm --force $left; fi
}

command_containers() { engine ps -aq --filter "label=gantry.cli=$(docker/setting.sh --project)"; }

# Prints the result. $1: whether anything was running; $2: whether there was data.
report() {
  local up="nothing was running" data="there is no data"
  if [ "$1" = yes ]; then up="everything is stopped"; fi
  if [ "$2" = yes ]; then data="the data volume is kept"; fi
  if [ "$2" = yes ] && [ ${#down_options[@]} -gt 0 ]; then data="the data is deleted"; fi
  say "$up; $data"
}

usage() { echo "usage: docker/down.sh [--volumes]   (--volumes also deletes the data: jobs, keys, workspaces)"; }

main() {
  local container volume left="" up=no had_data=no
  case "${1:-}" in
    "") ;;
    --volumes) down_options=(--volumes) ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "down: unknown option $1" >&2
      usage >&2
      exit 2
      ;;
  esac
  if ! timeout 10 docker version >/dev/null 2>&1; then
    if [ -n "${DOCKER_HOST:-}" ]; then fail "DOCKER_HOST is set, but no engine responds there; nothing was done"; fi
    say "no container engine responds, so there is nothing to stop"
    return
  fi
  must "list the containers" engine ps -aq
  container="$(docker/compose.sh ps -a -q gantry)"
  volume="$(volume_name "$container")"
  if [ -n "$container" ]; then
    up=yes
    if [ "$(engine inspect --format '{{.State.Running}}' "$container")" = true ]; then
      cancel_jobs || say "the orchestrator does not respond; its job containers are removed below"
    fi
    must "stop the orchestrator" docker/compose.sh stop
  fi
  if [ -n "$volume" ]; then
    if engine volume inspect "$volume" >/dev/null 2>&1; then had_data=yes; fi
    left="$(own_job_containers "$volume")"
    if [ -n "$left" ]; then
      say "removing remaining job containers"
      # shellcheck disable=SC2086
      must "remove the job containers" engine rm --force $left
    fi
  fi
  remove_commands
  must "take the stack down" docker/compose.sh down "${down_options[@]}"
  report "$up" "$had_data"
}

main "$@"
