#!/usr/bin/env bash
# Prints a setting as Compose would read it: `docker/setting.sh NAME [DEFAULT]`. The environment overrides the file .env
# next to compose.yaml (or the file in GANTRY_ENV_FILE); otherwise the default is printed.
# `docker/setting.sh --names` prints the names that the file sets, `docker/setting.sh --project` the name of the Compose project.
# The file is never executed.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
readonly FILE="${GANTRY_ENV_FILE:-.env}"

names() {
  [ -f "$FILE" ] || return 0
  sed -n 's/^[[:space:]]*\(export[[:space:]]\{1,\}\)\{0,1\}\([A-Za-z_][A-Za-z0-9_]*\)[[:space:]]*=.*$/\2/p' "$FILE" | sort -u
}

# The value of the last line that sets $1, without quotes and trailing comments.
in_file() {
  local value
  [ -f "$FILE" ] || return 0
  value="$(sed -n "s/^[[:space:]]*\(export[[:space:]]\{1,\}\)\{0,1\}$1[[:space:]]*=[[:space:]]*//p" "$FILE" | tail -n 1 | tr -d '\r')"
  case "$value" in
    \"*) value="${value#\"}" value="${value%%\"*}" ;;
    \'*) value="${value#\'}" value="${value%%\'*}" ;;
    *) value="$(printf '%s' "$value" | sed 's/[[:space:]]\{1,\}#.*$//; s/[[:space:]]*$//')" ;;
  esac
  printf '%s' "$value"
}

# As Compose makes it from the directory's name.
project() {
  local name
  name="$(value_of COMPOSE_PROJECT_NAME)"
  if [ -z "$name" ]; then name="$(basename "$root" | tr '[:upper:]' '[:lower:]' | tr -cd 'a-z0-9_-')"; fi
  printf '%s\n' "$name"
}

value_of() {
  local value="${!1:-}"
  if [ -z "$value" ]; then value="$(in_file "$1")"; fi
  printf '%s' "$value"
}

main() {
  local value
  case "${1:-}" in
    --names)
      names
      return
      ;;
    --project)
      project
      return
      ;;
    "" | *[!A-Za-z0-9_]*)
      echo "usage: docker/setting.sh NAME [DEFAULT] | --names | --project" >&2
      exit 2
      ;;
  esac
  value="$(value_of "$1")"
  printf '%s\n' "${value:-${2:-}}"
}

main "$@"
