#!/usr/bin/env bash
# Installs and starts Gantry from a clone: container engine, base image, programs, images, stack, and a demo job.
# Can be run again at any time: existing parts are kept, changed parts are rebuilt and restarted.
# If an engine and Compose are installed, only this project's images, containers and volume are changed. Never stops other
# containers, never deletes the data volume, never replaces a running server if the new settings are invalid, and never calls a
# real model unless requested.
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
# Options of docker/progress.sh.
progress=()
# Set by show_findings.
problems=0
reaches_model=yes
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

say() { printf '\n==> %s\n' "$*"; }
fail() {
  printf '\nup: %s\n' "$*" >&2
  exit 1
}
usage() {
  cat <<'TEXT'
usage: docker/up.sh [--demo | --no-demo] [--verbose]
  Builds and starts Gantry on 127.0.0.1:8080 (GANTRY_PORT) and runs a demo job. The exit code is 0 if the stack runs, also if
  the demo job fails or a check finds a problem: what to do is printed.
  --no-demo   start only
  --demo      run the demo job with your model too; by default it runs only with the built-in script
  -v, --verbose
              show the output of image builds
TEXT
}

# --- settings -------------------------------------------------------------------------------------------------------

# Variables that neither compose.yaml nor the scripts read have no effect.
warn_about_unused_settings() {
  local name
  for name in $(docker/setting.sh --names | grep '^GANTRY_' || true); do
    if ! is_used "$name"; then warn_about "$name in ${GANTRY_ENV_FILE:-.env}"; fi
  done
  for name in $(compgen -e GANTRY_ || true); do
    case "$name" in
      # Of the command line, and of the tests.
      GANTRY_URL | GANTRY_TOKEN | GANTRY_TOKEN_FILE | GANTRY_CONTEXT | GANTRY_CACHE | GANTRY_TEST_*) continue ;;
    esac
    if ! is_used "$name"; then warn_about "$name in the environment"; fi
  done
}

is_used() {
  case "$1" in GANTRY_BUILD_PROFILE | GANTRY_READY_SECONDS | GANTRY_ENV_FILE) return ;; esac
  grep -qE "(^ *- |\\\$\{)$1(\$|:-)" compose.yaml
}

warn_about() { echo "up: warning: $1 has no effect: compose.yaml does not pass it on" >&2; }

fail_busy_port() { fail "port $1 on 127.0.0.1 is taken by another program; set GANTRY_PORT to a free port, in the environment or in .env, and run this again"; }

# Checks what needs no program, before anything is compiled. `check_settings` checks everything, with the built program.
check_plain_settings() {
  local provider name value
  provider="$(docker/setting.sh GANTRY_LLM_PROVIDER)"
  case "$provider" in
    "" | scripted | openai | anthropic | ollama) ;;
    *) fail "GANTRY_LLM_PROVIDER=$provider: must be openai, anthropic, ollama or scripted; fix it in the environment or in .env and run this again" ;;
  esac
  for name in GANTRY_PORT GANTRY_READY_SECONDS; do
    value="$(docker/setting.sh "$name")"
    case "$value" in *[!0-9]*) fail "$name=$value: must be a number; fix it in the environment or in .env and run this again" ;; esac
  done
  value="$(docker/setting.sh GANTRY_BINARIES)"
  case "$value" in "" | prebuilt | builder) ;; *) fail "GANTRY_BINARIES=$value: must be prebuilt or builder" ;; esac
}

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
        docker/progress.sh ${progress[@]+"${progress[@]}"} docker pull "$GANTRY_BUILDER_BASE" ||
          fail "cannot pull $GANTRY_BUILDER_BASE; $(other_way)"
      fi
      announce_compiling "in a build stage on $GANTRY_BUILDER_BASE" "5 GB" ""
      ;;
  esac
  export GANTRY_BINARIES GANTRY_BUILDER_BASE
}

# --- the stack ------------------------------------------------------------------------------------------------------

# The container of the server, running or not; empty if there is none.
server() { docker/compose.sh ps -a -q gantry 2>/dev/null || true; }

# Checks the settings with the new image in a container that is removed, before the server is replaced.
check_settings() {
  local consequence="nothing was started"
  say "checking the settings"
  container="$(server)"
  if [ -n "$(address)" ]; then consequence="the running server was not changed"; fi
  if docker/compose.sh run --rm --no-deps -T gantry gantry config --json >"$work/config.json" 2>"$work/check.log" </dev/null; then return; fi
  # Compose has created a network for the container.
  if [ -z "$container" ]; then docker/compose.sh down >/dev/null 2>&1 || true; fi
  fail "invalid settings: $(reason_of_the_check)
    $consequence; fix the setting (in the environment, .env or config/) and run this again"
}

# The program's error, which is in JSON, or else the end of what Compose says.
reason_of_the_check() {
  local message
  message="$(sed -n 's/^{"code":.*,"detail":"\(.*\)","exit_code":[0-9]*}\r\{0,1\}$/\1/p' "$work/check.log" | sed 's/\\"/"/g; s/\\\\/\\/g' | tail -n 1)"
  if [ -z "$message" ]; then message="$(tail -n 5 "$work/check.log")"; fi
  printf '%s' "${message:-no output}"
}

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
  container="$(server)"
  [ -n "$container" ] || fail "compose started no container for the service gantry"
}

# Configuration files are read at startup: restarts the server if they have changed since.
apply_config() {
  local directory started
  directory="$(docker/setting.sh GANTRY_CONFIG_DIR ./config)"
  [ -d "$directory" ] || return 0
  started="$(docker inspect --format '{{.State.StartedAt}}' "$container")"
  [ -n "$(find "$directory" -maxdepth 1 ! -name README.md -newermt "$started" -print -quit)" ] || return 0
  say "the configuration has changed: restarting the server"
  docker/compose.sh restart gantry >/dev/null 2>&1
}

# The response of the readiness check on one line; empty while the server does not respond.
readiness() {
  docker exec "$container" curl -sS --max-time 5 http://127.0.0.1:8080/readyz 2>/dev/null | tr -d '\n' | cut -c 1-300 || true
}

# The process keeps exiting. Its last log line names the reason, such as a setting that `gantry config` does not check.
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

# The effective value of the setting $1; empty if it is not set.
effective() { grep -o "\"key\":\"$1\",[^}]*" "$work/config.json" | sed -n 's/.*"value":"\([^"]*\)".*/\1/p'; }

# Describes the configured model; empty for the built-in script.
chosen_model() {
  local provider script
  provider="$(effective llm.provider)"
  script="$(effective llm.script)"
  if [ -n "$script" ]; then
    echo "the script $script"
  elif [ "$provider" != scripted ]; then
    echo "$provider, $(effective llm.model)"
  fi
}

# Succeeds if the job completed.
run_demo() {
  say "the first job: an agent writes, tests and fixes a small program in its own container"
  docker/gantry job run --title demo "$DEMO_PROMPT"
}

# What `gantry doctor` has found: failures and notes with their advice. Sets `problems`, and `reaches_model`.
show_findings() {
  local findings failed=no
  say "checking the installation (docker/gantry doctor)"
  docker exec "$container" gantry doctor >"$work/doctor.log" 2>&1 </dev/null || failed=yes
  problems="$(grep -c '^failed ' "$work/doctor.log" || true)"
  if grep -q '^failed model ' "$work/doctor.log"; then reaches_model=no; fi
  # The note about the built-in script is repeated by the last lines of this script.
  findings="$(awk -v model="$model" '
    /^(ok|-|note|failed) / { shown = /^(note|failed) / && !(model == "" && $1 == "note" && $2 == "model") }
    shown { print "    " $0 }
  ' "$work/doctor.log")"
  if [ -n "$findings" ]; then
    printf '%s\n' "$findings"
  elif [ "$failed" = yes ]; then
    sed 's/^/    /' "$work/doctor.log"
  else
    echo "    all checks passed"
  fi
}

next_steps() {
  printf '\nGantry is running'
  if [ "${problems:-0}" -gt 0 ]; then
    printf ', with problems: do what the arrows of the checks marked "failed" above say, then run docker/up.sh again'
  fi
  printf '. Commands to try, from this directory:\n\n'
  if [ -z "$model" ]; then
    cat <<'TEXT'
  docker/gantry job run "count slowly"            a job that takes more than a minute; Ctrl-C only stops watching
  docker/gantry job list                          in another terminal, for the ID of the job
  docker/gantry job prompt ID "count by ten"      the agent reads it before its next step; or: "stop"
  docker/gantry job put ID note.txt               upload a file of yours; the agent finds it
  docker/gantry job get ID count.txt              download one
  docker/gantry job cancel ID
TEXT
  else
    cat <<'TEXT'
  docker/gantry job run "Write a CSV parser in Python with tests"
  docker/gantry job list
  docker/gantry job prompt ID "Also handle quoted fields"      while it runs
  docker/gantry job files ID                                   the workspace; also: get, put, cancel
TEXT
  fi
  cat <<TEXT
  docker/gantry help

  API      $url/api/docs
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
  show_dashboard
}

# Prints a link that logs a browser in, unless the dashboard is switched off.
show_dashboard() {
  local link
  link="$(docker/gantry dashboard 2>/dev/null </dev/null)" || return 0
  cat <<TEXT

Watch the jobs in a browser. This link works once, within 10 minutes; docker/gantry dashboard prints another:

  $link
TEXT
}

main() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --demo) demo=yes ;;
      --no-demo) demo=no ;;
      -v | --verbose) progress=(--verbose) ;;
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
  check_plain_settings
  docker/engine.sh
  docker/compose.sh version >/dev/null
  warn_about_unused_settings
  check_port
  docker/base-image.sh
  choose_binaries
  say "building the images"
  docker/images.sh build ${progress[@]+"${progress[@]}"}
  check_settings
  start_stack
  apply_config
  docker/images.sh tidy
  wait_until_ready
  model="$(chosen_model)"
  if [ "$demo" = auto ] && [ -n "$model" ]; then
    demo=no
    say "a model is set ($model): skipping the demo (run it with --demo)"
  fi
  # Before the demo, which waits five minutes for a model that cannot be reached.
  show_findings
  if [ "$demo" != no ] && [ "$reaches_model" = no ]; then
    demo=no
    say "the model cannot be reached: skipping the demo"
  fi
  if [ "$demo" != no ] && ! run_demo; then
    say "the demo job did not complete, but the stack runs; see the job's last lines above, and 'docker/compose.sh logs gantry'"
  fi
  next_steps
}

main "$@"
