"""Checks requests that Gantry sent with programs of other authors: the types of official SDKs, the rules of mistral-common, and the chat
templates of models as transformers, vLLM and llama.cpp render them.

    GANTRY_TEST_RECORD=DIR cargo nextest run --workspace -E 'binary(providers)'
    python tests/providers/validate.py DIR TEMPLATES

DIR has a file for each family of `tests/tests/providers`, with one request in each line: those that the family's strict double took.
TEMPLATES is a directory of chat templates (`models/templates` of llama.cpp). Exits 1 if a check finds something.
"""

import json
import sys
import typing
from collections import Counter
from pathlib import Path

import typing_extensions
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import SandboxedEnvironment
from pydantic import ConfigDict, TypeAdapter, ValidationError

from anthropic.types.message_create_params import MessageCreateParamsStreaming as AnthropicParams
from cerebras.cloud.sdk.types.chat.completion_create_params import CompletionCreateParams as CerebrasParams
from groq.types.chat.completion_create_params import CompletionCreateParams as GroqParams
from ollama._types import ChatRequest as OllamaRequest, Message as OllamaMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import (
    MistralRequestValidatorV3,
    MistralRequestValidatorV5,
    MistralRequestValidatorV13,
    ValidationMode,
)
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as OpenAiParams
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming as ResponsesParams
from together.types.chat.completion_create_params import CompletionCreateParamsStreaming as TogetherParams

# Fields that services take although the types of their SDKs do not have them: Groq, Cerebras, Together.
UNKNOWN_FIELDS = {"stream_options"}
# What types ask for that their service does not: Together's calls have the `index` of a stream.
UNNEEDED = {"0.index: Field required", "1.index: Field required"}

# What a template refuses in words from which Gantry learns; the strict doubles prove that.
LEARNED = (
    "Tool call IDs should be alphanumeric strings with length 9",
    "This model only supports single tool-calls at once",
    "System role not supported",
)

# Templates that render no OpenAI conversation with tools as they are: their servers change it first.
UNUSABLE = {
    "CohereForAI-c4ai-command-r-plus-tool_use.jinja": "each parameter needs `additionalProperties` and `description`",
    "fireworks-ai-llama-3-firefunction-v2.jinja": "wants the tools as a text in `functions`",
    "llama-cpp-deepseek-r1.jinja": "filters tools in a way that only llama.cpp's engine has",
    "meetkai-functionary-medium-v3.2.jinja": "wants arguments as text",
}


def strict(kind, seen):
    """Forbids unknown fields in every TypedDict that a type reaches."""
    if typing_extensions.is_typeddict(kind):
        if id(kind) in seen:
            return
        seen.add(id(kind))
        kind.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
        for field in typing.get_type_hints(kind, include_extras=True).values():
            strict(field, seen)
    for argument in typing.get_args(kind):
        strict(argument, seen)


def consume(value):
    """Reads lists that are validated lazily to their end."""
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list) or hasattr(value, "__next__"):
        inner = value
    else:
        return
    for one in inner:
        consume(one)


def problems(error):
    found = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return [problem for problem in found if problem not in UNNEEDED][:5]


def types(params):
    strict(params, set())
    adapter = TypeAdapter(params)

    def check(request):
        request = {key: value for key, value in request.items() if key not in UNKNOWN_FIELDS}
        try:
            consume(adapter.validate_python(request))
        except ValidationError as error:
            return problems(error)
        return []

    return check


def ollama(request):
    try:
        OllamaRequest.model_validate(request)
        for message in request["messages"]:
            OllamaMessage.model_validate(message)
    except ValidationError as error:
        return problems(error)
    return []


def mistral(validator):
    validator = validator(ValidationMode.serving)

    def check(request):
        try:
            found = ChatCompletionRequest.from_openai(messages=request["messages"], tools=request.get("tools"), model="m")
            validator.validate_request(found)
        except Exception as error:  # the library has no common class of errors
            return [f"{type(error).__name__}: {error}"]
        return []

    return check


def raise_exception(text):
    raise ValueError(text)


class Generation(Extension):
    """The tag that marks what a model writes, which changes nothing of the text."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def template(path):
    environment = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": lambda form: "2026-11-23"}
    compiled = environment.from_string(path.read_text())

    def check(request):
        if "tool_use" in path.name and not request.get("tools"):
            return []  # this variant of a model's template is for requests with tools
        messages = json.loads(json.dumps(request["messages"]))
        for message in messages:
            for call in message.get("tool_calls") or []:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        try:
            compiled.render(messages=messages, tools=request.get("tools"), add_generation_prompt=True, bos_token="", eos_token="")
        except Exception as error:  # whatever a template raises
            if any(words in str(error) for words in LEARNED):
                return []
            return [f"{type(error).__name__}: {str(error)[:200]}"]
        return []

    return check


def checks(templates):
    """The checks of each family: a name and a function that returns what it finds in a request."""

    def of(*patterns):
        paths = sorted({path for pattern in patterns for path in templates.glob(pattern)})
        if not paths:
            sys.exit(f"no template is like {patterns}")
        return {path.name: template(path) for path in paths if path.name not in UNUSABLE}

    openai = types(OpenAiParams)
    return {
        "openai, chat": {"openai's types": openai},
        "openai, a model that reasons": {"openai's types": types(ResponsesParams)},
        "azure": {"openai's types": types(ResponsesParams)},
        "azure, chat alone": {"openai's types": openai},
        "copilot": {"openai's types": openai},
        "litellm": {"openai's types": openai},
        "anthropic": {"anthropic's types": types(AnthropicParams)},
        "groq": {"groq's types": types(GroqParams)},
        "cerebras": {"cerebras' types": types(CerebrasParams)},
        "mistral": {
            "mistral-common v3": mistral(MistralRequestValidatorV3),
            "mistral-common v5": mistral(MistralRequestValidatorV5),
            "mistral-common v13": mistral(MistralRequestValidatorV13),
        },
        "deepseek": of("deepseek-ai-DeepSeek-V*"),
        "moonshot": of("*Kimi*"),
        "gemma's template": of("google-gemma-4*"),
        "llama's template": of("meta-llama*"),
        "minimax": of("MiniMax*"),
        "a server that knows few fields": {"openai's types": openai, "together's types": types(TogetherParams)},
        "ollama": {"ollama's types": ollama},
        "a local server": {"openai's types": openai, **of("*.jinja")},
    }


def main():
    directory, templates = (Path(one) for one in sys.argv[1:]) if len(sys.argv) == 3 else sys.exit(__doc__)
    failed = False
    for family, found in checks(templates).items():
        path = directory / f"{family}.jsonl"
        requests = [json.loads(line) for line in path.read_text().splitlines()]
        for name, check in found.items():
            counts = Counter(problem for request in requests for problem in check(request))
            print(f"{family:32} {name:50} {len(requests):3} requests {'' if counts else 'ok'}", flush=True)
            for problem, count in counts.most_common(5):
                print(f"    {count} x {problem}")
            failed |= bool(counts)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
