# Floods a job's own socket: `python3 flood.py ATTACK SECONDS`. Python's standard library only.
# Waits for `stolen.json` ({"job", "token"}), which the harness creates in the same directory, creates `started`, and prints one
# line of JSON with its attempts and their outcomes. ATTACK is one of ATTACKS, at the end.
import collections, errno, json, os, select, socket, sys, time

SOCKET = os.environ.get("FLOOD_SOCKET", "/run/gantry/worker.sock")
MIB = 1024 * 1024
JOB, TOKEN = "", ""
told = collections.Counter()


def steal(patience=10):
    global JOB, TOKEN
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            with open("stolen.json") as file:
                stolen = json.load(file)
            JOB, TOKEN = stolen["job"], stolen["token"]
            return
        except FileNotFoundError:
            time.sleep(0.05)
    sys.exit("no stolen.json: the harness brought no token")


def headers(token=False, session=None):
    lines = ["Host: gantry", "Content-Type: application/json"]
    if token:
        lines.append(f"Authorization: Bearer {TOKEN}")
    if session:
        lines.append(f"X-Gantry-Session: {session}")
    return "\r\n".join(lines)


def request(method, path, body=b"", length=None, **who):
    path = path if path.startswith("/") else f"/worker/{JOB}/{path}"
    length = len(body) if length is None else length
    head = f"{method} {path} HTTP/1.1\r\n{headers(**who)}\r\nContent-Length: {length}\r\n\r\n"
    return head.encode() + body


class Connection:
    """A non-blocking connection. `send` is the data that is still to be written."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.setblocking(False)
        try:
            self.socket.connect(SOCKET)
        except OSError:
            self.socket.close()
            raise
        self.pending = memoryview(b"")

    def write(self):
        """Returns False if the peer has closed the connection."""
        try:
            while self.pending:
                sent = self.socket.send(self.pending[: 256 * 1024])
                told["sent_bytes"] += sent
                self.pending = self.pending[sent:]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def read(self):
        """Returns received data, or None if the peer has closed the connection."""
        try:
            data = self.socket.recv(256 * 1024)
        except BlockingIOError:
            return b""
        except OSError:
            return None
        return data or None


def count_answers(data):
    at = data.find(b"HTTP/1.1 ")
    while at >= 0:
        told["status_" + data[at + 9 : at + 12].decode(errors="replace")] += 1
        at = data.find(b"HTTP/1.1 ", at + 12)


def hold(count, seconds, payload=b"", trickle=b""):
    """Opens `count` connections, sends each the payload, then `trickle` every second; reopens closed connections."""
    deadline, held, poll = time.monotonic() + seconds, {}, select.epoll()
    payload, next_trickle, next_try = memoryview(payload), time.monotonic() + 1, 0.0
    while (now := time.monotonic()) < deadline:
        while len(held) < count and now >= next_try:
            told["attempted"] += 1
            try:
                one = Connection()
            except OSError as error:
                told["refused_" + errno.errorcode.get(error.errno, "?")] += 1
                next_try = now + 0.01
                break
            one.pending = payload
            held[one.socket.fileno()] = one
            poll.register(one.socket.fileno(), select.EPOLLIN | (select.EPOLLOUT if payload else 0))
            if len(held) % 256 == 0:
                break
        told["held_most"] = max(told["held_most"], len(held))
        trickles = trickle and now >= next_trickle
        if trickles:
            next_trickle = now + 1
            for one in held.values():
                one.pending = memoryview(bytes(one.pending) + trickle) if len(one.pending) < MIB else one.pending
                one.write()
        for number, event in poll.poll(0.01, 1024):
            one = held[number]
            alive = one.write()
            if alive and not one.pending:
                poll.modify(number, select.EPOLLIN)
            if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                data = one.read()
                alive = data is not None
                count_answers(data or b"")
            if not alive:
                told["closed_by_peer"] += 1
                poll.unregister(number)
                del held[number]
                one.socket.close()


def flood(connections, seconds, batches):
    """Writes batch after batch on each connection without waiting for answers, and counts those."""
    deadline, open_ones, poll, next_try = time.monotonic() + seconds, {}, select.epoll(), 0.0
    while (now := time.monotonic()) < deadline:
        while len(open_ones) < connections and now >= next_try:
            try:
                one = Connection()
            except OSError as error:
                told["refused_" + errno.errorcode.get(error.errno, "?")] += 1
                next_try = now + 0.01
                break
            open_ones[one.socket.fileno()] = one
            poll.register(one.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)
        for number, event in poll.poll(0.01, 64):
            one = open_ones[number]
            data = b""
            if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                data = one.read()
                count_answers(data or b"")
            if event & select.EPOLLOUT and data is not None:
                if not one.pending:
                    batch, requests = next(batches)
                    told["attempted"] += requests
                    one.pending = memoryview(batch)
                if not one.write():
                    data = None
            if data is None:
                told["closed_by_peer"] += 1
                poll.unregister(number)
                del open_ones[number]
                one.socket.close()


def in_processes(count, work):
    """Runs the attack in several processes, because a process has a limit of open files, and sums their counts."""
    pipes = []
    for number in range(count):
        read, write = os.pipe()
        if os.fork() == 0:
            os.close(read)
            try:
                work(number)
            finally:
                os.write(write, json.dumps(told).encode())
                os._exit(0)
        os.close(write)
        pipes.append(read)
    for read in pipes:
        with os.fdopen(read) as file:
            told.update(json.loads(file.read() or "{}"))
    for _ in pipes:
        os.wait()


def repeated(*requests):
    batch = b"".join(requests)
    while True:
        yield batch, len(requests)


def worker_calls(**who):
    """Each request of the worker API once, with a body that has no effect if it is accepted."""
    posts = ["llm/complete", "llm/complete_with_tools", "tools/none", "status", "complete"]
    gets = ["job", "tools", "prompt?wait_seconds=0"]
    calls = [request("POST", path, b"{}", **who) for path in posts] + [request("GET", path, **who) for path in gets]
    return calls + [request("POST", "events", b'{"events":[]}', **who)]


def events(first=1, count=500, text=200):
    while True:
        batch = [
            {"client_seq": number, "kind": "log", "data": {"stream": "stdout", "text": "x" * text}}
            for number in range(first, first + count)
        ]
        yield request("POST", "events", json.dumps({"events": batch}).encode(), token=True, session="forged"), 1
        first += count


def large_json(megabytes=30):
    """Tool parameters that need many times their size in memory when they are parsed into a tree."""
    head = b'{"call_id":"%d","messages":[{"role":"user","content":"x"}],"tools":[{"name":"a","description":"a","parameters":['
    number = 0
    zeros = b"0," * (megabytes * MIB // 2) + b"0]}]}"
    while True:
        number += 1
        yield request("POST", "llm/complete_with_tools", head % number + zeros, token=True, session="forged"), 1


def bodies(count, seconds, **who):
    """Bodies of 31 MiB that never end: all but the last byte."""
    body = b" " * (31 * MIB - 1)
    hold(count, seconds, request("POST", "llm/complete", body, length=31 * MIB, **who))


HEAD = b"GET /health HTTP/1.1\r\nHost: gantry\r\nX-Slow: a"
ATTACKS = {
    "connections": lambda s: in_processes(10, lambda _: hold(2_000, s)),
    "heads": lambda s: hold(500, s, HEAD, b"a"),
    "bodies": lambda s: bodies(100, s),
    "bodies-token": lambda s: bodies(100, s, token=True),
    "health": lambda s: in_processes(2, lambda _: flood(8, s, repeated(*[request("GET", "/health")] * 100))),
    "calls": lambda s: in_processes(2, lambda _: flood(8, s, repeated(*worker_calls() * 8))),
    "calls-token": lambda s: in_processes(2, lambda _: flood(8, s, repeated(*worker_calls(token=True) * 8))),
    "calls-forged": lambda s: in_processes(
        2, lambda _: flood(8, s, repeated(*worker_calls(token=True, session="forged") * 8))
    ),
    "polls": lambda s: hold(4_000, s, request("GET", "prompt?wait_seconds=30", token=True)),
    "events": lambda s: flood(4, s, events()),
    "json": lambda s: flood(3, s, large_json()),
}


def main():
    seconds = float(sys.argv[2])
    steal()
    open("started", "w").close()
    for attack in sys.argv[1].split(","):
        ATTACKS[attack](seconds)
    print(json.dumps(dict(sorted(told.items()))))


if __name__ == "__main__":
    main()
