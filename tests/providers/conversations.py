"""Conversations of every kind through Gantry with one model provider: a chat with a tool, a routine and a job in a container.

    python tests/providers/conversations.py GANTRY      (tests/providers.sh starts it)

The provider is that of the environment (GANTRY_LLM_PROVIDER, GANTRY_LLM_BASE_URL, GANTRY_LLM_MODEL, GANTRY_LLM_API_KEY_FILE).
Prints how each conversation ended, which tools were called, and what Gantry learned of the provider, never a word of the model or
the key; the text of an error is the provider's. Exits 1 if one of them ended with an error.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid

# How long one conversation may take. A small model on two cores reads its instructions for about a minute.
PATIENCE_SECONDS = 300


class Failed(Exception):
    """A conversation ended with an error; the text says which."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(what, found):
    """Calls `found` until it returns something."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if (value := found()) is not None:
            return value
        time.sleep(0.2)
    raise Failed(f"{what}: nothing after {PATIENCE_SECONDS} s")


class Gantry:
    """A server with a separate data directory, and what a user asks of it. Removes its containers at the end."""

    def __init__(self, binary, settings, configuration=""):
        self.binary = binary
        self.directory = tempfile.TemporaryDirectory(prefix="gantry-providers-")
        self.instance = str(uuid.uuid4())
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.environment = {
            **os.environ,
            "GANTRY_BIND": f"127.0.0.1:{port}",
            "GANTRY_DATA_DIR": f"{self.directory.name}/data",
            "GANTRY_INSTANCE_ID": self.instance,
            "RUST_LOG": "warn",
            **settings,
        }
        with open(f"{self.directory.name}/gantry.toml", "w") as file:
            file.write(configuration)
        self.log = open(f"{self.directory.name}/log", "w+")

    def __enter__(self):
        command = [self.binary, "serve", "--config", f"{self.directory.name}/gantry.toml"]
        self.server = subprocess.Popen(command, env=self.environment, stdout=self.log, stderr=self.log)
        try:
            until("the server", self.is_ready)
            self.token = self.new_token("user")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait(60)
        left = ["docker", "ps", "-aq", "--filter", f"label=gantry.instance-id={self.instance}"]
        if containers := subprocess.run(left, capture_output=True, text=True).stdout.split():
            subprocess.run(["docker", "rm", "-f", *containers], stdout=subprocess.DEVNULL)
        self.log.close()
        self.directory.cleanup()

    def is_ready(self):
        if self.server.poll() is not None:
            self.log.seek(0)
            raise Failed(f"the server ended with {self.server.returncode}: {self.log.read()}")
        try:
            return self.ask("/readyz", token=None)
        except OSError:
            return None

    def new_token(self, role):
        command = [self.binary, "token", "create", "--user", f"a-{role}", "--role", role, "--ttl", "2h"]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout.strip()

    def ask(self, path, body=None, token=""):
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token or self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def learned(self):
        """What refusals taught, by provider and model."""
        models = self.ask("/readyz", token=self.new_token("admin"))["models"]
        return {f"{one['name']} {model}": properties for one in models for model, properties in one.get("learned", {}).items()}

    def chat(self, message):
        """One turn of the main session: the names of the tools that it called."""
        sent = self.ask("/api/chat/send", {"content": message})

        def turn():
            history = self.ask("/api/chat/threads/main?limit=200")
            messages = history["messages"]
            if history["state"] != "idle" or any(one.get("seq") is None for one in messages):
                return None
            ids = [one["id"] for one in messages]
            return messages[ids.index(sent["message_id"]) + 1:] if sent["message_id"] in ids else messages[-1:]

        messages = until("the chat", turn)
        if messages and messages[-1]["role"] == "error":
            raise Failed(json.dumps({key: messages[-1][key] for key in ("reason", "content")}))
        return [one["tool"] for one in messages if one["role"] == "tool_use"]

    def routine(self, prompt):
        """A manual run of a routine with tools."""
        action = {"type": "lightweight", "prompt": prompt, "use_tools": True}
        routine = self.ask("/api/routines", {"name": f"r-{uuid.uuid4()}", "trigger": {"type": "manual"}, "action": action})
        fired = self.ask(f"/api/routines/{routine['id']}/trigger", {})

        def ended():
            run = self.ask(f"/api/runs/{fired['id']}")
            return None if run["status"] in ("queued", "running") else run

        run = until("the routine", ended)
        if run["status"] not in ("ok", "attention"):
            raise Failed(json.dumps({key: run.get(key) for key in ("status", "reason", "message")}))
        return [one["tool"] for one in self.ask(f"/api/runs/{fired['id']}/actions?limit=200")["items"]]

    def job(self, prompt, tools):
        """A job in a container."""
        try:
            created = self.ask("/api/jobs", {"prompt": prompt, "tools": tools})
        except urllib.error.HTTPError as refused:
            raise Failed(f"the job is refused: {refused.read().decode(errors='replace')}") from None

        def ended():
            job = self.ask(f"/api/jobs/{created['id']}")
            return job if job["state"] in ("completed", "failed", "cancelled") else None

        job = until("the job", ended)
        if job["state"] != "completed":
            raise Failed(json.dumps({key: job.get(key) for key in ("state", "reason", "message")}))
        return [one["tool"] for one in self.ask(f"/api/jobs/{created['id']}/actions?limit=200")["items"]]


def main():
    binary = sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)
    failures = 0
    with Gantry(binary, {}) as gantry:
        conversations = {
            "chat": lambda: gantry.chat("Say hello in one word."),
            "chat, with a tool": lambda: gantry.chat("Call the tool `time` once, then say what year it is."),
            "chat, after a tool": lambda: gantry.chat("Thank you. Say goodbye in one word."),
            "chat, two calls": lambda: gantry.chat("Call the tool `echo` twice in one step, with the messages one and two, then say done."),
            "chat, compacted": lambda: gantry.chat("/compact") + gantry.chat("Say hello in one word."),
            "routine": lambda: gantry.routine("Call the tool `echo` with the message ping, then say what it answered."),
            "job": lambda: gantry.job("Run `echo pong > out.txt` with the shell tool, then say done.", ["shell"]),
        }
        for name, converse in conversations.items():
            started = time.monotonic()
            try:
                called = converse()
                outcome = f"ok, called {', '.join(called)}" if called else "ok, called no tool"
            except (Failed, urllib.error.HTTPError) as failure:
                failures += 1
                outcome = f"FAILED: {failure}"
            print(f"{name:20} {time.monotonic() - started:6.1f} s  {outcome}", flush=True)
        print("learned:", json.dumps(gantry.learned(), indent=2))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
