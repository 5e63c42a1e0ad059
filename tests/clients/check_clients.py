"""Checks that the official `openai`, `anthropic` and `ollama` clients for Python work against `gantry llm serve`.

    gantry llm serve --script tests/clients/clients.yaml
    python tests/clients/check_clients.py BASE_URL      (where it listens, as in http://127.0.0.1:PORT)

Exits 1 when anything differs from what the script says, 0 when all is as it should be.
"""

import json
import sys
import traceback

import anthropic
import ollama
import openai

BASE = sys.argv[1].rstrip("/") if len(sys.argv) == 2 else sys.exit(__doc__)
ASKED = "What is the weather in Oslo and Bergen?"
OPENAI_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ANTHROPIC_TOOL = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALLS = [
    ("call_oslo", {"city": "Oslo", "days": 2}),
    ("call_bergen", {"city": "Bergen", "note": f"said {ASKED}"}),
]

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def same(what, found, expected):
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r}, found {found!r}")


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, nothing was raised")


def oai(**options):
    return openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0, timeout=20, **options)


def ant(**options):
    return anthropic.Anthropic(base_url=BASE, api_key="none", **{"max_retries": 0, "timeout": 20, **options})


def said(text):
    return [{"role": "user", "content": text}]


# --- openai -----------------------------------------------------------------------------------------------------------


@check
def openai_text():
    answer = oai().chat.completions.create(model="m-1", messages=said("hello"))
    same("text", answer.choices[0].message.content, "You said: hello")
    same("finish_reason", answer.choices[0].finish_reason, "stop")
    same("model", answer.model, "m-1")
    same("usage", (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens), (11, 7, 18))


@check
def openai_system_and_length():
    messages = [{"role": "system", "content": "be a pirate"}, *said("ahoy")]
    same("text", oai().chat.completions.create(model="m", messages=messages).choices[0].message.content, "Arr, ahoy")
    answer = oai().chat.completions.create(model="m", messages=said("too long"))
    same("finish_reason", answer.choices[0].finish_reason, "length")


@check
def openai_text_streamed():
    options = {"include_usage": True}
    stream = oai().chat.completions.create(model="m", messages=said("hello"), stream=True, stream_options=options)
    chunks = list(stream)
    same("text", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), "You said: hello")
    same("finish", [c.choices[0].finish_reason for c in chunks if c.choices][-1], "stop")
    same("usage", chunks[-1].usage.total_tokens, 18)
    same("usage elsewhere", [c.usage for c in chunks[:-1] if c.usage], [])
    without = list(oai().chat.completions.create(model="m", messages=said("hello"), stream=True))
    same("usage not asked for", [c.usage for c in without if c.usage], [])


@check
def openai_tools_round_trip():
    answer = oai().chat.completions.create(model="m", messages=said(ASKED), tools=[OPENAI_TOOL])
    message = answer.choices[0].message
    same("finish_reason", answer.choices[0].finish_reason, "tool_calls")
    same("text", message.content, "I ask for both.")
    same("calls", [(c.id, json.loads(c.function.arguments)) for c in message.tool_calls], CALLS)
    same("cached", answer.usage.prompt_tokens_details.cached_tokens, 30)
    results = [
        {"role": "tool", "tool_call_id": "call_oslo", "content": "sun"},
        {"role": "tool", "tool_call_id": "call_bergen", "content": "rain, as ever"},
    ]
    messages = [*said(ASKED), message.model_dump(exclude_none=True), *results]
    answer = oai().chat.completions.create(model="m", messages=messages, tools=[OPENAI_TOOL])
    same("text", answer.choices[0].message.content, "Bergen: rain, as ever.")
    refused = oai().chat.completions.create(model="m", messages=said(ASKED), tools=[OPENAI_TOOL], tool_choice="none")
    same("tool_choice none", refused.choices[0].message.content, "No tools here.")


@check
def openai_tools_streamed():
    with oai().chat.completions.stream(model="m", messages=said(ASKED), tools=[OPENAI_TOOL]) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion().choices[0]
    same("text", "".join(deltas), "I ask for both.")
    same("several deltas", len(deltas) > 1, True)
    same("calls", [(c.id, json.loads(c.function.arguments)) for c in final.message.tool_calls], CALLS)
    same("finish_reason", final.finish_reason, "tool_calls")


@check
def openai_errors():
    def ask(text, **more):
        return lambda: oai().chat.completions.create(model="m", messages=said(text), **more)

    error = raises(openai.RateLimitError, ask("too busy"))
    same("retry-after", error.response.headers["retry-after"], "7")
    same("code", error.code, "rate_limit_exceeded")
    raises(openai.RateLimitError, ask("too busy", stream=True))
    same("message", raises(openai.AuthenticationError, ask("wrong key")).body["message"], "that key is not known")
    raises(openai.BadRequestError, ask("bad request"))
    raises(openai.InternalServerError, ask("broken"))
    raises(openai.BadRequestError, lambda: oai().chat.completions.create(model="m", messages=[]))
    raises(openai.APITimeoutError, lambda: oai().with_options(timeout=0.3).chat.completions.create(model="m", messages=said("never")))


@check
def openai_retries_by_itself():
    client = oai().with_options(max_retries=2)
    answer = client.chat.completions.create(model="m", messages=said("busy once"))
    same("text", answer.choices[0].message.content, "Free again.")


@check
def openai_cut_and_garbage():
    seen = []

    def consume():
        for chunk in oai().chat.completions.create(model="m", messages=said("half"), stream=True):
            seen.append(chunk.choices[0].delta.content or "")

    raises(Exception, consume)
    same("what came before the cut", "".join(seen), "This answer ")
    raises(Exception, lambda: oai().chat.completions.create(model="m", messages=said("half")))
    raises(Exception, lambda: list(oai().chat.completions.create(model="m", messages=said("nonsense"), stream=True)))


@check
def openai_models():
    same("models", [model.id for model in oai().models.list()], ["check-1"])


# --- openai, responses ---------------------------------------------------------------------------------------------------


RESPONSES_TOOL = {"type": "function", "strict": False, **OPENAI_TOOL["function"]}


def function_calls(response):
    return [(i.call_id, json.loads(i.arguments)) for i in response.output if i.type == "function_call"]


@check
def responses_text():
    answer = oai().responses.create(model="m-1", instructions="be a pirate", input="ahoy", store=False)
    same("text", answer.output_text, "Arr, ahoy")
    same("status", (answer.status, answer.model), ("completed", "m-1"))
    answer = oai().responses.create(model="m", input="hello")
    same("usage", (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens), (11, 7, 18))
    cut = oai().responses.create(model="m", input="too long")
    same("cut off", (cut.status, cut.incomplete_details.reason), ("incomplete", "max_output_tokens"))


@check
def responses_tools_round_trip():
    whole = oai().responses.create(model="m", input=said(ASKED), tools=[RESPONSES_TOOL])
    with oai().responses.stream(model="m", input=said(ASKED), tools=[RESPONSES_TOOL]) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    for answer in (whole, streamed):
        same("text", answer.output_text, "I ask for both.")
        same("calls", function_calls(answer), CALLS)
        same("reasoning", [i.summary[0].text for i in answer.output if i.type == "reasoning"], ["Two places, two calls."])
        same("cached", answer.usage.input_tokens_details.cached_tokens, 30)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    same("several deltas", (len(deltas) > 1, "".join(deltas)), (True, "I ask for both."))
    same("numbers", [event.sequence_number for event in events], list(range(len(events))))
    results = [
        {"type": "function_call_output", "call_id": "call_oslo", "output": "sun"},
        {"type": "function_call_output", "call_id": "call_bergen", "output": "rain, as ever"},
    ]
    kept = [item.model_dump(exclude_none=True) for item in whole.output]
    answer = oai().responses.create(model="m", input=[*said(ASKED), *kept, *results], tools=[RESPONSES_TOOL])
    same("text", answer.output_text, "Bergen: rain, as ever.")


@check
def responses_errors():
    def ask(text, **more):
        return lambda: oai().responses.create(model="m", input=text, **more)

    raises(openai.RateLimitError, ask("too busy"))
    raises(openai.AuthenticationError, ask("wrong key"))
    raises(openai.BadRequestError, ask("hello", previous_response_id="resp_1"))
    raises(Exception, lambda: list(ask("half", stream=True)()))


# --- anthropic --------------------------------------------------------------------------------------------------------


def blocks(message):
    return [(b.id, b.input) for b in message.content if b.type == "tool_use"]


@check
def anthropic_text():
    answer = ant().messages.create(model="m-1", max_tokens=100, messages=said("hello"))
    same("text", answer.content[0].text, "You said: hello")
    same("stop_reason", answer.stop_reason, "end_turn")
    same("model", answer.model, "m-1")
    same("usage", (answer.usage.input_tokens, answer.usage.output_tokens), (11, 7))
    answer = ant().messages.create(model="m", max_tokens=100, system="be a pirate", messages=said("ahoy"))
    same("text", answer.content[0].text, "Arr, ahoy")
    same("stop", ant().messages.create(model="m", max_tokens=9, messages=said("too long")).stop_reason, "max_tokens")


@check
def anthropic_text_streamed():
    with ant().messages.stream(model="m", max_tokens=100, messages=said("hello")) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    same("text", text, "You said: hello")
    same("usage", (final.usage.input_tokens, final.usage.output_tokens), (11, 7))
    same("stop_reason", final.stop_reason, "end_turn")
    events = list(ant().messages.create(model="m", max_tokens=100, messages=said("hello"), stream=True))
    kinds = [event.type for event in events]
    same("first", kinds[0], "message_start")
    same("last", kinds[-2:], ["message_delta", "message_stop"])


def check_calls(message):
    same("stop_reason", message.stop_reason, "tool_use")
    same("thinking", [(b.thinking, b.signature) for b in message.content if b.type == "thinking"], [("Two places, two calls.", "c2lnbmVk")])
    same("text", [b.text for b in message.content if b.type == "text"], ["I ask for both."])
    same("calls", blocks(message), CALLS)
    usage = message.usage
    found = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens, usage.output_tokens)
    same("usage", found, (60, 30, 10, 20))


@check
def anthropic_tools_round_trip():
    message = ant().messages.create(model="m", max_tokens=100, messages=said(ASKED), tools=[ANTHROPIC_TOOL])
    check_calls(message)
    results = [
        {"type": "tool_result", "tool_use_id": "call_oslo", "content": "sun"},
        {"type": "tool_result", "tool_use_id": "call_bergen", "content": [{"type": "text", "text": "rain, as ever"}]},
    ]
    messages = [*said(ASKED), {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    answer = ant().messages.create(model="m", max_tokens=100, messages=messages, tools=[ANTHROPIC_TOOL])
    same("text", answer.content[0].text, "Bergen: rain, as ever.")
    none = {"type": "none"}
    answer = ant().messages.create(
        model="m", max_tokens=100, messages=said(ASKED), tools=[ANTHROPIC_TOOL], tool_choice=none
    )
    same("tool_choice none", answer.content[0].text, "No tools here.")


@check
def anthropic_tools_streamed():
    with ant().messages.stream(model="m", max_tokens=100, messages=said(ASKED), tools=[ANTHROPIC_TOOL]) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    same("several parts", len(parts) > 4, True)
    check_calls(message)


@check
def anthropic_errors():
    def ask(text, **more):
        return lambda: ant().messages.create(model="m", max_tokens=10, messages=said(text), **more)

    error = raises(anthropic.RateLimitError, ask("too busy"))
    same("retry-after", error.response.headers["retry-after"], "7")
    same("type", error.body["error"]["type"], "rate_limit_error")
    raises(anthropic.RateLimitError, ask("too busy", stream=True))
    raises(anthropic.AuthenticationError, ask("wrong key"))
    raises(anthropic.BadRequestError, ask("bad request"))
    error = raises(anthropic.APIStatusError, ask("overloaded"))
    same("overloaded", (error.status_code, error.body["error"]["type"]), (529, "overloaded_error"))
    raises(anthropic.InternalServerError, ask("broken"))
    raises(anthropic.APITimeoutError, lambda: ant(timeout=0.3).messages.create(model="m", max_tokens=10, messages=said("never")))


@check
def anthropic_cut_and_garbage():
    seen = []

    def consume():
        with ant().messages.stream(model="m", max_tokens=10, messages=said("half")) as stream:
            for text in stream.text_stream:
                seen.append(text)

    raises(Exception, consume)
    same("what came before the cut", "".join(seen), "This answer ")
    raises(Exception, lambda: list(ant().messages.create(model="m", max_tokens=10, messages=said("nonsense"), stream=True)))


@check
def anthropic_count_and_models():
    counted = ant().messages.count_tokens(model="m", messages=said("hello"))
    same("counted", counted.input_tokens > 0, True)
    same("models", [model.id for model in ant().models.list()], ["check-1"])


# --- ollama -----------------------------------------------------------------------------------------------------------


def oll():
    return ollama.Client(host=BASE, timeout=20)


def called(message):
    return [dict(call.function.arguments) for call in message.tool_calls]


@check
def ollama_text():
    answer = oll().chat(model="m-1", messages=said("hello"), options={"num_ctx": 4096})
    same("text", answer.message.content, "You said: hello")
    same("end", (answer.done, answer.done_reason, answer.model), (True, "stop", "m-1"))
    same("usage", (answer.prompt_eval_count, answer.eval_count), (11, 7))
    parts = list(oll().chat(model="m", messages=said("hello"), stream=True))
    same("streamed", "".join(part.message.content or "" for part in parts), "You said: hello")
    same("the last part", (parts[-1].done, parts[-1].eval_count), (True, 7))
    same("models", [model.model for model in oll().list().models], ["check-1"])


@check
def ollama_tools_round_trip():
    whole = oll().chat(model="m", messages=said(ASKED), tools=[OPENAI_TOOL])
    same("calls", called(whole.message), [arguments for _, arguments in CALLS])
    same("thinking", whole.message.thinking, "Two places, two calls.")
    parts = list(oll().chat(model="m", messages=said(ASKED), tools=[OPENAI_TOOL], stream=True))
    found = [arguments for part in parts if part.message.tool_calls for arguments in called(part.message)]
    same("streamed calls", found, [arguments for _, arguments in CALLS])
    results = [
        {"role": "tool", "tool_name": "weather", "content": "sun"},
        {"role": "tool", "tool_name": "weather", "content": "rain, as ever"},
    ]
    answer = oll().chat(model="m", messages=[*said(ASKED), whole.message, *results], tools=[OPENAI_TOOL])
    same("text", answer.message.content, "Bergen: rain, as ever.")


@check
def ollama_errors():
    for text, status in [("too busy", 429), ("wrong key", 401), ("broken", 500)]:
        error = raises(ollama.ResponseError, lambda: oll().chat(model="m", messages=said(text)))
        same("status", error.status_code, status)


failed = 0
for function in CHECKS:
    try:
        function()
        print(f"ok    {function.__name__}")
    except Exception:  # every check is tried, whatever the one before did
        failed += 1
        print(f"FAILED {function.__name__}")
        traceback.print_exc()
print(f"{len(CHECKS) - failed} of {len(CHECKS)} checks passed")
sys.exit(1 if failed else 0)
