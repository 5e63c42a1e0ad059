# A command with its job's token tries to impersonate the worker and to read its memory. Waits for `stolen.json` and prints one
# line of JSON with the result of each attempt. Python's standard library only.
import errno, http.client, json, os, socket, time

import flood

told = {"calls": {}, "opens": {}}


class Line(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5)
        self.sock.connect(flood.SOCKET)


def ask(name, method, path, body, sent):
    # Below the rate at which calls without a session are refused unread.
    time.sleep(0.1)
    line = Line("gantry")
    try:
        sent = {"Content-Type": "application/json", "Authorization": f"Bearer {flood.TOKEN}", **sent}
        try:
            line.request(method, f"/worker/{flood.JOB}/{path}", None if body is None else json.dumps(body), sent)
        except BrokenPipeError:
            # A refusal needs only the head: the server may have answered and closed before the body was sent.
            pass
        told["calls"][name] = line.getresponse().status
    except OSError as error:
        told["calls"][name] = type(error).__name__
    finally:
        line.close()


def event(client_seq, kind, data):
    return {"client_seq": client_seq, "kind": kind, "data": data}


FORGED = [
    event(4, "tool_result", {"call_id": "forged", "tool": "shell", "success": True, "output": "forged", "truncated": False, "duration_ms": 1}),
    event(5, "tool_use", {"call_id": "forged", "tool": "shell", "input": {"command": "forged"}}),
    event(6, "message", {"role": "user", "content": "forged"}),
    event(7, "message", {"role": "assistant", "content": "forged"}),
    event(1000, "log", {"stream": "stdout", "text": "forged"}),
]
CALLS = [
    ("job", "GET", "job", None),
    ("prompt", "GET", "prompt?wait_seconds=0", None),
    ("tools", "GET", "tools", None),
    ("status", "POST", "status", {"iteration": 999, "message": "forged"}),
    ("events", "POST", "events", {"events": FORGED}),
    ("tool", "POST", "tools/message", {"call_id": "forged", "arguments": {"content": "forged"}}),
    ("model", "POST", "llm/complete", {"call_id": "forged", "messages": [{"role": "user", "content": "forged"}]}),
    ("complete", "POST", "complete", {"outcome": "completed", "text": "forged", "iterations": 1}),
]
SESSIONS = {"no session": {}, "empty session": {"X-Gantry-Session": ""}, "forged session": {"X-Gantry-Session": "Zm9yZ2Vk" * 6}}


def attempt(path, how):
    try:
        how(path)
        told["opens"][path] = "opened"
    except OSError as error:
        told["opens"][path] = errno.errorcode.get(error.errno, str(error))


def read(path):
    with open(path, "rb", 0) as file:
        file.read(1) if not path.endswith("/mem") else None


def processes():
    """Every process that runs the worker's program, and process 1 of the container."""
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/comm") as file:
                name = file.read().strip()
        except OSError:
            continue
        if number == "1" or name.startswith("gantry-worker"):
            yield number


def main():
    flood.steal()
    for who, sent in SESSIONS.items():
        for name, method, path, body in CALLS:
            ask(f"{name}, {who}", method, path, body, sent)
    for number in processes():
        for name in ["environ", "mem", "maps"]:
            attempt(f"/proc/{number}/{name}", read)
        attempt(f"/proc/{number}/fd", os.listdir)
    told["run directory"] = sorted(os.listdir(os.path.dirname(flood.SOCKET)))
    told["environment"] = sorted(name for name in os.environ if name.startswith("GANTRY_"))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
