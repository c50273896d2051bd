"""A small HTTP server in a process of its own, in place of an engine: python small_server.py

It is a client of the switch's run as a patched engine is (the same session, the same waits),
and its "device memory" is a lock on a file, which only one process can have: taken too early
it ends with exit code 3.  A child process holds the lock too, as an engine's workers do.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cfac.runtime.run import SWITCH, Run
from cfac.runtime.session import Place, Session


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--memory", required=True)
    parser.add_argument("--environment", type=float, default=0.2)
    parser.add_argument("--load", type=float, default=0.1)
    parser.add_argument("--die", choices=["before", "after", "never"], default="never")
    parser.add_argument("--openai", action="store_true", help="answer as the OpenAI API does")
    parser.add_argument("--bytes", type=int, default=0)
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--unpatched", action="store_true")
    options = parser.parse_args()
    run = None if options.unpatched else Run.from_environment(SWITCH)
    session = Session(run) if run else None
    if session:
        values = {"device": "cpu", "executor": "uni"}
        session.post({"op": "params", "values": values})
        Place(session, "new.Start", 0).publish()
    time.sleep(options.environment)
    if options.die == "before":
        sys.exit("broken before it needs memory")
    if session:
        Place(session, "new.EnvReady", 0).publish()
        message = {"op": "wait", "who": "new[0].Active", "transition": "new.Active", "index": 0}
        session.wait(message, None)
    memory = open(options.memory, "ab")  # noqa: SIM115 (held to the end)
    try:
        fcntl.flock(memory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("out of memory", flush=True)
        sys.exit(3)
    weights = bytearray(options.bytes)
    if options.die == "after":
        sys.exit("broken while it loads")
    # A worker that outlives its parent by a moment, with the memory.
    watch = "import os, sys, time\nwhile os.getppid() == int(sys.argv[1]): time.sleep(0.02)\n"
    watch += "time.sleep(0.2)"
    ignore = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(
        [sys.executable, "-S", "-c", watch, str(os.getpid())], pass_fds=[memory.fileno()]
    )
    time.sleep(options.load)
    assert len(weights) == options.bytes
    if session:
        Place(session, "new.Active", 0).publish()
    if not options.hang:
        signal.signal(signal.SIGTERM, ignore)
    server = ThreadingHTTPServer(
        ("127.0.0.1", options.port), handler(options.model, options.openai)
    )
    threading.Thread(target=server.serve_forever).start()


def handler(model: str, openai: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.answer(b"{}")

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if openai:
                choice = {"text": f"{model} {asked['prompt']}"}
                self.answer(json.dumps({"model": model, "choices": [choice]}).encode())
                return
            if not asked.get("tokens"):
                self.answer(json.dumps({"model": model, "got": asked["model"]}).encode())
                return
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for n in range(asked["tokens"]):
                data = f"{model} {n}\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
                time.sleep(asked["pause"])
            self.wfile.write(b"0\r\n\r\n")

        def answer(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


if __name__ == "__main__":
    main()
