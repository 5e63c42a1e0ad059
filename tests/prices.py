#!/usr/bin/env python3
"""Writes orchestrator/llm/prices.toml from the two Python packages that it names, or compares it with them.

    tests/prices.py           write the file
    tests/prices.py --check   fail if the file is not what the packages say

A model has a price if both packages know it and have the same prices of input, output, cache reads and cache writes. Models
whose price depends on the length of the prompt, the time of day or a date to come have none, because a cost limit could not
be kept. Needs pip and a package registry; installs nothing, and runs no code of the packages. For newer prices, change
SOURCES and AS_OF, write the file and look at the difference.
"""

import argparse
import ast
import difflib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile
from decimal import Decimal

SOURCES = {"genai-prices": "0.2.3", "litellm": "1.110.2"}
# Prices that begin at a date are those in force on this day, on which the newer of the two packages was looked at.
AS_OF = "2026-11-27"

FILE = pathlib.Path(__file__).resolve().parent.parent / "orchestrator/llm/prices.toml"
# The names of the providers in Gantry, genai-prices and litellm. Names of models with a slash are not read: several
# providers use them, at different prices.
PROVIDERS = [
    ("openai", "openai", "openai"),
    ("anthropic", "anthropic", "anthropic"),
    ("google", "google", "gemini"),
    ("deepseek", "deepseek", "deepseek"),
    ("mistral", "mistral", "mistral"),
    ("xai", "x-ai", "xai"),
    ("groq", "groq", "groq"),
    ("moonshot", "moonshotai", "moonshot"),
]
GENAI_RATES = ["input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok"]
LITELLM_RATES = [
    "input_cost_per_token",
    "output_cost_per_token",
    "cache_read_input_token_cost",
    "cache_creation_input_token_cost",
]
# Prices of a model that are not four numbers.
VARIABLE = "variable"

HEADER = """\
# Prices of well-known models, in US dollars per million tokens: compiled into the program, and used where the operator's
# `llm.prices` names no price for the model. Written by tests/prices.py; do not edit.
#
# They are a convenience, not a statement of the providers: prices change, and contracts differ. Compare them with the
# provider's page before you rely on a cost limit. docs/operations.md ("Prices") describes how to set one without a new build.
#
# A model is listed if both `sources`, packages of the Python registry, know it and have the same prices. A price applies to the
# model, to its dated releases ("gpt-4o-2024-11-20") and to "-latest"; the longest name that matches counts. Models whose price
# depends on the length of the prompt or on the time are left out, because a cost limit could not be kept: they have no price
# until `llm.prices` names one.
#
# cache_read: prompt tokens read from the provider's cache. cache_write: prompt tokens written to it (Anthropic: for 5 minutes).
# Where a provider has no price of them, they cost what input costs.
"""


def download(directory):
    """The files of the packages that have prices: genai-prices' Python source and litellm's JSON."""
    wanted = [f"{name}=={version}" for name, version in SOURCES.items()]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--only-binary=:all:", "--dest", directory, *wanted], check=True)

    def member(wheel, path):
        (file,) = pathlib.Path(directory).glob(wheel)
        with zipfile.ZipFile(file) as archive:
            return archive.read(path).decode()

    return (
        member("genai_prices-*.whl", "genai_prices/data.py"),
        member("litellm-*.whl", "litellm/model_prices_and_context_window_backup.json"),
    )


def plain(node):
    """The value of an expression of literals and constructors; a constructor is a dict with its name as `kind`."""
    match node:
        case ast.Constant():
            return node.value
        case ast.List() | ast.Tuple():
            return [plain(item) for item in node.elts]
        case ast.Dict():
            return {plain(key): plain(value) for key, value in zip(node.keys, node.values)}
        case ast.Call(func=ast.Name(id="Decimal")):
            return Decimal(plain(node.args[0]))
        case ast.Call(func=ast.Attribute(attr="date")):
            return "{:04}-{:02}-{:02}".format(*map(plain, node.args))
        case ast.Call(func=ast.Name(id=kind)):
            return {"kind": kind, **{argument.arg: plain(argument.value) for argument in node.keywords}}
    return None


def genai_models(source):
    """The models of each provider of genai-prices."""
    assigned = (node for node in ast.parse(source).body if isinstance(node, ast.AnnAssign))
    providers = next(plain(node.value) for node in assigned if node.target.id == "providers")
    return {provider["id"]: provider["models"] for provider in providers}


def is_match(clause, name):
    """Whether a clause of genai-prices matches the name of a model."""
    match clause["kind"]:
        case "ClauseEquals":
            return name == clause["equals"].lower()
        case "ClauseStartsWith":
            return name.startswith(clause["starts_with"].lower())
        case "ClauseEndsWith":
            return name.endswith(clause["ends_with"].lower())
        case "ClauseContains":
            return clause["contains"].lower() in name
        case "ClauseRegex":
            return re.search(clause["regex"], name) is not None
        case "ClauseOr":
            return any(is_match(part, name) for part in clause["or_"])
        case "ClauseAnd":
            return all(is_match(part, name) for part in clause["and_"])
    raise ValueError(f"unknown clause {clause['kind']}")


def genai_rates(models, name):
    """The rates of a model in genai-prices, VARIABLE, or None if it is not known."""
    prices = next((model.get("prices") for model in models if is_match(model["match"], name.lower())), None)
    if isinstance(prices, list):
        in_force = prices[0]["prices"] if prices else None
        for price in prices:
            constraint = price.get("constraint")
            if constraint and (constraint["kind"] != "StartDateConstraint" or constraint["start_date"] > AS_OF):
                return VARIABLE
            in_force = price["prices"]
        prices = in_force
    if not prices:
        return None
    rates = [prices.get(name) for name in GENAI_RATES]
    return VARIABLE if any(isinstance(rate, dict) for rate in rates) else complete(rates)


def litellm_rates(entry):
    """The rates of an entry of litellm, VARIABLE, or None if it has none."""
    is_tiered = any("_above_" in name and "_tokens" in name for name in entry)
    if is_tiered or entry.keys() & {"tiered_pricing", "off_peak_pricing"}:
        return VARIABLE
    # The number as it is written: a product of floats would not be exact.
    per_token = [entry.get(name) for name in LITELLM_RATES]
    return complete([None if rate is None else Decimal(repr(rate)) * 1_000_000 for rate in per_token])


def complete(rates):
    """The four rates. Tokens of the cache without a price cost what input costs; None if input or output has none."""
    value, output, cache_read, cache_write = rates
    if not value or not output:
        return None
    return value, output, cache_read or value, cache_write or value


def is_release_of(name, model):
    """As the function of this name in orchestrator/llm/src/price.rs."""
    rest = name.removeprefix(model)
    return name.startswith(model) and (rest in ("", "-latest") or re.match(r"@|-20\d", rest) is not None)


def agreed(genai, litellm):
    """The models on which both agree, without releases that cost what their model costs."""
    rates, disputed = {}, set()
    for name, entry in litellm.items():
        one, other = genai_rates(genai, name), litellm_rates(entry)
        if one == other and one not in (None, VARIABLE) and is_for_agents(name, entry):
            rates[name] = one
        elif one is not None and other is not None:
            disputed.add(name)
    # Its price would be that of its releases, too.
    rates = {name: rate for name, rate in rates.items() if not any(is_release_of(other, name) for other in disputed)}

    def model_of(name):
        return max((other for other in rates if other != name and is_release_of(name, other)), key=len, default=None)

    return {name: rate for name, rate in rates.items() if rates.get(model_of(name)) != rate}


def is_for_agents(name, entry):
    """Whether a model takes tools and answers in text, and costs nothing but tokens."""
    is_priced_otherwise = "output_cost_per_audio_token" in entry or "search" in name or ":" in name
    return entry.get("supports_function_calling") is True and not is_priced_otherwise


def listed(genai_source, litellm_source):
    """The models and rates of each provider."""
    genai, entries = genai_models(genai_source), json.loads(litellm_source)
    for provider, in_genai, in_litellm in PROVIDERS:
        of_provider = {
            key.removeprefix(f"{in_litellm}/"): entry
            for key, entry in entries.items()
            if entry.get("litellm_provider") == in_litellm and entry.get("mode") in ("chat", "responses")
        }
        of_provider = {name: entry for name, entry in of_provider.items() if "/" not in name}
        yield provider, agreed(genai[in_genai], of_provider)


def number(rate):
    text = format(rate.normalize(), "f")
    return text if "." in text else f"{text}.0"


def text(lists):
    sources = ", ".join(f'"{name} {version}"' for name, version in SOURCES.items())
    lines = [HEADER, f"sources = [{sources}]", f"as_of = {AS_OF!r}".replace("'", '"')]
    for provider, rates in lists:
        if rates:
            lines += ["", f"[models.{provider}]"]
        for name, (value, output, cache_read, cache_write) in sorted(rates.items()):
            lines.append(
                f'"{name}" = {{ input = {number(value)}, output = {number(output)}, '
                f"cache_read = {number(cache_read)}, cache_write = {number(cache_write)} }}"
            )
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="compare the file instead of writing it")
    is_check = arguments.parse_args().check
    with tempfile.TemporaryDirectory() as directory:
        expected = text(listed(*download(directory)))
    if not is_check:
        FILE.write_text(expected)
        return
    found = FILE.read_text()
    if found != expected:
        names = (FILE.name, "the packages")
        sys.stdout.writelines(difflib.unified_diff(found.splitlines(True), expected.splitlines(True), *names))
        sys.exit("prices: the file differs from its sources; run tests/prices.py")


if __name__ == "__main__":
    main()
