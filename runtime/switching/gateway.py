"""One stable address before servers that come and go (aiohttp).

- A request for the served model is handed to it, and its answer streamed back to its end.
- A request for the coming model waits, and is answered by it.
- A request for the old model is served until its drain begins, at max{T + t1' - t2', T};
  from then on it is refused (503, ``model_leaving``, with Retry-After), for the old model
  must come to its end.  Those that it has are answered to their end.
- Any other model is refused at once (404), and so is what comes while nothing is served
  (503), with the reason.

``GET /cfac/status`` says what is served; ``POST /cfac/switch`` begins a switch and streams
its events, a JSON object a line, the last one with ``ok``.  The switch goes on if the caller
goes away.  A state file names the served engine and the switch under way, so that the next
gateway goes on where one was killed: only requests in flight are lost.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from dataclasses import fields, replace
from typing import Any

import aiohttp
from aiohttp import web

from cfac.runtime.errors import ChannelError
from cfac.runtime.switching import state
from cfac.runtime.switching.engines import Engine, Server
from cfac.runtime.switching.found import find
from cfac.runtime.switching.predict import SwitchHistory
from cfac.runtime.switching.switch import Settings, Switch

#: Largest request body, bytes.
MAX_BODY = 256 << 20
#: How long a server may take to say that it is well, seconds.
_HEALTH_TIMEOUT = 5.0
#: The events at which the state file changes.
_SAVED = frozenset({"begin", "started", "told", "failed", "restarted"})
#: RFC 9110, 7.6.1: headers of one connection only; and what aiohttp sets itself.
_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade", "host", "content-length",
})  # fmt: skip


class Gateway:
    """The front door, and the controller of its switches.

    ``plan``: the compiled switching spec; None for engines that are not patched with it.
    ``folder``: where the state file, the history and the servers' logs are.
    """

    def __init__(
        self, folder: str, plan: dict[str, Any] | None = None, settings: Settings | None = None
    ) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.folder, self.plan, self.settings = folder, plan, settings or Settings()
        self._state = os.path.join(folder, "gateway.json")
        self.history = SwitchHistory(os.path.join(folder, "switches.jsonl"))
        self.engine: Engine | None = None
        self.coming: Server | None = None
        self.closed = False
        self.in_flight = 0
        self.waiting = 0
        self.last_error = ""
        self._changed = asyncio.Condition()
        self._turn = asyncio.Lock()
        self._switch: Switch | None = None
        self._current: asyncio.Task[None] | None = None
        self._first: Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: aiohttp.ClientSession | None = None

    def app(self) -> web.Application:
        """The aiohttp application; run it with ``handler_cancellation``."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_get("/cfac/status", self.on_status)
        app.router.add_post("/cfac/switch", self.on_switch)
        app.router.add_route("*", "/{path:.*}", self.on_request)
        app.cleanup_ctx.append(self._life)
        app.on_shutdown.append(self._stop)
        return app

    async def _life(self, _: web.Application) -> Any:
        no_limit = aiohttp.ClientTimeout(total=None, sock_connect=30)
        connector = aiohttp.TCPConnector(limit=0)
        self._client = aiohttp.ClientSession(
            timeout=no_limit, connector=connector, auto_decompress=False
        )
        await self._load()
        yield
        await self._client.close()

    async def _stop(self, _: web.Application) -> None:
        """Give up a switch that can be, and finish one that cannot."""
        for task in self._tasks:
            if self._switch is None or task is not self._current or not self._switch.told:
                task.cancel()  # later there is no way back, only forward
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- requests -----------------------------------------------------------------

    async def on_request(self, request: web.Request) -> web.StreamResponse:
        """Any request of the engine's own API."""
        body = await request.read()
        model = _model(body)
        engine = await self._admit(model)
        if isinstance(engine, web.Response):
            return engine
        try:
            return await self._forward(request, body, engine)
        finally:
            self.in_flight -= 1
            await self._notify()

    async def _admit(self, model: str | None) -> Engine | web.Response:
        """The engine for a request, counted as in flight; or why there is none."""
        while True:
            coming, serving = self.coming, self.engine
            if serving is not None and not self.closed and model in (None, serving.server.model):
                self.in_flight += 1
                return serving
            if coming is None or (model is not None and model != coming.model):
                return self._refuse(model)
            self.waiting += 1
            try:
                async with self._changed:
                    if (self.coming, self.engine) == (coming, serving):
                        await self._changed.wait()
            finally:
                self.waiting -= 1

    def _refuse(self, model: str | None) -> web.Response:
        serving = self.engine.server.model if self.engine else None
        coming = self.coming.model if self.coming else None
        if model == serving and self.closed:
            reason = f"{model} is being replaced by {coming}"
            seconds = max(1, math.ceil(self._switch.freeing if self._switch else 0))
            return _error(503, reason, "model_leaving", {"Retry-After": str(seconds)})
        if serving is None:
            reason = f"nothing is served{': ' + self.last_error if self.last_error else ''}"
            return _error(503, reason, "nothing_served")
        what = f"served: {serving}" + (f", coming: {coming}" if coming else "")
        return _error(404, f"the model {model!r} is not here ({what})", "model_not_found")

    async def _forward(
        self, request: web.Request, body: bytes, engine: Engine
    ) -> web.StreamResponse:
        assert self._client is not None
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in _HOP]
        url = engine.server.url + request.raw_path
        try:
            upstream = await self._client.request(
                request.method, url, headers=headers, data=body or None, allow_redirects=False
            )
        except aiohttp.ClientError as error:
            return _error(502, f"{engine.server.model} does not answer: {error}", "engine_gone")
        async with upstream:
            kept = [(k, v) for k, v in upstream.headers.items() if k.lower() not in _HOP]
            response = web.StreamResponse(status=upstream.status, reason=upstream.reason)
            response.headers.extend(kept)
            await response.prepare(request)
            try:
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
            except aiohttp.ClientError:
                # The status is out: a broken connection is the only way left to say it.
                if request.transport is not None:
                    request.transport.abort()
                raise
            await response.write_eof()
            return response

    # -- what a switch asks of the door ------------------------------------------------

    def close(self) -> None:
        """Take no more requests for the served model."""
        self.closed = True

    def reopen(self) -> None:
        """Take them again."""
        self.closed = False

    async def drained(self, within: float) -> bool:
        """Whether no request is in flight within so many seconds."""
        async with self._changed:
            try:
                async with asyncio.timeout(within):
                    await self._changed.wait_for(lambda: self.in_flight == 0)
            except TimeoutError:
                return False
        return True

    async def healthy(self, url: str) -> bool:
        """Whether ``/health`` of a server answers 200."""
        assert self._client is not None
        timeout = aiohttp.ClientTimeout(total=_HEALTH_TIMEOUT)
        try:
            async with self._client.get(f"{url}/health", timeout=timeout) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    # -- switching ------------------------------------------------------------------

    async def on_status(self, _: web.Request) -> web.Response:
        """What is served, what comes, who waits."""
        alive = self.engine is not None and self.engine.exit_code() is None
        return web.json_response({
            "served": self.engine.describe() if self.engine else None,
            "alive": alive,
            "coming": self.coming.model if self.coming else None,
            "in_flight": self.in_flight,
            "waiting": self.waiting,
            "last_error": self.last_error,
        })  # fmt: skip

    async def on_switch(self, request: web.Request) -> web.StreamResponse:
        """``{"to": COMMAND, "from": …, "model": …, "url": …, "queue": false}`` and `Settings`."""
        try:
            asked = await request.json()
            named = asked.pop("to"), asked.pop("model", None), asked.pop("url", None)
            leaving = asked.pop("from", None)
            if leaving is not None and not isinstance(leaving, str):
                raise TypeError("from is a process id or an address, as text")
            queue = asked.pop("queue", False)
            settings = _settings(self.settings, asked)
            server = Server.of(*named)
        except (ValueError, TypeError, KeyError, AttributeError, ChannelError) as error:
            return _error(400, f"not a switch: {error!r}", "bad_switch")
        if self._turn.locked() and queue is not True:
            what = f"to {self.coming.model}" if self.coming else ""
            return _error(409, f"a switch {what} is under way", "switch_under_way")
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._begin(server, settings, events, leaving)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        while (event := await events.get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
        await response.write_eof()
        return response

    def _begin(
        self,
        server: Server,
        settings: Settings,
        events: asyncio.Queue[dict[str, Any] | None],
        leaving: str | None = None,
    ) -> None:
        task = asyncio.create_task(self._perform(server, settings, events, leaving))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def begin_with(self, server: Server) -> None:
        """Start a server as soon as the gateway is up, unless one serves already."""
        self._first = server

    async def _perform(
        self,
        server: Server,
        settings: Settings,
        events: asyncio.Queue[dict[str, Any] | None],
        leaving: str | None,
    ) -> None:
        def tell(event: str, facts: dict[str, Any]) -> None:
            if event in _SAVED:
                self._save()
            events.put_nowait({"event": event, **facts})

        try:
            async with self._turn:
                self._current = asyncio.current_task()
                self._take_up(leaving)
                await self._change(server, settings, tell)
            tell("done", {"ok": True, "model": server.model})
        except asyncio.CancelledError:
            tell("done", {"ok": False, "reason": "the gateway is stopping"})
            raise
        except Exception as error:  # whatever it is, the caller gets to know
            self.last_error = str(error) if isinstance(error, ChannelError) else repr(error)
            tell("done", {"ok": False, "reason": self.last_error})
        finally:
            events.put_nowait(None)

    def _take_up(self, leaving: str | None) -> None:
        """See that the server which is to be left is the one that serves.

        Where nothing is served, it is taken up.  ChannelError if it is another one.
        """
        if leaving is None:
            return
        served = self.engine if self.engine and self.engine.exit_code() is None else None
        if served is not None and leaving in (str(served.pid), served.server.url):
            return
        found = find(leaving)
        if served is not None and served.pid != found.pid:
            raise ChannelError(
                f"{served.server.model} is served (process {served.pid} at {served.server.url}), "
                f"not process {found.pid} at {found.server.url}"
            )
        self.engine = served or found
        self._save()

    async def _change(self, server: Server, settings: Settings, tell: Any) -> None:
        old = self.engine
        if old is not None and old.exit_code() is not None:
            old = None  # it died by itself
        if old is not None and old.server.url == server.url:
            raise ChannelError(
                f"{old.server.model} is at {server.url}: give the new one another port"
            )
        if old is not None and old.server.model == server.model:
            raise ChannelError(f"{server.model} is what is served")
        if await self.healthy(server.url):
            raise ChannelError(f"something else serves at {server.url}")
        self._switch = switch = Switch(
            old, server, self, plan=self.plan, history=self.history, log=self.log,
            settings=settings, tell=tell,
        )  # fmt: skip
        self.coming = server
        await self._notify()
        try:
            self.engine = await switch.perform()
            self.last_error = ""
        except BaseException:
            self.engine = switch.old
            raise
        finally:
            self.closed, self.coming, self._switch = False, None, None
            self._save()
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def log(self, server: Server) -> str:
        """The file of a server's output."""
        name = re.sub(r"[^\w.-]+", "-", server.model).strip("-.") or "server"
        return os.path.join(self.folder, f"{name}.log")

    # -- the state file ---------------------------------------------------------------

    def _save(self) -> None:
        """Write down what is served, and the switch under way; a full disk does not stop it."""
        switch, unfinished = self._switch, None
        if switch is not None and not switch.undone:
            unfinished = state.Unfinished(switch.server, switch.engine, switch.told)
        try:
            state.save(self._state, switch.old if switch else self.engine, unfinished)
        except OSError as error:
            self.last_error = f"{self._state} cannot be written: {error}"

    async def _load(self) -> None:
        """Go on where an earlier gateway in this folder ended; see the module ``state``."""
        known = state.load(self._state)
        self.last_error = known.problem
        if self.engine is None:
            self.engine = known.served
        unfinished = known.unfinished
        if unfinished is not None and unfinished.engine is not None:
            unfinished.engine.kill()
            await unfinished.engine.gone(self.settings.stop)
        if unfinished is not None and (unfinished.told or self.engine is None):
            settings = replace(self.settings, overlap=False)
            self._begin(unfinished.server, settings, asyncio.Queue())
        elif self._first is not None and self.engine is None:
            self._begin(self._first, self.settings, asyncio.Queue())
        else:
            self._save()


def _settings(base: Settings, asked: dict[str, Any]) -> Settings:
    """The settings of one switch; TypeError or ValueError for what is none."""
    kinds = {field.name: type(getattr(base, field.name)) for field in fields(Settings)}
    for name, value in asked.items():
        if name not in kinds:
            raise ValueError(f"unknown: {name}")
        wanted = (int, float) if kinds[name] is float else (kinds[name],)
        if not isinstance(value, wanted) or isinstance(value, bool) != (kinds[name] is bool):
            raise TypeError(f"{name} is a {kinds[name].__name__}")
        if kinds[name] is not bool and value < (1 if kinds[name] is int else 0):
            raise ValueError(f"{name} is too small: {value}")
    return replace(base, **asked)


def _model(body: bytes) -> str | None:
    """The model that a request names; None where it names none."""
    try:
        model = json.loads(body).get("model") if body else None
    except (ValueError, AttributeError, RecursionError):
        return None
    return model if isinstance(model, str) else None


def _error(
    status: int, message: str, kind: str, headers: dict[str, str] | None = None
) -> web.Response:
    """An error in the form of the OpenAI API."""
    what = {"message": message, "type": kind, "code": status}
    return web.json_response({"error": what}, status=status, headers=headers)
