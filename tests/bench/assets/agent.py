"""The least that an agent runtime in Python holds in memory: the other side of `footprint`.

Loads what such a runtime needs to talk to its orchestrator (an HTTP client on a Unix socket, JSON, threads, child
processes), keeps one connection and one heartbeat thread, runs `sleep 600` as its tool call and says `ready`. It has no
loop, no tools and no events: a real one is larger.
"""

import http.client
import json
import socket
import subprocess
import threading

SOCKET = "/run/gantry/worker.sock"
HEARTBEAT_SECONDS = 10


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def connect(self):
        """Connects to the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(SOCKET)


def ask(connection):
    """One round trip; the answer as JSON."""
    connection.request("GET", "/health")
    return json.loads(connection.getresponse().read())


def beat(connection, stop):
    """The heartbeat, until the tool call is over."""
    while not stop.wait(HEARTBEAT_SECONDS):
        ask(connection)


def main():
    """Connects, starts the heartbeat and the tool call, and waits."""
    connection = UnixConnection("localhost")
    ask(connection)
    stop = threading.Event()
    threading.Thread(target=beat, args=(connection, stop), daemon=True).start()
    with subprocess.Popen(["sleep", "600"]) as child:
        print("ready", flush=True)
        child.wait()
    stop.set()


if __name__ == "__main__":
    main()
