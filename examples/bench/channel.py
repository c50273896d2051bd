"""How fast a channel wakes who waits: between threads, processes and coroutines.

``python examples/bench/channel.py`` prints, per transport: the time from just before
``set_state`` to just after the ``wait_state`` it wakes (p50, p99), and how many states
a second one publisher gets to one waiter.  Medians over interleaved rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path

from stats import medians, quantile, table, write_json
from tree import adopt_orphans, cpu_seconds

from cfac import Channel

TIMEOUT = 60.0
#: Long enough for the waiter to be waiting again when the next state is set.
PAUSE = 0.001


def echo(channel: Channel, count: int) -> None:
    """The waiter: answers each ping with the time at which it woke, then takes the burst."""
    for number in range(count):
        channel.wait_state("ping", str(number), TIMEOUT)
        channel.set_state("pong", str(number), time.monotonic_ns())
    channel.wait_state("burst", "last", TIMEOUT)
    channel.set_state("pong", "end", time.monotonic_ns())


async def echo_async(channel: Channel, count: int) -> None:
    for number in range(count):
        await channel.wait_state_async("ping", str(number), TIMEOUT)
        channel.set_state("pong", str(number), time.monotonic_ns())
    await channel.wait_state_async("burst", "last", TIMEOUT)
    channel.set_state("pong", "end", time.monotonic_ns())


def burst(channel: Channel, events: int) -> int:
    """Publish ``events`` states one after the other; when the first was set."""
    start = time.monotonic_ns()
    for number in range(events - 1):
        channel.set_state("burst", str(number))
    channel.set_state("burst", "last")
    return start


def outcome(latencies: list[float], start: int, end: int, events: int) -> dict[str, float]:
    return {
        "p50_us": quantile(latencies, 0.50),
        "p99_us": quantile(latencies, 0.99),
        "events_per_second": events / ((end - start) / 1e9),
    }


def drive(channel: Channel, count: int, events: int) -> dict[str, float]:
    """The publisher's side of :func:`echo`."""
    latencies = []
    for number in range(count):
        time.sleep(PAUSE)
        set_at = time.monotonic_ns()
        channel.set_state("ping", str(number))
        woken_at = channel.wait_state("pong", str(number), TIMEOUT)
        latencies.append((woken_at - set_at) / 1e3)
    time.sleep(PAUSE)
    start = burst(channel, events)
    return outcome(latencies, start, channel.wait_state("pong", "end", TIMEOUT), events)


def threads(count: int, events: int) -> dict[str, float]:
    with Channel("thread") as channel:
        waiter = threading.Thread(target=echo, args=(channel, count))
        waiter.start()
        result = drive(channel, count, events)
        waiter.join()
    return result


def processes(count: int, events: int) -> dict[str, float]:
    with Channel("process") as channel:
        context = multiprocessing.get_context("spawn")
        waiter = context.Process(target=echo, args=(channel, count))
        waiter.start()
        result = drive(channel, count, events)
        waiter.join()
    return result


def coroutines(count: int, events: int) -> dict[str, float]:
    async def main() -> dict[str, float]:
        with Channel("thread") as channel:
            waiter = asyncio.create_task(echo_async(channel, count))
            latencies = []
            for number in range(count):
                await asyncio.sleep(PAUSE)
                set_at = time.monotonic_ns()
                channel.set_state("ping", str(number))
                woken_at = await channel.wait_state_async("pong", str(number), TIMEOUT)
                latencies.append((woken_at - set_at) / 1e3)
            await asyncio.sleep(PAUSE)
            start = burst(channel, events)
            end = await channel.wait_state_async("pong", "end", TIMEOUT)
            await waiter
        return outcome(latencies, start, end, events)

    return asyncio.run(main())


TRANSPORTS: dict[str, Callable[[int, int], dict[str, float]]] = {
    "threads": threads,
    "processes": processes,
    "coroutines": coroutines,
}


def measure(transport: str, count: int, events: int) -> dict[str, float]:
    """One round; CPU-seconds include the waiter's and the owner's process."""
    before = cpu_seconds()
    result = TRANSPORTS[transport](count, events)
    return {**result, "cpu_seconds": cpu_seconds() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wakes", type=int, default=1000, help="set -> wake times a round")
    parser.add_argument("--events", type=int, default=10_000, help="states published a round")
    parser.add_argument("--json", type=Path, help="also write the rounds and medians here")
    arguments = parser.parse_args()
    adopt_orphans()
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in TRANSPORTS}
    for _ in range(arguments.rounds):
        for name, found in rounds.items():
            found.append(measure(name, arguments.wakes, arguments.events))
    middle = {name: medians(found) for name, found in rounds.items()}
    rows = [["between", "set->wake p50", "p99", "events/s", "CPU-s a round"]]
    rows += [
        [
            name,
            f"{found['p50_us']:.0f} us",
            f"{found['p99_us']:.0f} us",
            f"{found['events_per_second']:,.0f}",
            f"{found['cpu_seconds']:.2f}",
        ]
        for name, found in middle.items()
    ]
    print(table(rows))
    what = {"rounds": arguments.rounds, "wakes": arguments.wakes, "events": arguments.events}
    write_json(arguments.json, {"settings": what, "medians": middle, "rounds": rounds})


if __name__ == "__main__":
    main()
