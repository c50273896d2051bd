"""What the benchmarks' tests share: a small server to measure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "examples" / "bench"

#: bin/vllm of a small engine: real HTTP, a child process, and faults by environment.
SERVER = """#!{python}
import http.server, json, os, subprocess, sys, time
fault = os.environ.get("FAULT", "")
print("this is the log", flush=True)
if fault == "dies":
    sys.exit(3)
code = "import time; x = b'x' * (64 << 20); print(flush=True); time.sleep(600)"
command, alone = [sys.executable, "-c", code], fault == "leaves"
child = subprocess.Popen(command, start_new_session=alone, stdout=subprocess.PIPE)
child.stdout.readline()
count = 0

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"")

    def do_POST(self):
        global count
        count += 1
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if fault == "breaks" and count == 2:
            print("the last words", flush=True)
            os._exit(4)
        time.sleep(float(os.environ.get("SLEEP", "0")))
        tokens = asked["prompt"].split() * asked["max_tokens"]
        logprobs = [-0.5] * len(tokens)
        if fault == "tokens" and count == 3:
            tokens[0] = "wrong"
        if fault == "logprobs" and count == 3:
            logprobs[0] = -0.75
        found = {{"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": []}}
        text = " ".join(tokens)
        self.answer(json.dumps({{"choices": [{{"text": text, "logprobs": found}}]}}).encode())

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
port = int(sys.argv[sys.argv.index("--port") + 1])
try:
    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
finally:
    if fault != "leaves":
        child.kill()
        child.wait()
"""


def small_engine(folder: Path) -> Path:
    """An engine's folder whose ``vllm`` is :data:`SERVER`."""
    program = folder / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(SERVER.format(python=sys.executable))
    program.chmod(0o755)
    return folder


def in_a_process(code: str, *arguments: object, timeout: float = 600):
    """Run ``code`` with the benchmarks importable, as a benchmark's own process."""
    folders = [BENCH, ROOT / "examples" / "vllm", ROOT]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
