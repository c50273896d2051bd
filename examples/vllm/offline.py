"""An offline ``LLM(...)`` in a fresh Python process, with the calls of :class:`Server`.

The parent side is :class:`Offline`.  Run as a script this file is the child: it makes
the engine, then answers requests, a JSON line each on standard input, with a JSON
line each on standard output.  What the engine prints goes to the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

from server import SETTINGS, Server

#: How long an answer may take, and the child's end.
ANSWER_SECONDS, STOP_SECONDS = 120.0, 30.0


class Offline(Server):
    """One process that makes an ``LLM``; ready is when its constructor has returned."""

    def command(self) -> list[str]:
        settings = SETTINGS | {
            "model": str(self.model),
            "enforce_eager": self.eager,
            "tensor_parallel_size": self.tensor_parallel,
        }
        return [str(self.engine / "bin" / "python"), str(Path(__file__)), json.dumps(settings)]

    def launch(self, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        self.ready = 0.0
        self.buffer = b""
        return subprocess.Popen(
            self.command(),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=self.folder,
            start_new_session=True,
        )

    def wait_ready(self, timeout: float = 400) -> float:
        """Block until the constructor has returned; seconds since the launch."""
        if not self.ready:
            self._answer(timeout)
            self.ready = time.monotonic() - self.started
        return self.ready

    def complete(
        self, prompt: str = "The engine starts", tokens: int = 8, *, logprobs: bool = True
    ) -> dict[str, Any]:
        assert self.process is not None and self.process.stdin is not None
        self.wait_ready()
        self.process.stdin.write(json.dumps([prompt, tokens, logprobs]).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer(ANSWER_SECONDS)

    def stop(self, *arguments: Any, **options: Any) -> int | None:
        """End the input and with it the child; then as a server."""
        process = self.process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        return super().stop(*arguments, **options)

    def _answer(self, timeout: float) -> dict[str, Any]:
        """The next line of the child.  RuntimeError if it ends or takes too long."""
        assert self.process is not None and self.process.stdout is not None
        deadline = time.monotonic() + timeout
        pipe = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            # a forked child may hold the pipe open, so its end alone says nothing
            if select.select([pipe], [], [], 0.5)[0]:
                self.buffer += os.read(pipe, 65536)
            elif not self.running():
                raise self.ended()
            if time.monotonic() > deadline:
                raise RuntimeError(f"no answer within {timeout} s:\n{self.log_tail}")
        line, _, self.buffer = self.buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


def serve(settings: dict[str, Any]) -> None:
    """The child: make the engine, say so, answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from vllm import LLM, SamplingParams

    llm = LLM(**settings)
    print("{}", file=answers)
    for line in sys.stdin:
        prompt, tokens, logprobs = json.loads(line)
        sampling = SamplingParams(
            max_tokens=tokens,
            temperature=0,
            logprobs=5 if logprobs else None,
            ignore_eos=True,
            seed=0,
        )
        (request,) = llm.generate([prompt], sampling, use_tqdm=False)
        (output,) = request.outputs
        if not logprobs:
            print(json.dumps({"text": output.text}), file=answers)
            continue
        chosen = [
            step[token] for token, step in zip(output.token_ids, output.logprobs, strict=True)
        ]
        answer = {
            "text": output.text,
            "tokens": [one.decoded_token for one in chosen],
            "logprobs": [one.logprob for one in chosen],
            "top": [
                {str(token): one.logprob for token, one in step.items()} for step in output.logprobs
            ],
        }
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
