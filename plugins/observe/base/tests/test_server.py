"""The viewer's server on runs that end well, were killed, or were damaged: who may ask, and that all is text."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec
import pytest
from starlette.testclient import TestClient

from rolemesh_jobs.picture import job_status
from rolemesh_recorder.lines import Account, FlowEdge, FlowFile, FlowOp, Head, Stretch, encode
from rolemesh_recorder.node_record import NodeFile
from rolemesh_recorder.rows import Row
from rolemesh_recorder.usage import GPU, Usage, node_file
from rolemesh_report.writing import write_report
from rolemesh_runtime.lock import RunLock, lock_file
from rolemesh_runtime.waiting import WaitingJob
from rolemesh_view import application
from rolemesh_view.guard import Access
from rolemesh_view.pages import PAGES, changing
from rolemesh_view.viewed import Runs

TOKEN = "a-token"
ADDRESS = "http://127.0.0.1:8000"
T = 1_790_000_000_000_000
HOSTILE = "<script>alert(1)</script>\x00\x1b[31m\u202egnp"


def write_run(folder: Path, *, ended: bool, ranks: int = 2, text: str = HOSTILE) -> Path:
    """Write the files of a run of two roles, as the engine and the recorder write them."""
    record = folder / "record"
    record.mkdir(parents=True)
    flow = FlowFile(
        folder.name,
        (FlowOp(0, "source", "source.make"), FlowOp(1, "sink", "sink.take")),
        (FlowEdge(0, 0, 1, "batch", "Split(axis=0) → Split(axis=0)"),),
        {"source": ranks, "sink": 1},
        {"source": text, "sink": "roles:Sink"},
    )
    (record / "flow.json").write_bytes(msgspec.json.encode(flow))
    for role, rank in [*(("source", rank) for rank in range(ranks)), ("sink", 0)]:
        lines = [Head(role, rank, 0, 1, "node", T)]
        for step in range(10):
            at = T + step * 100_000
            if role == "sink":
                lines.append(Stretch("waiting", at, 60_000, step, 1, 0))
                lines.append(Stretch("computing", at + 60_000, 40_000, step, 1))
                lines.append(Account(at, 100_000, step, 1, {"computing": 40_000, "edge 0": 60_000}, queued={0: 3}))
            else:
                lines.append(Stretch("computing", at, 60_000, step, 0))
                lines.append(
                    Account(
                        at, 100_000, step, 1, {"computing": 60_000}, sent={0: (1000, 4, 2)}, travelled={0: (4000, 200)}
                    )
                )
        (record / f"{role}-{rank}").mkdir()
        (record / f"{role}-{rank}" / "000000.jsonl").write_bytes(b"".join(encode(line) + b"\n" for line in lines))
    rows = record / "rows" / "source-0"
    rows.mkdir(parents=True)
    row = Row(3, "source.make", 0, {"prompt": text, "logprobs": [-1.0, -2.0], "sampler_logprobs": [-1.5, -2.0]})
    (rows / "000000.jsonl").write_bytes(msgspec.json.encode(row) + b"\n\xff\xfe{not json\n")
    events = [
        {"kind": "agent_up", "data": {"agent": "node0", "node": "node"}},
        {"kind": "rank_up", "data": {"role": "sink", "rank": 0, "generation": 0, "pid": 7, "node": text}},
        {"kind": "failure", "data": {"failure": {"role": "sink", "rank": 0, "message": text, "log_tail": text}}},
        {"kind": "recovery_planned", "data": {"number": 1, "plan": {"level": "process"}, "trail": [text]}},
    ]
    lines_ = [json.dumps({"seq": n, "epoch": 1, "time": T / 1e6 + n / 10, **event}) for n, event in enumerate(events)]
    (folder / "events.jsonl").write_text("\n".join(lines_) + "\n")
    rest: dict[str, object] = {"operators": {}, "roles": {}, "staleness": {}, "records": {}}
    metrics = [{"step": step, "steps": 1, "time": 1.0 * step, "loss": 1 / (step + 1), **rest} for step in range(10)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    info = {"name": folder.name, "run_dir": str(folder), "steps": 10, "roles": {"source": ranks, "sink": 1}}
    info |= {"operators": [], "backend": "local", "origin": "", "base": ""}
    (folder / "run.json").write_text(json.dumps(info))
    (folder / "job.yaml").write_text(f"name: {text!r}\n")
    (folder / "logs").mkdir()
    (folder / "logs/sink-0.log").write_bytes(b"begin\n" + text.encode() + b"\xff\n")
    if ended:
        (folder / "result.json").write_text(json.dumps({"status": "done", "message": text, "goodput": {"share": 0.9}}))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "ended", ended=True)
    write_run(root / "killed", ended=False)
    damaged = write_run(root / "damaged", ended=False)
    for path in damaged.rglob("*"):
        if path.is_file():
            path.write_bytes(b"\x00\xff{" + path.read_bytes()[:40])
    return Runs(root)


@pytest.fixture(scope="module")
def client(runs: Runs) -> TestClient:
    return TestClient(application(runs, Access(TOKEN)), ADDRESS, headers={"authorization": f"Bearer {TOKEN}"})


PATHS = ["/", *(f"/run/{run}/{page}" for run in ("ended", "killed", "damaged") for page in PAGES)]
PATHS += ["/run/ended/failure?number=1", "/run/ended/logs?find=SCRIPT", "/run/ended/act?do=stop"]


@pytest.mark.parametrize("path", PATHS)
def test_a_page_shows_texts_of_a_run_as_text_and_names_no_other_machine(client: TestClient, path: str) -> None:
    page = client.get(path)
    assert page.status_code == 200, page.text[-500:]
    assert "<script>alert" not in page.text
    assert not re.search("[\x00\x1b\u202e]", page.text)
    addresses = re.findall(r"""(?:src|href|action|data-source|data-stream)=["']([^"'#]*)""", page.text)
    assert not [each for each in addresses if re.match(r"\w+:|/", each)], "a proxy may show the viewer below a prefix"
    found = [urlsplit(urljoin(f"/prefix{path}", html.unescape(each))).path for each in addresses]
    assert not [each for each in found if not each.startswith("/prefix/")]
    for each in {each.removeprefix("/prefix") for each in found if not each.endswith("live")}:
        assert client.get(each).status_code in (200, 404 if "/act" in each else 200), each
    assert page.headers["content-security-policy"].startswith("default-src 'self'")


def test_the_list_begins_with_jobs_that_wait_for_room_and_says_for_what(runs: Runs, client: TestClient) -> None:
    with WaitingJob(runs.folder / "second", lambda _: None) as waiting:
        waiting.say(f"job first has cpu 3 {HOSTILE}")
        first = client.get("/").text.partition("<tbody>")[2].partition("</tr>")[0]
        assert re.findall(r'data-label="(?:job|state)">(?:<span[^>]*>)?(.*?)<', first) == ["second", "waiting"]
        assert "waits for room (pid" in first
        assert "job first has cpu 3" in first
        assert "<script>alert" not in first
        assert "<a " not in first, "it has no pages yet"
    assert "waiting" not in client.get("/").text


@pytest.mark.parametrize(
    "path", ["/", "/live", "/run/ended/live", "/run/ended/data/lanes", "/static/style.css", "/nowhere"]
)
def test_a_request_without_the_token_is_refused(runs: Runs, path: str) -> None:
    client = TestClient(application(runs, Access(TOKEN)), ADDRESS)
    for given in ("", "?token=wrong"):
        answer = client.get(path + given)
        assert (answer.status_code, "ended" in answer.text) == (401, False)


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {"host": "evil.example"}, 421),
        ("GET", {"host": "evil.example:80", "authorization": "none"}, 421),
        ("GET", {"host": "[::1]:8000"}, 200),
        ("GET", {"host": "LOCALHOST:8000"}, 200),
        ("GET", {"host": "jobs.example"}, 200),
        ("POST", {"host": "127.0.0.1:80", "origin": "http://127.0.0.1:80"}, 200),
        ("POST", {"host": "127.0.0.1:80", "origin": "https://jobs.example"}, 200),
        ("POST", {"host": "127.0.0.1:80", "origin": "http://127.0.0.1:81"}, 403),
        ("POST", {"host": "127.0.0.1:80", "origin": "http://localhost:80"}, 403),
        ("POST", {"host": "127.0.0.1:80", "origin": "null"}, 403),
    ],
)
def test_a_foreign_host_name_and_a_form_of_another_site_are_refused(
    runs: Runs, method: str, headers: dict[str, str], status: int
) -> None:
    client = TestClient(application(runs, Access(TOKEN), hosts=["jobs.example"]), ADDRESS)
    form = {"do": "stop", "sure": "yes", "token": TOKEN} if method == "POST" else None
    answer = client.request(
        method, "/run/killed/act?do=stop", headers={"authorization": f"Bearer {TOKEN}"} | headers, data=form
    )
    assert answer.status_code == status
    if status == 421:
        assert "`rolemesh view --allow-host evil.example`" in answer.text


def test_the_link_with_the_token_leads_to_the_page_without_it(runs: Runs) -> None:
    client = TestClient(application(runs, Access(TOKEN)), ADDRESS)
    page = client.get(f"/run/ended/rows?token={TOKEN}&step=3")
    assert (page.status_code, page.url.path, page.url.query) == (200, "/run/ended/rows", b"step=3")
    assert page.history[0].headers["location"] == "./rows?step=3", "a proxy may show the viewer below a prefix"
    assert client.get("/").status_code == 200
    first = client.get("/run/ended")
    assert (first.status_code, first.history[0].headers["location"]) == (200, "./ended/overview")


def test_a_link_opens_one_browser_and_no_page_shows_its_secrets(runs: Runs) -> None:
    access = Access(TOKEN)
    used: list[str] = []
    token = access.link(lambda: used.append("once"))
    app = application(runs, access)
    first, other = TestClient(app, ADDRESS), TestClient(app, ADDRESS)
    assert [first.get(f"/?token={token}").status_code for _ in range(2)] == [200, 200]  # the second by its cookie
    assert other.get(f"/?token={token}").status_code == 401
    assert other.get("/", headers={"authorization": f"Bearer {token}"}).status_code == 401
    assert used == ["once"]
    question = first.get("/run/killed/act?do=stop").text
    assert access.form in question
    assert access.cookie not in question
    for stolen in (access.form, access.cookie):
        assert other.get("/", headers={"authorization": f"Bearer {stolen}"}).status_code == 401
        assert other.get(f"/?token={stolen}").status_code == 401


def test_the_lanes_have_the_pieces_of_a_window_and_the_ways_of_values(client: TestClient) -> None:
    answer = client.get("/run/killed/data/lanes?since=100000&until=200000").json()
    assert [lane[0] for lane in answer["lanes"]] == ["source/0", "source/1", "sink/0"]
    assert [piece[:3] for piece in answer["lanes"][2][1]] == [[100000, 60000, "waiting"], [160000, 40000, "computing"]]
    assert [1, 160000, 2, 160000, 0, 1] in answer["arrows"]


def test_the_page_of_the_flow_has_queue_credits_and_rates_of_each_edge(client: TestClient) -> None:
    page = client.get("/run/ended/flow").text
    found = dict(re.findall('data-number="(.*?)">(.*?)<', page))
    assert found["waiting"] == "60%"
    assert (found["queue"], found["under_way"], found["credits"]) == ("3", "4", "2")
    assert (found["bytes_s"], found["values_s"], found["staleness"]) == ("20 kB/s", "1", "0")
    assert found["saved"] == "95%"
    assert "saves 95%" in page


def test_bars_of_waits_and_of_work_have_the_colours_of_their_phases(client: TestClient) -> None:
    page = client.get("/run/ended/flow").text
    bars = set(re.findall(r'fill-(\w+)" width="[\d.]+" height="1"/></svg> <b>.*?</b> (computes|waits for batch)', page))
    assert bars == {("computing", "computes"), ("waiting", "waits for batch")}


def test_metrics_of_two_runs_are_on_one_axis(client: TestClient) -> None:
    answer = client.get("/run/ended/data/metrics?name=loss&with=killed,none&smoothing=centred&strength=3").json()
    assert (answer["runs"], answer["steps"]) == (["ended", "killed"], list(range(10)))
    assert answer["raw"][0][:2] == [1.0, 0.5]
    assert answer["smooth"][0][1] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3), "beside the values themselves"
    assert answer["end"] == 9


def test_a_curve_tells_values_that_are_not_finite_from_steps_without_one(tmp_path: Path) -> None:
    for name, values in (("one", [1.0, None, -1.0, 0.0]), ("two", [2.0])):
        run = write_run(tmp_path / name, ended=True)
        rest: dict[str, object] = {"operators": {}, "roles": {}, "staleness": {}, "records": {}}
        lines = [{"step": at, "steps": 1, "time": 1.0, "loss": each, **rest} for at, each in enumerate(values)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    viewer = TestClient(
        application(Runs(tmp_path), Access(TOKEN)), ADDRESS, headers={"authorization": f"Bearer {TOKEN}"}
    )
    found = viewer.get("/run/one/data/metrics?name=loss&with=two").json()
    assert found["raw"] == [[1.0, "nan", -1.0, 0.0], [2.0, None, None, None]]
    assert (found["odd"], found["low"]) == ([1, 0], [2, 0])


def test_the_tokens_of_a_row_are_coloured_by_the_difference_of_log_probabilities(client: TestClient) -> None:
    assert 'class="token' not in client.get("/run/ended/rows").text, "colours are there on demand"
    page = client.get("/run/ended/rows?row=0").text
    assert 'class="token s8" title="0.5"' in page
    assert "coloured by logprobs − sampler_logprobs" in page


@pytest.mark.parametrize("form", [{"do": "stop", "sure": "yes"}, {"do": "stop", "token": TOKEN}])
def test_an_action_needs_the_token_in_its_form_and_a_confirmation(client: TestClient, form: dict[str, str]) -> None:
    assert client.post("/run/killed/act", data=form).status_code == 403


def test_an_action_on_a_job_without_a_living_process_is_refused_in_words(client: TestClient) -> None:
    answer = client.post("/run/killed/act", data={"do": "stop", "sure": "yes", "token": TOKEN})
    assert "killed does not run on this machine" in answer.text


def test_the_stream_of_an_ended_run_ends_and_repeats_nothing_that_the_browser_has(client: TestClient) -> None:
    page = client.get("/run/ended/flow").text
    [stream], [mark] = re.findall('data-stream="(.*?)"', page), re.findall('data-mark="(.*?)"', page)
    sent = client.get(html.unescape(stream)).text
    assert re.findall("event: (.*)", sent) == ["mark", "status", "live", "over"]
    assert f"data: {html.unescape(mark)}\n" in sent
    assert "<script>alert" not in sent
    last = re.findall("id: (.*)", sent)[-1]
    assert re.findall("event: (.*)", client.get(stream, headers={"last-event-id": last}).text) == ["over"]


def test_the_stream_of_the_page_of_logs_has_the_end_of_the_log_that_the_page_shows(client: TestClient) -> None:
    [stream] = re.findall('data-stream="(.*?)"', client.get("/run/ended/logs").text)
    sent = client.get(html.unescape(stream)).text
    assert re.findall("event: (.*)", sent) == ["mark", "status", "files", "log", "over"]
    assert re.search(r'data: "begin\\n<script>.*␛\[31m', sent)
    [stream] = re.findall('data-stream="(.*?)"', client.get("/run/ended/logs?find=script").text)
    assert "event: log" not in client.get(html.unescape(stream)).text


def test_lists_of_a_living_run_are_made_again_only_when_there_is_something_new(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ended=False)
    lock = RunLock(lock_file(folder))
    assert lock.share()
    runs = Runs(tmp_path)
    client = TestClient(application(runs, Access(TOKEN)), ADDRESS, headers={"authorization": f"Bearer {TOKEN}"})
    run = runs.find("run")
    assert run is not None
    for page, query in (("events", {"kind": "failure"}), ("placement", {}), ("failures", {}), ("rows", {"step": "3"})):
        [stream] = re.findall('data-stream="(.*?)"', client.get(f"/run/run/{page}", params=query).text)
        assert html.unescape(stream) == f"../../run/run/live?{urlencode({'page': page, **query})}"
        version, found = changing(run, page, query)
        assert found["live"]
        assert changing(run, page, query, version) == (version, {})
        news = folder / ("record/rows/source-0/000000.jsonl" if page == "rows" else "events.jsonl")
        with news.open("a") as file:
            file.write(news.read_text(errors="ignore").partition("\n")[0] + "\n")
        assert changing(run, page, query, version)[1]["live"]
    for page in ("rows?row=0&step=3", "rows?find=x", "job"):
        assert 'data-stream="../../run/run/live?page="' in client.get(f"/run/run/{page}").text
    lock.close()
    assert 'data-stream="../../run/run/live?page="' in client.get("/run/run/events").text


def test_the_page_of_a_recovery_has_its_events_also_if_the_clock_has_stepped_meanwhile(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ended=False)
    for step_s in (-3600, 864_000):
        with (folder / "events.jsonl").open("a") as file:
            for number, kind in enumerate(("rank_up", "recovered", "rank_done"), 10):
                event = {"seq": number, "epoch": 1, "time": T / 1e6 + step_s, "kind": kind, "data": {"number": 1}}
                file.write(json.dumps(event) + "\n")
        client = TestClient(
            application(Runs(tmp_path), Access(TOKEN)), ADDRESS, headers={"authorization": f"Bearer {TOKEN}"}
        )
        page = client.get("/run/run/failure?number=1").text
        kinds = re.findall(r'<td class="time">.*?</td><td>(.*?)</td>', page)
        assert {"recovery_planned", "rank_up", "recovered"} <= set(kinds)
        assert "rank_done" not in kinds or step_s > 0
        assert not re.search(r"<dd>-\d", page)


def test_the_page_of_failures_says_how_each_recovery_ended(client: TestClient) -> None:
    assert '<td data-label="ready after">no: the job is done</td>' in client.get("/run/ended/failures").text
    assert '<td data-label="ready after">not yet</td>' in client.get("/run/killed/failures").text


def test_an_interrupted_run_has_the_reason_and_the_steps_that_its_status_has(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ended=False)
    (folder / "events.jsonl").unlink()
    said = "its driver (pid 7) has gone without a word, and the job was not detached"
    result = {"status": "interrupted", "message": said, "committed_steps": 7, "steps": 10, "wall_s": 3.0}
    (folder / "result.json").write_text(json.dumps(result))
    client = TestClient(
        application(Runs(tmp_path), Access(TOKEN)), ADDRESS, headers={"authorization": f"Bearer {TOKEN}"}
    )
    status = job_status(folder)
    for page in ("overview", "flow", "failures"):
        text = client.get(f"/run/run/{page}").text
        assert status["message"] in text
        assert f"{status['committed_steps']} of {status['steps']}" in text
        assert "Nothing has failed" not in text
    write_report(folder, tmp_path / "report.html")
    report = (tmp_path / "report.html").read_text()
    assert f"The job is interrupted: {said}" in report
    assert "<b>7 of 10</b>" in report


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        ("killed", "explains 60% of a step's time, and below 70% other numbers of ranks would change little"),
        ("silent", "the record does not say how busy source is"),
    ],
)
def test_a_missing_prediction_has_a_reason(client: TestClient, runs: Runs, run: str, reason: str) -> None:
    if run == "silent" and not (runs.folder / run).exists():
        for rank in (write_run(runs.folder / run, ended=False) / "record").glob("source-*"):
            shutil.rmtree(rank)
    assert reason in client.get(f"/run/{run}/flow").text


def test_the_page_of_placement_says_at_a_node_why_its_drain_waits(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ended=False)
    asked = {"kind": "drain_asked", "data": {"node": "node", "reason": "by jo", "notice_s": 0.0}}
    waiting = {"kind": "drain_waiting", "data": {"nodes": ["node"], "missing": "needs cpu 4"}}
    with (folder / "events.jsonl").open("a") as file:
        for number, event in enumerate((asked, waiting), 10):
            file.write(json.dumps({"seq": number, "epoch": 1, "time": T / 1e6, **event}) + "\n")
    client = TestClient(
        application(Runs(tmp_path), Access(TOKEN)), ADDRESS, headers={"authorization": f"Bearer {TOKEN}"}
    )
    node = client.get("/run/run/placement").text.partition('<section class="node-box" data-key="node">')[2]
    assert "needs cpu 4" in node.partition("</section>")[0]


def test_the_page_of_placement_shows_some_nodes_and_finds_the_others_by_name_or_rank(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ended=False)
    with (run / "events.jsonl").open("a") as file:
        for at in range(250):
            data = {"role": "source", "rank": at, "generation": 0, "pid": 9, "node": f"node{at:03}"}
            event = {"seq": 9 + at, "epoch": 1, "time": T / 1e6, "kind": "rank_up", "data": data}
            file.write(json.dumps(event) + "\n")
    (run / "record/flow.json").unlink()
    client = TestClient(
        application(Runs(tmp_path), Access(TOKEN)), ADDRESS, headers={"authorization": f"Bearer {TOKEN}"}
    )

    def shown(find: str) -> list[str]:
        return re.findall('data-key="(node.*?)"', client.get("/run/run/placement", params={"find": find}).text)

    assert len(shown("")) == 199, "and one with another name"
    assert "200 of 252 nodes. Name a node or a rank" in client.get("/run/run/placement").text
    assert shown("node249") == shown("source/249") == ["node249"]
    assert shown("source/24") == ["node024"]


def test_the_page_of_placement_shows_the_load_of_each_node(tmp_path: Path) -> None:
    file = NodeFile(node_file(write_run(tmp_path / "run", ended=False), "node"), 10**6)
    for at in range(3):
        gpu = GPU(0, 0.5, 10 * 10**9, 140 * 10**9, 55.0, HOSTILE)
        file.append(Usage(T + 2_000_000 * at, 2_000_000, 1.5, 4.0, 8 * 10**9, 16 * 10**9, 5000, 0, (gpu,)))
    client = TestClient(
        application(Runs(tmp_path), Access(TOKEN)), ADDRESS, headers={"authorization": f"Bearer {TOKEN}"}
    )
    node = client.get("/run/run/placement").text.partition('<section class="node-box" data-key="node">')[2]
    node = node.partition("</section>")[0]
    for text in (
        "1.5 of 4",
        "8.0 GB of 16.0 GB",
        "50% busy, 55 °C",
        "10.0 GB of 140.0 GB",
        "2.5 kB/s, at most 2.5 kB/s",
    ):
        assert text in node
    assert (node.count("<svg"), "<script>" in node) == (5, False)


def test_the_page_of_logs_opens_with_a_log_that_has_text(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    for name, text in (("a-0", ""), ("b-0", "here"), ("master", "")):
        (run / "logs" / f"{name}.log").write_text(text)
    client = TestClient(
        application(Runs(tmp_path), Access("t")), "http://127.0.0.1", headers={"authorization": "Bearer t"}
    )
    assert re.search("<h2>b-0.log</h2><pre [^>]*>here</pre>", client.get("/run/run/logs").text)
    (run / "logs" / "master.log").write_text("there")
    assert "<h2>master.log</h2>" in client.get("/run/run/logs").text
    assert "<h2>a-0.log</h2>" in client.get("/run/run/logs?file=a-0.log").text


def test_the_page_of_logs_says_what_it_leaves_out(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "its last 100 kB" not in client.get("/run/ended/logs").text
    monkeypatch.setattr("rolemesh_view.logs.TAIL_BYTES", 5)
    monkeypatch.setattr("rolemesh_view.logs.SEARCH_BYTES", 5)
    assert "its last 100 kB" in client.get("/run/ended/logs?file=sink-0.log").text
    assert "Only the last 50 MB were searched of: sink-0.log" in client.get("/run/ended/logs?find=none").text


def test_the_page_of_the_job_file_compares_it_with_that_of_another_run(client: TestClient, runs: Runs) -> None:
    (runs.folder / "killed" / "job.yaml").write_text("name: <b>\nsteps: 3\n")
    page = client.get("/run/ended/job?with=killed").text
    assert re.search(">steps</td><td [^>]*>–</td><td [^>]*>3</td>", page)
    assert "&lt;b&gt;</td>" in page
    assert "say the same" in client.get("/run/ended/job?with=ended").text
    assert "There is no run none here" in client.get("/run/ended/job?with=none").text
