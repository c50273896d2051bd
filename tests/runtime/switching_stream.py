"""A steady stream of requests for two models behind a gateway that switches between them.

Each request names one of the two at random, whatever is served.  What must become of it
follows from when it was sent: `Stream.problems` says which were lost or answered wrong.
"""

from __future__ import annotations

import json
import random
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Events' times are told in milliseconds: what is nearer than this may be before or after.
ROUNDED = 0.01


@dataclass(frozen=True)
class Asked:
    """A request: when it was sent and answered (CLOCK_MONOTONIC, s), and with what."""

    model: str
    sent: float
    ended: float
    code: int
    said: str  #: the model that answered, or the error's type


@dataclass(frozen=True)
class Switched:
    """A switch's events by name; ``clock`` is its T."""

    events: dict[str, dict[str, Any]]

    @classmethod
    def perform(cls, url: str, command: str, **more: Any) -> Switched:
        """Switch, and read the gateway's events to the end."""
        request = urllib.request.Request(
            f"{url}/cfac/switch", json.dumps({"to": command, **more}).encode()
        )
        with urllib.request.urlopen(request) as lines:
            events = [json.loads(line) for line in lines]
        return cls({event["event"]: event for event in events})

    def at(self, event: str) -> float:
        """When an event was, by the monotonic clock."""
        return float(self.events["begin"]["clock"] + self.events[event]["at"])

    @property
    def ok(self) -> bool:
        return bool(self.events["done"]["ok"])


class Stream:
    """Clients that ask for one of ``models``, ``pause`` seconds apart, until `end`."""

    def __init__(self, url: str, models: Sequence[str], *, pause: float, clients: int = 2) -> None:
        self.url, self.models, self.pause = url, models, pause
        self.asked: list[Asked] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(random.Random(k),)) for k in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> list[Asked]:
        """Wait for the answers that are still out; all requests in the order of sending."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        return sorted(self.asked, key=lambda one: one.sent)

    def _ask(self, chance: random.Random) -> None:
        while not self._over.wait(self.pause):
            model = chance.choice(self.models)
            body = {"model": model, "prompt": "The engine starts", "max_tokens": 4}
            body |= {"temperature": 0, "ignore_eos": True, "seed": 0}
            request = urllib.request.Request(
                f"{self.url}/v1/completions", json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )  # fmt: skip
            sent = time.monotonic()
            try:
                with urllib.request.urlopen(request) as answer:
                    code, said = answer.status, json.load(answer)["model"]
            except urllib.error.HTTPError as error:
                code, said = error.code, json.load(error)["error"]["type"]
            except OSError as error:
                code, said = 0, repr(error)
            self.asked.append(Asked(model, sent, time.monotonic(), code, said))


def problems(asked: Sequence[Asked], switches: Sequence[Switched]) -> list[str]:
    """What became of requests that should have become of none.

    Answered: by the model that it names.  Refused: only as ``model_leaving`` after its drain
    had begun (and before the switch was over), or as ``model_not_found`` while its model was
    neither served nor coming.
    """
    leaving = [(s.events["closed"]["model"], s.at("closed"), s.at("active")) for s in switches]
    away = [(gone, closed) for gone, closed, _ in leaving]
    back = [(s.events["begin"]["new"], s.at("begin")) for s in switches]
    found = []

    def may_be_leaving(one: Asked) -> bool:
        return any(
            m == one.model and one.ended >= a - ROUNDED and one.sent <= b + ROUNDED
            for m, a, b in leaving
        )

    for one in asked:
        if one.code == 200 and one.said == one.model:
            continue
        if one.code == 503 and one.said == "model_leaving" and may_be_leaving(one):
            continue
        if one.code == 404 and one.said == "model_not_found":
            left = max(
                (t for m, t in away if m == one.model and t <= one.ended + ROUNDED), default=0.0
            )
            again = [t for m, t in back if m == one.model and left < t]
            if not again or one.sent <= min(again) + ROUNDED:
                continue
        found.append(f"{one.model} got {one.code} {one.said}, sent at {one.sent:.3f}")
    return found


def stall(asked: Sequence[Asked], switch: Switched) -> float:
    """From when the old model took no more to the first answer of the new one, seconds."""
    closed, new = switch.at("closed"), switch.events["begin"]["new"]
    answers = [one for one in asked if one.model == new and one.code == 200]
    return min(one.ended for one in answers if one.ended > closed) - closed


def report(asked: Sequence[Asked], switches: Sequence[Switched]) -> str:
    """A line for each switch, then medians for each size of the history."""
    lines, sizes = [], {}
    for number, switch in enumerate(switches, 1):
        predicted, outcome = switch.events["predicted"], switch.events["prediction"]
        own = predicted["t1_source"] == predicted["t2_source"] == "model"
        size = min(predicted["t1_records"], predicted["t2_records"]) if own else 0
        row = {
            "t1_error": abs(outcome["t1_error"]), "t2_error": abs(outcome["t2_error"]),
            "waited": outcome["waited"], "early": outcome["early"], "stall": stall(asked, switch),
        }  # fmt: skip
        sizes.setdefault(size, []).append(row)
        text = " ".join(f"{name}={value:.2f}" for name, value in row.items())
        lines.append(f"switch {number:2} to {switch.events['begin']['new']} history={size} {text}")
    for size, rows in sorted(sizes.items()):
        text = " ".join(
            f"{name}={statistics.median(row[name] for row in rows):.2f}" for name in rows[0]
        )
        lines.append(f"history of {size}: n={len(rows)} {text}")
    return "\n".join(lines)
