"""A proxy on loopback that passes requests to a model server and keeps the status and the usage of each answer."""

import http.client
import http.server
import json
import threading


class Proxy:
    """Listens as long as it is in use. `answers` has a path, a status and the tokens (in, out) of each request so far."""

    def __init__(self, port):
        self.answers = []
        answers = self.answers

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server = http.client.HTTPConnection("127.0.0.1", port)
                server.request("POST", self.path, body, {"Content-Type": "application/json"})
                answer = server.getresponse()
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.end_headers()
                received = b""
                while piece := answer.read1():
                    received += piece
                    self.wfile.write(piece)
                    self.wfile.flush()
                answers.append((self.path, answer.status, usage(received.decode())))

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def usage(stream):
    """The tokens (in, out) that the last events with any tell: chat completions, messages, responses."""
    read, written = 0, 0
    for line in stream.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        holder = event.get("message") or event.get("response") or event
        told = holder.get("usage") or {}
        cached = told.get("cache_read_input_tokens", 0) + told.get("cache_creation_input_tokens", 0)
        read = max(read, told.get("prompt_tokens", 0), told.get("input_tokens", 0) + cached)
        written = max(written, told.get("completion_tokens", 0), told.get("output_tokens", 0))
    return read, written
