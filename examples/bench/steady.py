"""Steady state: does a patched server answer as fast as the stock one?

``python examples/bench/steady.py --engine build/engine/vllm-0.32.0 --model
build/models/tiny --requests 400`` keeps a stock and a patched server up at once and
asks them in turn, one request at a time, in the order A B B A, so that neither is
favoured by what came before.  While one is asked the other is stopped (SIGSTOP): vLLM's
processes go on polling for a second after a request and would take its cores.  Per spec
it prints the median of the paired ratios of latency with its 95% interval.
``--servers K`` spreads the requests over K fresh pairs of servers, started in either
order: two starts of one engine differ too, by where its memory lies.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sides import (
    OUT,
    STOCK,
    Server,
    Side,
    WrongAnswer,
    add_arguments,
    bench,
    checked,
    common_options,
    make_sides,
    settings,
    started,
)
from stats import Ratio, median_ratio, quantile, table, write_json
from tree import cpu_seconds

Pairs = list[tuple[float, float]]

#: The ratio's interval shall lie inside.
TARGET = (0.97, 1.03)
WARMING, IDLE_SECONDS, SETTLE_SECONDS = 20, 2.0, 0.005
PROMPT = "One two three"


def timed(server: Server, tokens: int) -> tuple[float, dict[str, Any]]:
    """The seconds of a request to a server that is stopped, and runs only meanwhile."""
    send(server, signal.SIGCONT)
    time.sleep(SETTLE_SECONDS)
    begun = time.monotonic()
    answer = server.complete(PROMPT, tokens)
    seconds = time.monotonic() - begun
    send(server, signal.SIGSTOP)
    return seconds, answer


def send(server: Server, number: signal.Signals) -> None:
    """Signal all of the engine's processes: its group."""
    assert server.process is not None
    if server.process.poll() is None:
        os.killpg(server.process.pid, number)


def alternate(stock: Server, patched: Server, count: int, tokens: int) -> Pairs:
    """``count`` pairs of latencies (stock, patched), asked A B B A.  WrongAnswer if one differs."""
    pairs: Pairs = []
    try:
        for server in (stock, patched):
            send(server, signal.SIGSTOP)
        for number in range(count):
            first, second = (stock, patched) if number % 2 == 0 else (patched, stock)
            (one, answer), (two, other) = timed(first, tokens), timed(second, tokens)
            if answer != other:
                raise WrongAnswer(f"pair {number}: {answer['tokens']} and {other['tokens']}")
            pairs.append((one, two) if number % 2 == 0 else (two, one))
    finally:
        for server in (stock, patched):
            send(server, signal.SIGCONT)
    return pairs


def idle_share() -> float:
    """What share of one core both servers use when nobody has asked them for a while."""
    time.sleep(IDLE_SECONDS)
    cpu, begun = cpu_seconds(own=False), time.monotonic()
    time.sleep(IDLE_SECONDS)
    return (cpu_seconds(own=False) - cpu) / (time.monotonic() - begun)


def measure(
    stock: Side, patched: Side, count: int, tokens: int, turn: int, common: dict[str, Any]
) -> tuple[Pairs, float]:
    """One pair of servers: its latencies, and the share of a core it uses while idle."""
    sides = [stock, patched] if turn % 2 == 0 else [patched, stock]
    with started(sides[0], **common) as one:
        one.wait_ready()
        with started(sides[1], alone=False, **common) as two:
            two.wait_ready()
            a, b = (one, two) if turn % 2 == 0 else (two, one)
            return compared(a, b, count, tokens)


def compared(a: Server, b: Server, count: int, tokens: int) -> tuple[Pairs, float]:
    """The latencies of two servers that are up, after a few requests that do not count."""
    alternate(a, b, WARMING, tokens)
    idle = idle_share()
    return alternate(a, b, count, tokens), idle


def verdict(ratio: Ratio) -> str:
    """Whether the interval lies inside :data:`TARGET`."""
    low, high = TARGET
    if low <= ratio.low and ratio.high <= high:
        return "inside"
    return "outside" if ratio.high < low or ratio.low > high else "not known"


def show(found: dict[str, list[Pairs]]) -> str:
    """A row per spec."""
    low, high = TARGET
    head = ["side", "pairs", "stock, median", "p99", "its median", "p99", "its / stock"]
    rows = [[*head, "95% interval", f"{low} to {high}", "by servers"]]
    for label, rounds in found.items():
        pairs = [pair for own in rounds for pair in own]
        row = [label, str(len(pairs))]
        for values in zip(*pairs, strict=True):
            row += [f"{quantile(values, share) * 1e3:.2f} ms" for share in (0.5, 0.99)]
        ratio = median_ratio(pairs)
        each = " ".join(f"{statistics.median(b / a for a, b in own):.3f}" for own in rounds)
        rows.append([*row, f"{ratio.median:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}"])
        rows[-1] += [verdict(ratio), each]
    return table(rows)


def shares(requests: int, servers: int) -> list[int]:
    """The pairs that each pair of servers gets: alike, and even, so that A B B A closes."""
    return [2 * -(-requests // (2 * servers))] * servers


def summarize(found: dict[str, list[Pairs]]) -> dict[str, Any]:
    return {
        label: median_ratio([pair for own in rounds for pair in own])._asdict()
        for label, rounds in found.items()
    }


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, list[Pairs]]:
    stock, *others = make_sides(arguments, copy=arguments.copy)
    assert stock.label == STOCK
    common = common_options(arguments, folder)
    found: dict[str, list[Pairs]] = {side.label: [] for side in others}
    for turn, count in enumerate(shares(arguments.requests, arguments.servers)):
        for side in others:
            pairs, idle = measure(stock, side, count, arguments.tokens, turn, common)
            found[side.label].append(pairs)
            ratio = median_ratio(pairs)
            print(f"{side.label}: {ratio}, idle {idle:.1%} of a core", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add_arguments(parser)
    parser.add_argument("--requests", type=int, default=400, help="pairs of requests per spec")
    parser.add_argument("--servers", type=int, default=2, help="pairs of servers they go to")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of a request")
    parser.add_argument("--copy", action="store_true", help="also an unpatched copy of the engine")
    arguments = checked(parser)
    if min(arguments.requests, arguments.servers, arguments.tokens) < 1:
        parser.error("--requests, --servers and --tokens are 1 at least")
    with bench(), tempfile.TemporaryDirectory(prefix="cfac-bench-") as folder:
        found = run(arguments, Path(folder))
        print(show(found))
        how = {"tokens": arguments.tokens, "servers": arguments.servers, "target": TARGET}
        result = {"settings": settings(arguments) | how, "summary": summarize(found)}
        path = arguments.json or OUT / "steady.json"
        write_json(path, result | {"seconds": found})


if __name__ == "__main__":
    main()
