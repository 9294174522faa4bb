"""The addresses of the viewer, and the application that answers them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rolemesh_facts import palette
from rolemesh_facts.labels import GOODPUT
from rolemesh_runtime.waiting import waiting_jobs
from rolemesh_view import data, pages, text
from rolemesh_view.actions import QUESTIONS, act
from rolemesh_view.guard import Access, Guard, same
from rolemesh_view.live import Live, Parts
from rolemesh_view.patience import LIMIT_S, MOST_S, PAGE_S, Silent, Stuck, in_turn, within
from rolemesh_view.settings import differences
from rolemesh_view.text import shown
from rolemesh_view.viewed import Runs, Viewed

__all__ = ["application", "compile_templates"]

HERE = Path(__file__).parent
GIVEN = ("do", "role", "rank", "ranks", "node", "steps")
Page = Callable[[Viewed, Any], dict[str, Any]]


def application(
    runs: Runs, access: Access, *, cookie: str = "rolemesh-view", hosts: Collection[str] = (), live: Live | None = None
) -> Starlette:
    """Return the application that shows `runs` to those whom `access` admits. `live` can end its streams.

    `hosts`: names for which it answers, besides ``localhost`` and addresses.
    """
    show = _Show(runs, access, live or Live())
    routes = [
        Route("/", show.jobs),
        Route("/live", show.live_jobs),
        Route("/palette.css", _palette),
        Route("/run/{name}/act", show.ask),
        Route("/run/{name}/act", show.act, methods=["POST"]),
        Route("/run/{name}/data/{what}", show.data),
        Route("/run/{name}/live", show.live),
        Route("/run/{name}/{page}", show.page),
        Route("/run/{name}", show.first),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, access=access, cookie=cookie, hosts=hosts)])


@cache
def templates() -> Environment:
    """Return the templates of the pages. A process compiles each of them once."""
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    texts = (text.shown, text.prose, text.duration, text.clock, text.percent, text.number, text.progress, text.rate)
    for filter_ in texts:
        found.filters[filter_.__name__] = filter_
    found.globals |= {"goodput": GOODPUT, "price_per_gpu_hour": 0.0}
    return found


def compile_templates() -> None:
    """Compile the templates now, so that no first page waits for it."""
    for name in templates().list_templates():
        templates().get_template(name)


class _Show:
    """Answers requests. Functions that read files run in threads, and for a limited time."""

    def __init__(self, runs: Runs, access: Access, streams: Live) -> None:
        self._runs, self._access, self._streams = runs, access, streams
        self._templates = templates()
        self._stuck: Stuck = {}

    async def jobs(self, request: Request) -> Response:
        return await self._within("", lambda: self._html("jobs", title="Jobs", stream="live", **self._jobs()))

    async def first(self, request: Request) -> Response:
        return RedirectResponse(f"./{quote(request.path_params['name'], safe='')}/overview", 303)

    async def page(self, request: Request) -> Response:
        return await self._within(request.path_params["name"], lambda: self._page(request), page=True)

    async def data(self, request: Request) -> Response:
        return await self._within(request.path_params["name"], lambda: self._data(request))

    async def ask(self, request: Request) -> Response:
        return await self._within(request.path_params["name"], lambda: self._ask(request))

    async def _within(self, name: str, work: Callable[[], Response], *, page: bool = False) -> Response:
        """Return the answer of `work`; 503 if the files of the run `name` ("": of all runs) do not come in time.

        While they come slowly, a `page` says how far the reading is, and loads again.
        """
        readers, path = self._stuck.get(name), self._runs.folder_of(name)
        if readers is None or not readers.is_alive():
            try:
                return await within(PAGE_S if page else MOST_S, work, path)
            except Silent as silent:
                readers = self._stuck[name] = silent.readers
        if page and readers.still_s() < LIMIT_S:
            run = self._runs.named(name)
            reads = dict(run.reads) if run is not None else {}
            at = os.path.relpath(readers.place, path) if readers.place and readers.place != str(path) else ""
            return self._html(
                "reading", title="Reading", root="../../", reads=reads, at=at, seconds=readers.lasted_s(), name=name
            )
        folder = shown(str(path), 300)
        return PlainTextResponse(
            f"503: {folder} has not answered for {LIMIT_S:g} s, so the viewer cannot show it. Look whether its file "
            "system is mounted and its server answers, and load the page again. Other runs are not affected.\n",
            503,
        )

    def _page(self, request: Request) -> Response:
        run, name = self._run(request), request.path_params["page"]
        page = pages.PAGES.get(name)
        if page is None:
            raise HTTPException(404, f"there is no page {name!r}")
        with run.lock:
            context = page(run, request.query_params)
        if name in ("metrics", "job"):
            [listed] = in_turn([self._runs], ["/"], Runs.all, self._stuck, self._runs.folder)
            others = listed if listed is not None else self._runs.known()
            context["others"] = [each.name for each in others if each is not run]
        asked = context["other"] if name == "job" else ""
        if asked and (other := self._runs.find(asked)) is not None:
            context["differences"] = differences(context["file"], other.facts.job_file())
        frame = pages.frame(run, name, request.query_params)
        return self._html(name, title=name.capitalize(), **{**frame, **context})

    async def live(self, request: Request) -> Response:
        """Return the stream of what changes on a page of a run."""
        query = request.query_params
        page = query.get("page", "")
        names = pages.STREAMED.get(page, ())
        try:
            run = await within(LIMIT_S, lambda: self._run(request), self._runs.folder_of(request.path_params["name"]))
        except Silent:
            return PlainTextResponse("503: the folder of the runs does not answer\n", 503)
        key = run, page, tuple(query.get(name, "") for name in names)
        former: dict[object, dict[str, str]] = {}
        return self._streams.stream(key, lambda: self._parts(run, page, query, former), _seen(request))

    async def live_jobs(self, request: Request) -> Response:
        """Return the stream of the list of jobs."""
        return self._streams.stream(
            "jobs", lambda: Parts({"live": self._text("jobs_part", **self._jobs())}), _seen(request)
        )

    def _jobs(self) -> dict[str, Any]:
        folder = self._runs.folder
        [listed] = in_turn([self._runs], ["/"], lambda runs: (runs.all(), runs.closed()), self._stuck, folder)
        (runs, closed), silent = (listed, []) if listed is not None else self._one_by_one()
        names = [run.name for run in runs]
        rows = in_turn(runs, names, pages.job, self._stuck, folder)
        told = [row or self._silent(name) for name, row in zip(names, rows, strict=True)]
        [waiting] = in_turn([folder], ["/waiting"], lambda of: list(waiting_jobs(of)), self._stuck, folder)
        told = [*map(pages.waiting, waiting or ()), *told, *map(self._silent, silent)]
        return {"rows": told, "folder": folder, "closed": closed}

    def _silent(self, name: str) -> dict[str, Any]:
        readers = self._stuck.get(name)
        return pages.silent(name, reads=readers is not None and readers.move(LIMIT_S))

    def _one_by_one(self) -> tuple[tuple[list[Viewed], list[str]], list[str]]:
        """Return what `_jobs` lists, and the names of folders that do not answer: some folder holds up the listing."""
        [paths] = in_turn([self._runs], ["/names"], Runs.paths, self._stuck, self._runs.folder)
        if paths is None:
            if not (known := self._runs.known()):
                raise Silent(self._stuck["/names"])
            return (known, []), []
        names = [path.name for path in paths]
        dates = in_turn(paths, names, self._runs.date, self._stuck, self._runs.folder)
        found = [(date, path) for date, path in zip(dates, paths, strict=True) if date is not None and date >= 0]
        found.sort(key=lambda each: (-each[0], each[1].name))
        silent = [name for date, name in zip(dates, names, strict=True) if date is None]
        return (self._runs.note([path for _, path in found]), []), silent

    def _parts(self, run: Viewed, page: str, query: Any, former: dict[object, dict[str, str]]) -> Parts:
        """Return the parts of a page. `former` has the latest ones that have a version, by it."""
        frame = pages.frame(run, page, query)
        version, found = pages.changing(run, page, query, next(iter(former), None))
        texts = former.get(version) or {}
        for name, content in found.items():
            texts[name] = content if isinstance(content, str) else self._text(f"{page}_part", **{**frame, **content})
        if version is not None and found:
            former.clear()
            former[version] = texts
        reads = found.get("live", {}).get("reads", False)
        over = not frame["live"] and frame["state"] != "new" and not reads
        return Parts({"mark": frame["mark"], "status": self._text("status", **frame), **texts}, over)

    def _data(self, request: Request) -> Response:
        run, name = self._run(request), request.path_params["what"]
        found = data.DATA.get(name)
        if found is None:
            raise HTTPException(404, f"there is no data {name!r}")
        try:
            with run.lanes_lock if name == "lanes" else run.lock:
                return Response(found(run, self._runs, request.query_params), media_type="application/json")
        except ValueError as error:
            raise HTTPException(400, str(error)) from error

    def _ask(self, request: Request) -> Response:
        run, query = self._run(request), request.query_params
        if query.get("do") not in QUESTIONS:
            raise HTTPException(404, "there is no such action")
        given = {key: value for key, value in query.items() if key in GIVEN}
        context = {"question": QUESTIONS[query["do"]], "given": given, "token": self._access.form}
        return self._html("act", title="Confirm", **pages.frame(run, "act", {}), **context)

    async def act(self, request: Request) -> Response:
        run = self._run(request)
        async with request.form() as form:
            given = {key: value for key, value in form.items() if isinstance(value, str)}
        token = given.get("token", "")
        own = same(token, self._access.form) or self._access.admits(token)
        if not own or given.get("sure") != "yes":
            return PlainTextResponse("403: an action needs the token and a confirmation\n", 403)
        said = await run_in_threadpool(act, run, given.get("do", ""), given)
        return self._html("said", title="Asked", **pages.frame(run, "act", {}), said=said)

    def _run(self, request: Request) -> Viewed:
        run = self._runs.find(request.path_params["name"])
        if run is None:
            raise HTTPException(404, "there is no such run")
        return run

    def _html(self, template: str, **context: Any) -> Response:
        return HTMLResponse(self._text(template, **context).encode(errors="replace"))

    def _text(self, template: str, **context: Any) -> str:
        """Return a template as text. Addresses are relative, since a proxy may show the viewer below a prefix: the
        pages of a run are two folders deep."""
        root = {"root": "../../" if "run" in context else "./"}
        return self._templates.get_template(f"{template}.html").render(root | context)


async def _palette(request: Request) -> Response:
    return Response(palette.css("fill-"), media_type="text/css")


def _seen(request: Request) -> str:
    """Return the id of the last event that the browser has seen; "" for none."""
    return request.headers.get("last-event-id", "")
