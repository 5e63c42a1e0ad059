#!/usr/bin/env bash
# Installs and starts Gantry from a clone: container engine, base image, programs, images, stack, and a demo job.
# Can be run again at any time: existing parts are kept, changed parts are rebuilt and restarted.
# If an engine and Compose are installed, only this project's images, containers and volume are changed. Never stops other
# containers, never deletes the data volume, and never calls a real model unless requested.
#
# Settings, in the environment or in .env (all other settings are those of compose.yaml):
#   GANTRY_BINARIES       prebuilt: compile with this machine's cargo; builder: compile in a build stage on rust:1-bookworm,
#                         which needs a registry. Default: prebuilt if a suitable cargo is installed.
#   GANTRY_BUILD_PROFILE  cargo's profile for the orchestrator; default release
#   GANTRY_READY_SECONDS  timeout for the stack to become ready; default 120
set -euo pipefail

readonly DEMO_PROMPT="Write a small Python program that finds the median of a list of numbers, with tests. Run the tests, fix the program until they pass, and report."
readonly IMAGE_GLIBC=2.36

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
demo=auto
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

say() { printf '\n==> %s\n' "$*"; }
fail() {
  printf '\nup: %s\n' "$*" >&2
  exit 1
}
usage() {
  cat <<'TEXT'
usage: docker/up.sh [--demo | --no-demo]
  Builds and starts Gantry on 127.0.0.1:8080 (GANTRY_PORT) and runs a demo job; the exit code is the job's outcome.
  --no-demo   start only
  --demo      run the demo job with your model too; by default it runs only with the built-in script
TEXT
}

# --- settings -------------------------------------------------------------------------------------------------------

# Variables that compose.yaml does not pass on have no effect.
warn_about_unused_settings() {
  local name
  for name in $(docker/setting.sh --names | grep '^GANTRY_' || true); do
    case "$name" in GANTRY_BUILD_PROFILE | GANTRY_READY_SECONDS) continue ;; esac
    grep -qE "(^ *- |\\\$\{)$name(\$|:-)" compose.yaml && continue
    echo "up: warning: $name in ${GANTRY_ENV_FILE:-.env} has no effect: compose.yaml does not pass it on" >&2
  done
}

fail_busy_port() { fail "port $1 on 127.0.0.1 is taken by another program; set GANTRY_PORT to a free port, in the environment or in .env, and run this again"; }

# Checks the port before anything is compiled. Ports of a remote engine cannot be checked.
check_port() {
  local port
  port="$(docker/setting.sh GANTRY_PORT 8080)"
  case "${DOCKER_HOST:-unix:}" in unix:*) ;; *) return 0 ;; esac
  # A running stack uses the port itself.
  [ "$(address)" = "127.0.0.1:$port" ] && return
  if (: 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then fail_busy_port "$port"; fi
}

# The published address of the API; empty if the stack is not running.
address() { docker/compose.sh port gantry 8080 2>/dev/null || true; }

# --- programs and images --------------------------------------------------------------------------------------------

# True when version $1 is at least $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# Programs compiled here must run in the images: this requires Linux, a new enough compiler, and a C library that is not
# newer than the images'.
cargo_fits() {
  local wanted glibc
  command -v cargo >/dev/null && command -v cc >/dev/null && [ "$(uname -s)" = Linux ] || return 1
  wanted="$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)"
  at_least "$(rustc --version | cut -d ' ' -f 2)" "$wanted" || return 1
  glibc="$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d ' ' -f 2)"
  [ -n "$glibc" ] && at_least "$IMAGE_GLIBC" "$glibc"
}

rust_version() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml; }

# $1: where; $2: disk space of the first build; $3: a file that exists after the first build.
announce_compiling() {
  say "compiling two programs, gantry and gantry-worker, $1"
  if [ ! -e "$3" ]; then echo "    the first time takes 10 to 30 minutes on two cores and about $2 of disk"; fi
}

# The alternative to a build stage.
other_way() {
  if cargo_fits; then
    echo "GANTRY_BINARIES=prebuilt compiles with this machine's cargo instead"
  else
    echo "and no suitable cargo was found: install Rust $(rust_version) or newer and a C compiler, and unset GANTRY_BINARIES"
  fi
}

choose_binaries() {
  GANTRY_BINARIES="$(docker/setting.sh GANTRY_BINARIES)"
  GANTRY_BUILD_PROFILE="$(docker/setting.sh GANTRY_BUILD_PROFILE release)"
  export GANTRY_BUILD_PROFILE
  if [ -z "$GANTRY_BINARIES" ]; then
    if cargo_fits; then GANTRY_BINARIES=prebuilt; else GANTRY_BINARIES=builder; fi
  fi
  case "$GANTRY_BINARIES" in
    prebuilt)
      # The build stage only copies files, which any image can do.
      GANTRY_BUILDER_BASE=debian:bookworm-slim
      announce_compiling "with this machine's cargo" "2 GB" docker/prebuilt/gantry
      docker/binaries.sh builder docker/prebuilt
      ;;
    builder)
      GANTRY_BUILDER_BASE="$(docker/setting.sh GANTRY_BUILDER_BASE rust:1-bookworm)"
      if ! docker image inspect "$GANTRY_BUILDER_BASE" >/dev/null 2>&1; then
        say "fetching $GANTRY_BUILDER_BASE"
        docker pull --quiet "$GANTRY_BUILDER_BASE" >/dev/null ||
          fail "cannot pull $GANTRY_BUILDER_BASE; $(other_way)"
      fi
      announce_compiling "in a build stage on $GANTRY_BUILDER_BASE, without showing its output" "5 GB" ""
      ;;
    *) fail "GANTRY_BINARIES=$GANTRY_BINARIES: must be prebuilt or builder" ;;
  esac
  export GANTRY_BINARIES GANTRY_BUILDER_BASE
}

# --- the stack ------------------------------------------------------------------------------------------------------

start_stack() {
  say "starting the stack"
  if ! docker/compose.sh up -d >"$work/up.log" 2>&1; then
    if grep -qiE 'port is already allocated|address already in use|ports are not available' "$work/up.log"; then
      docker/compose.sh down >/dev/null 2>&1 || true
      fail_busy_port "$(docker/setting.sh GANTRY_PORT 8080)"
    fi
    cat "$work/up.log" >&2
    fail "compose could not start the stack"
  fi
  container="$(docker/compose.sh ps -a -q gantry)"
  [ -n "$container" ] || fail "compose started no container for the service gantry"
}

# Configuration files are read at startup: restarts the server if they have changed since.
apply_config() {
  local directory started message
  directory="$(docker/setting.sh GANTRY_CONFIG_DIR ./config)"
  [ -d "$directory" ] || return 0
  started="$(docker inspect --format '{{.State.StartedAt}}' "$container")"
  [ -n "$(find "$directory" -maxdepth 1 ! -name README.md -newermt "$started" -print -quit)" ] || return 0
  message="$(docker exec "$container" gantry config 2>&1 >/dev/null)" ||
    fail "$message
    the server keeps its previous configuration; fix the error and run this again"
  say "the configuration has changed: restarting the server"
  docker/compose.sh restart gantry >/dev/null 2>&1
}

# The response of the readiness check on one line; empty while the server does not respond.
readiness() {
  docker exec "$container" curl -sS --max-time 5 http://127.0.0.1:8080/readyz 2>/dev/null | tr -d '\n' | cut -c 1-300 || true
}

# The process keeps exiting, most likely because of an invalid setting, which its last log line names.
give_up_on_restarts() {
  local message
  message="$(docker logs --tail 1 "$container" 2>&1 || true)"
  docker/compose.sh stop gantry >/dev/null 2>&1 || true
  fail "gantry does not start: ${message:-no output}
    the server was stopped; fix the setting (in the environment, .env or config/) and run this again"
}

wait_until_ready() {
  local deadline=$((SECONDS + $(docker/setting.sh GANTRY_READY_SECONDS 120))) seen="" now
  say "waiting for readiness (store, container engine, a probe of the sandbox)"
  until docker exec "$container" curl -fsS -o /dev/null --max-time 5 http://127.0.0.1:8080/readyz >/dev/null 2>&1; do
    now="$(readiness)"
    case "$now" in
      *misdirected_request*)
        fail "the server refuses requests for 127.0.0.1: add localhost,127.0.0.1,[::1] to GANTRY_ALLOWED_HOSTS and run this again" ;;
      *'"status":"ready"'*) continue ;;
    esac
    if [ -n "$now" ] && [ "$now" != "$seen" ]; then
      printf '    %s\n' "$now"
      seen="$now"
    fi
    if [ "$(docker inspect --format '{{.RestartCount}}' "$container")" -ge 3 ]; then give_up_on_restarts; fi
    if [ "$SECONDS" -ge "$deadline" ]; then
      fail "the stack is running but not ready; run 'docker/compose.sh exec -T gantry gantry doctor' to find the cause, or docker/down.sh to stop it"
    fi
    sleep 0.5
  done
  url="http://$(address)"
  echo "    ready: $url"
}

# --- the demo -------------------------------------------------------------------------------------------------------

in_container() { docker/compose.sh exec -T "$@" </dev/null; }

# The effective value of the setting $1; empty if it is not set.
effective() { grep -o "\"key\":\"$1\",[^}]*" "$work/config.json" | sed -n 's/.*"value":"\([^"]*\)".*/\1/p'; }

# Describes the configured model; empty for the built-in script.
chosen_model() {
  local provider script
  in_container gantry gantry config --json >"$work/config.json" || fail "cannot read the settings from the container"
  provider="$(effective llm.provider)"
  script="$(effective llm.script)"
  if [ -n "$script" ]; then
    echo "the script $script"
  elif [ "$provider" != scripted ]; then
    echo "$provider, $(effective llm.model)"
  fi
}

# Succeeds if the job completed. The output is saved, because it contains the reason of a failure.
run_demo() {
  say "the first job: an agent writes, tests and fixes a small program in its own container"
  GANTRY_TOKEN="$(in_container gantry gantry token create --user demo --role user --ttl 1d | tail -n 1 | tr -d '\r')"
  export GANTRY_TOKEN
  in_container -e GANTRY_TOKEN gantry gantry job run --title demo "$DEMO_PROMPT" | tee "$work/demo.log"
}

explain_failed_demo() {
  if grep -q '(llm_error)' "$work/demo.log"; then
    say "Gantry is running, but its model did not respond:"
    in_container gantry gantry doctor || true
  else
    say "the demo job did not complete; see 'docker/compose.sh logs gantry'"
  fi
}

next_steps() {
  local gantry="docker/compose.sh exec -T -e GANTRY_TOKEN gantry gantry"
  cat <<TEXT

Gantry is running.

  API      $url/api/docs
  token    GANTRY_TOKEN=\$(docker/compose.sh exec -T gantry gantry token create --user "\$(id -un)" --role user --ttl 30d) && export GANTRY_TOKEN
TEXT
  if [ "$GANTRY_BINARIES" = prebuilt ]; then
    gantry=gantry
    echo "  command  export PATH=\"$root/docker/prebuilt:\$PATH\""
    if [ "$url" != http://127.0.0.1:8080 ]; then echo "  server   export GANTRY_URL=$url"; fi
  fi
  cat <<TEXT
  a job    $gantry job run "run: id; cat /proc/net/dev"
  check    docker/compose.sh exec -T gantry gantry doctor
  log      docker/compose.sh logs -f gantry
  stop     docker/down.sh
TEXT
  if [ -z "$model" ]; then
    cat <<'TEXT'

No model is set, so the built-in demo script is used. To set a model, create a file .env here, for example
  GANTRY_LLM_PROVIDER=anthropic
  GANTRY_LLM_MODEL=<the model's name>
  GANTRY_LLM_API_KEY=<your key>
and run docker/up.sh again.
TEXT
  fi
}

main() {
  local completed=yes
  while [ $# -gt 0 ]; do
    case "$1" in
      --demo) demo=yes ;;
      --no-demo) demo=no ;;
      -h | --help)
        usage
        return
        ;;
      *)
        echo "up: unknown option $1" >&2
        usage >&2
        exit 2
        ;;
    esac
    shift
  done
  docker/engine.sh
  docker/compose.sh version >/dev/null
  warn_about_unused_settings
  check_port
  docker/base-image.sh
  choose_binaries
  say "building the images"
  docker/images.sh build
  start_stack
  apply_config
  docker/images.sh tidy
  wait_until_ready
  model="$(chosen_model)"
  if [ "$demo" = auto ] && [ -n "$model" ]; then
    demo=no
    say "a model is set ($model): skipping the demo (run it with --demo)"
  fi
  if [ "$demo" != no ] && ! run_demo; then
    completed=no
    explain_failed_demo
  fi
  next_steps
  [ "$completed" = yes ]
}

main "$@"
