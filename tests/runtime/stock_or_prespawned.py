"""One program, started twice: with multiprocessing's own processes, and with prespawned ones.

``python stock_or_prespawned.py stock|prespawned`` prints what parent and children see, as
JSON.  Pids and numbers of descriptors are left out; everything else must be equal.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from multiprocessing import connection, shared_memory

NAMES = [
    *("zero", "three", "text", "failing", "terminated", "killed", "unpicklable"),
    *("looking", "using", "custom", "default", "parent"),
]


class Custom(multiprocessing.get_context("spawn").Process):
    """A process class with a run() of its own."""

    def __init__(self, pipe):
        super().__init__(name="custom")
        self.pipe = pipe

    def run(self):
        self.pipe.send(["custom", type(self).__name__])


def look(pipe, payload):
    parent = multiprocessing.parent_process()
    current = multiprocessing.current_process()
    pipe.send(
        {
            "name": current.name,
            "daemon": current.daemon,
            "identity": current._identity,
            "parent": [parent.name, parent.pid == os.getppid(), parent.is_alive()],
            "authkey": bytes(current.authkey).hex(),
            "argv": sys.argv,
            "path": sys.path,
            "directory": os.getcwd(),
            "environment": dict(os.environ),
            "main": [sys.modules["__main__"].__name__, look.__module__],
            "method": multiprocessing.get_start_method(),
            "ignored": sorted(
                int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN
            ),
            "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "cpus": sorted(os.sched_getaffinity(0)),
            "input": sys.stdin.read(),
            "threads": [thread.name for thread in threading.enumerate()],
            "flags": list(sys.flags),
            "children": len(multiprocessing.active_children()),
            "payload": len(payload),
        }
    )


def leave(code):
    sys.exit(code)


def fail():
    raise ValueError("on purpose")


def sleep():
    time.sleep(600)


def use(pipe, queue, lock, event, many, segment, counter):
    with lock, counter.get_lock():
        counter.value += 1
    for place, end in enumerate(many):
        end.send(place)
    memory = shared_memory.SharedMemory(segment)
    memory.buf[0] = 7
    memory.close()
    queue.put("through the queue")
    event.wait(300)
    pipe.send("done")


def grandchild(pipe):
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=leave, args=(5,), name="grandchild")
    child.start()
    child.join()
    pipe.send([child.exitcode, child.name])


def seen(child):
    """What the parent sees of a process that has ended."""
    child.join(300)
    ready = connection.wait([child.sentinel], 300) == [child.sentinel]
    listed = child in multiprocessing.active_children()
    alive, code = child.is_alive(), child.exitcode
    child.close()
    return [code, ready, listed, alive]


def ends(process):
    """How processes end."""
    found = {}
    for name, target, args in [
        ("zero", leave, (0,)),
        ("three", leave, (3,)),
        ("text", leave, ("a reason",)),
        ("failing", fail, ()),
    ]:
        child = process(target=target, args=args, name=name)
        found[name] = [child.name, child.pid, child.is_alive(), child.exitcode]
        child.start()
        found[name] += seen(child)
    for name, end in [("terminated", "terminate"), ("killed", "kill")]:
        child = process(target=sleep, name=name, daemon=True)
        child.start()
        found[name] = [child.is_alive(), child.daemon, child in multiprocessing.active_children()]
        getattr(child, end)()
        found[name] += seen(child)
    child = process(target=lambda: None, name="unpicklable")
    try:
        child.start()
    except Exception as error:
        found["unpicklable"] = [type(error).__name__, child.pid, child.is_alive()]
    return found


def sees(context, process):
    """What a child sees of its parent and of itself, after its parent has changed."""
    found = {}
    os.environ.update(CHANGED="yes", NEW="1")
    os.environ.pop("GONE")
    os.chdir("/")
    sys.argv.append("--added")
    sys.path.append("/added")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    multiprocessing.current_process().authkey = b"another"
    here, there = context.Pipe()
    child = process(target=look, args=(there, b"x" * 5_000_000), name="looking")
    child.daemon = True
    child.start()
    there.close()
    found["child"] = here.recv()
    found["end"] = seen(child)
    return found


def passes(context, process, custom, default):
    """What can be passed to a child."""
    here, there = context.Pipe()
    queue, lock, event = context.Queue(), context.Lock(), context.Event()
    many = [context.Pipe() for _ in range(300)]
    counter = context.Value("i", 0)
    memory = shared_memory.SharedMemory(create=True, size=16)
    child = process(
        target=use,
        args=(there, queue, lock, event, [end for _, end in many], memory.name, counter),
        name="using",
    )
    child.start()
    there.close()
    for _, end in many:
        end.close()
    found = {"many": [end.recv() for end, _ in many], "queue": queue.get(timeout=300)}
    event.set()
    found |= {"pipe": here.recv(), "end": seen(child), "value": counter.value}
    found["memory"] = memory.buf[0]
    try:
        here.recv()
    except EOFError:
        found["closed"] = True  # the child had the only other end
    memory.close()
    memory.unlink()
    here, there = context.Pipe()
    child = custom(there)
    child.start()
    found["custom"] = [here.recv(), seen(child)]
    child = default(target=leave, args=(4,), name="default")
    child.start()
    found["default"] = seen(child)
    here, there = context.Pipe()
    child = process(target=grandchild, args=(there,), name="parent")
    child.start()
    found["grandchild"] = [here.recv(), seen(child)]
    return found


def main():
    context = multiprocessing.get_context("spawn")
    process, custom, default = context.Process, Custom, multiprocessing.Process
    fallen_back = []
    if sys.argv.pop(1) == "prespawned":
        from cfac.runtime import adopt
        from cfac.runtime.prespawn import Prespawned, adopting

        def fall_back(name, reason, child):
            fallen_back.append(f"{name}: {reason}")
            if child is not None:
                child.discard()

        role = adopt.Role("no plan", "none", {})
        waiting = {name: Prespawned(name, "toy", role) for name in NAMES}
        process = adopting(waiting, process, fall_back)
        custom = adopting(waiting, custom, fall_back)
        default = adopting(waiting, default, fall_back)
    multiprocessing.set_start_method("spawn")  # an engine may, once
    found = {
        "ends": ends(process),
        "sees": sees(context, process),
        "passes": passes(context, process, custom, default),
    }
    print(json.dumps({"found": found, "fallen back": fallen_back}))


if __name__ == "__main__":
    main()
