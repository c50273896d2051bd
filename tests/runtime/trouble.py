"""Calls that might hang, each with a time limit of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import tiny


def python(code, **options):
    """Run code in an interpreter of its own; a hang fails the test."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tiny.ROOT,
        capture_output=True,
        text=True,
        timeout=tiny.PATIENCE,
        **options,
    )


def in_thread(function):
    """The outcome of a call that might hang: its result or its exception."""
    outcome = []

    def call():
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(tiny.PATIENCE)
    assert outcome, "it hangs"
    return outcome[0]
