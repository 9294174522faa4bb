"""An environment that OpenEnv's server runs elsewhere: one WebSocket for each episode, and its tasks over HTTP."""

from __future__ import annotations

import ipaddress
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from rolemesh_agents import AgentError

__all__ = ["Raised", "Rejected", "Remote", "RemoteAction", "Seen", "Tasks", "action_of"]

T = TypeVar("T")
OPEN_S: Final = 10.0
"""Limit of one try to connect, and of one request over HTTP, in seconds."""
CLOSE_S: Final = 2.0
"""Seconds that a server has to close its end."""
PAUSE_S: Final = 0.5
"""Seconds between two tries; each pause is twice as long as the one before, and at most `MOST_PAUSE_S`."""
MOST_PAUSE_S: Final = 5.0
MOST_BYTES: Final = 2**26
"""Longest answer of a server."""
AGAIN: Final = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""Errors with which a server refuses a session: another try may have one."""
GENERIC: Final = ("Action", "CallToolAction", "ListToolsAction")
"""Classes of actions whose environment takes the calls of its own tools."""
DOWN: Final = "look whether the server runs, and what its log says"


class Raised(Exception):
    """The environment has raised in the server. The connection goes on."""


class Rejected(Exception):
    """The action does not fit the action's class in the server. The connection goes on."""


class _RefusedError(Exception):
    """The server refuses, and may not do so later."""


class Seen:
    """An observation. It looks like OpenEnv's own: its fields are attributes."""

    def __init__(self, fields: Mapping[str, Any], reward: float | None, done: bool) -> None:
        self._fields, self.reward, self.done = fields, reward, done

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._fields:
            raise AttributeError(name)
        return self._fields[name]

    def model_dump(self, mode: str, exclude: set[str]) -> dict[str, Any]:
        """Return the fields but those in `exclude`."""
        return {name: value for name, value in self._fields.items() if name not in exclude}


class RemoteAction:
    """The class of the actions, as the server's schema describes it. An action is a mapping."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    def model_json_schema(self) -> dict[str, Any]:
        """Return the schema."""
        return dict(self._schema)

    def model_validate(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the action: the server validates it."""
        return action


class Remote:
    """A session of the server at `url`. It connects with the first call, which is `reset`.

    Before the first step, it connects again until `begin_s` seconds have passed. Afterwards nobody knows what the
    server has done, so each failure is the conversation's. `answer_s`: limit of each answer.
    """

    def __init__(self, url: str, begin_s: float, answer_s: float) -> None:
        self._url, self._begin_s, self._answer_s = url, begin_s, answer_s
        self._socket: ClientConnection | None = None
        self._held = ExitStack()

    def accepts(self, name: str) -> tuple[set[str], bool]:
        """See `Caller.accepts`: the server leaves out what its methods do not take."""
        return set(), True

    def call_accepted(self, name: str, named: Mapping[str, Any]) -> Seen:
        """Begin the session: `reset`."""

        def begin() -> Seen:
            self.close()
            self._socket = self._connected()
            return self._asked(name, dict(named), _RefusedError)

        return until(self._begin_s, self._url, begin)

    def call(self, name: str, action: Mapping[str, Any]) -> Seen:
        """Take a step. Raises `Raised` and `Rejected`; and `AgentError` if the session is lost."""
        return self._asked(name, dict(action), AgentError)

    def close(self) -> None:
        """End the session."""
        socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(Exception):
                socket.send(json.dumps({"type": "close"}))
            with suppress(Exception):
                self._held.close()

    def _connected(self) -> ClientConnection:
        parts = urlsplit(self._url)
        address = parts._replace(scheme={"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)).geturl()
        try:
            connecting = connect(
                f"{address}/ws",
                open_timeout=OPEN_S,
                close_timeout=CLOSE_S,
                ping_timeout=None,  # a step may keep the server from answering; `answer_s` is its limit
                max_size=MOST_BYTES,
                proxy=None if _local(parts.hostname) else True,
            )
            return self._held.enter_context(connecting)
        except InvalidStatus as error:
            status = error.response.status_code
            if 400 <= status < 500 and status not in (408, 425, 429):
                what = f"{self._url} answers the WebSocket /ws with HTTP {status}"
                raise AgentError(what, remedy="give the base URL of a server of OpenEnv, without /ws") from error
            raise _RefusedError(f"HTTP {status}") from error
        except (OSError, WebSocketException) as error:
            raise _RefusedError(_told(error)) from error

    def _asked(self, kind: str, data: Mapping[str, Any], lost: type[Exception]) -> Seen:
        socket = self._socket
        if socket is None:
            raise _lost(lost, self._url, kind, "the session has ended")
        try:
            with suppress(ConnectionClosed):  # a server that refuses the session has perhaps said why
                socket.send(json.dumps({"type": kind, "data": data}))
            answer = socket.recv(timeout=self._answer_s)
        except TimeoutError as error:
            self.close()
            raise _lost(lost, self._url, kind, f"no answer within {self._answer_s:g} s") from error
        except (OSError, ConnectionClosed) as error:
            self.close()
            raise _lost(lost, self._url, kind, _told(error)) from error
        try:
            return self._read(answer, lost, kind)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self.close()
            raise _lost(lost, self._url, kind, f"its answer is no message of OpenEnv: {answer!r:.100}") from error

    def _read(self, answer: str | bytes, lost: type[Exception], kind: str) -> Seen:
        message = json.loads(answer)
        data = message["data"]
        if message["type"] == "error":
            code, text = str(data.get("code")), str(data["message"])
            if code == "VALIDATION_ERROR":
                wrong = data.get("errors") or [{"loc": (), "msg": text}]
                raise Rejected("; ".join(f"{'.'.join(map(str, e['loc'])) or 'action'}: {e['msg']}" for e in wrong))
            if code == "EXECUTION_ERROR":
                raise Raised(text)
            self.close()
            raise _lost(lost if code in AGAIN else AgentError, self._url, kind, f"{code}: {text}")
        if message["type"] != "observation" or not isinstance(data["observation"], dict):
            raise ValueError(message["type"])
        reward, done = data["reward"], data["done"]
        if not isinstance(done, bool) or not (reward is None or isinstance(reward, int | float)):
            raise ValueError("reward and done")
        return Seen(data["observation"], None if reward is None else float(reward), done)


class Tasks:
    """The tasks of the environment at a URL, if it lists any, as those of a `Caller`."""

    def __init__(self, url: str, begin_s: float, split: str) -> None:
        """`split`: a split that it may have."""
        self._url, self._begin_s = url, begin_s
        names = self._get("list_environments", None)
        self._name = quote(str(names[0])) if names else ""
        self._splits = self._get(f"{self._name}/splits", None) if names else None
        lists = self._splits is not None or (names and self._count(split) is not None)
        known = {"num_tasks": lists, "list_splits": self._splits is not None}
        self.held = SimpleNamespace(**{name: True for name, has in known.items() if has})

    def call(self, name: str, *arguments: Any) -> Any:
        """Return the splits, or the number of tasks of one."""
        if name == "list_splits":
            return self._splits
        return self._count(arguments[0])["num_tasks"]

    def close(self) -> None:
        """There is nothing to close."""

    def _count(self, split: str) -> Any:
        return self._get(f"{self._name}/num_tasks", {"split": split})

    def _get(self, path: str, body: Any) -> Any:
        return until(self._begin_s, self._url, lambda: fetched(self._url, path, body))


def action_of(url: str, begin_s: float) -> RemoteAction | None:
    """Return the class of the actions; None: the environment takes the calls of its own tools."""
    found = until(begin_s, url, lambda: fetched(url, "schema", None))
    if not isinstance(found, dict) or not isinstance(found.get("action"), dict):
        raise AgentError(f"{url}/schema names no action", remedy="give the base URL of a server of OpenEnv 0.10")
    schema: dict[str, Any] = found["action"]
    return None if schema.get("title") in GENERIC else RemoteAction(schema)


def fetched(url: str, path: str, body: Any) -> Any:
    """Return the JSON value at a path; None if the server does not have it. Raises `_RefusedError`."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/{path}", data, {"Content-Type": "application/json"})
    direct = [urllib.request.ProxyHandler({})] if _local(urlsplit(url).hostname) else []
    try:
        with urllib.request.build_opener(*direct).open(request, timeout=OPEN_S) as answer:
            return json.loads(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        if error.code in (404, 405, 501):
            return None
        raise _RefusedError(f"HTTP {error.code} for /{path}") from error
    except OSError as error:
        raise _RefusedError(_told(error)) from error
    except (ValueError, RecursionError) as error:
        raise _RefusedError(f"the answer for /{path} is no JSON") from error


def until(seconds: float, url: str, work: Callable[[], T]) -> T:
    """Return what `work` returns, and try again while the server refuses, for at most `seconds`."""
    end, pause = time.monotonic() + seconds, PAUSE_S
    while True:
        try:
            return work()
        except _RefusedError as error:
            if time.monotonic() + pause > end:
                what = f"the server of OpenEnv at {url} has refused for {seconds:g} s: {error}"
                full = "start it with a larger max_concurrent_envs: each open conversation needs a session"
                raise AgentError(what, remedy=full if AGAIN[0] in str(error) else DOWN) from error
        time.sleep(pause)
        pause = min(2 * pause, MOST_PAUSE_S)


def _lost(kind: type[Exception], url: str, during: str, why: str) -> Exception:
    if kind is not AgentError:
        return kind(why)
    what = f"the session with the server of OpenEnv at {url} is lost during `{during}`: {why}"
    return AgentError(what, remedy=DOWN)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _local(host: str | None) -> bool:
    """Return whether a host is this machine, to which no proxy leads."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host or "").is_loopback
    return False
