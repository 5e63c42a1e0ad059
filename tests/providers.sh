#!/usr/bin/env bash
# Runs conversations of every kind with a real model provider, and prints how each ended and what Gantry learned of the provider:
#   tests/providers.sh NAME      openai, anthropic, gemini, openrouter, deepseek, xai, groq, cerebras, mistral, moonshot, zai, ollama …
# The key is GANTRY_LLM_API_KEY, or in the file GANTRY_LLM_API_KEY_FILE; else it is asked for. It is never an argument.
# GANTRY_LLM_MODEL names another model, GANTRY_LLM_BASE_URL another address: any NAME with an address is a server that speaks OpenAI's
# chat completions. Costs a few cents and takes some minutes. Needs the program (GANTRY, default target/debug/gantry), Python 3, and an engine
# with the job image (GANTRY_SANDBOX_IMAGE, default gantry-worker:latest). The output has no word of an answer and not the key. It has the texts
# of the provider's errors, which may quote the prompts of this script.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
name="${1:-}"
gantry="${GANTRY:-$here/target/debug/gantry}"

usage() { sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; }

# NAME  KIND  MODEL  ADDRESS
providers() {
  cat <<'TABLE'
openai      openai     gpt-5.6
anthropic   anthropic  claude-sonnet-5
gemini      openai     gemini-3-flash                 https://generativelanguage.googleapis.com/v1beta/openai
openrouter  openai     anthropic/claude-sonnet-5      https://openrouter.ai/api/v1
deepseek    openai     deepseek-chat                  https://api.deepseek.com/v1
xai         openai     grok-4.5                       https://api.x.ai/v1
groq        openai     openai/gpt-oss-120b            https://api.groq.com/openai/v1
cerebras    openai     gpt-oss-120b                   https://api.cerebras.ai/v1
mistral     openai     mistral-large-latest           https://api.mistral.ai/v1
moonshot    openai     kimi-k3                        https://api.moonshot.ai/v1
zai         openai     glm-5.3                        https://api.z.ai/api/paas/v4
ollama      ollama     qwen3
TABLE
}

if [ "$name" = --help ] || [ "$name" = -h ]; then
  usage 2>&1
  exit 0
fi
row="$(providers | awk -v name="$name" '$1 == name')"
if [ -z "$row" ] && [ -n "$name" ] && [ -n "${GANTRY_LLM_BASE_URL:-}" ] && [ -n "${GANTRY_LLM_MODEL:-}" ]; then row="$name openai $GANTRY_LLM_MODEL"; fi
if [ -z "$row" ]; then
  usage
  echo "providers: no provider is named '$name'; for another one, set GANTRY_LLM_BASE_URL and GANTRY_LLM_MODEL" >&2
  exit 2
fi
[ -x "$gantry" ] || {
  echo "providers: $gantry is missing; build it (cargo build --bin gantry), or name it in GANTRY" >&2
  exit 2
}
image="${GANTRY_SANDBOX_IMAGE:-gantry-worker:latest}"
docker image inspect "$image" >/dev/null 2>&1 || {
  echo "providers: the job image $image is missing; docker/up.sh builds it, or name another one in GANTRY_SANDBOX_IMAGE" >&2
  exit 2
}
if [ -n "${GANTRY_LLM_API_KEY_FILE:-}" ] && [ ! -r "$GANTRY_LLM_API_KEY_FILE" ]; then
  echo "providers: the file $GANTRY_LLM_API_KEY_FILE of GANTRY_LLM_API_KEY_FILE cannot be read" >&2
  exit 2
fi
read -r _ kind model url <<<"$row"
export GANTRY_LLM_PROVIDER="$kind" GANTRY_LLM_MODEL="${GANTRY_LLM_MODEL:-$model}"
if [ -n "${GANTRY_LLM_BASE_URL:-$url}" ]; then export GANTRY_LLM_BASE_URL="${GANTRY_LLM_BASE_URL:-$url}"; fi
if [ "$kind" != ollama ] && [ -z "${GANTRY_LLM_API_KEY:-}${GANTRY_LLM_API_KEY_FILE:-}" ]; then
  [ -t 0 ] || {
    echo "providers: no key: set GANTRY_LLM_API_KEY or GANTRY_LLM_API_KEY_FILE" >&2
    exit 2
  }
  read -rsp "API key of $name: " GANTRY_LLM_API_KEY
  echo
  export GANTRY_LLM_API_KEY
fi
echo "provider: $name, kind $kind, model $GANTRY_LLM_MODEL"
PYTHONDONTWRITEBYTECODE=1 exec python3 "$here/tests/providers/conversations.py" "$gantry"
