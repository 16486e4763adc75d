"""`transfer serve`: what is asked over HTTP, what is refused, and how it ends."""

import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from dataclasses import fields
from functools import reduce
from http.client import HTTPConnection
from operator import getitem

import jsonschema
import numpy as np
import pytest
from starlette.testclient import TestClient

import transfer_cli
from tests import task_kinds
from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.config.schema import ServingConfig
from transfer_cli.serving import command
from transfer_cli.serving.app import Service
from transfer_cli.serving.batching import Kind
from transfer_cli.serving.server import run_server

HERE = "http://127.0.0.1"
BEARER = "may-ask"
TEXTS = ["Who wrote it ?", "", "Where is the river of the north , and who are we ?", "Träume 🙂"]


@pytest.fixture(scope="module")
def models(finetuned, language_model):
    """Return a classifier and a language model, by their names."""
    return {"kinds": transfer_cli.load(finetuned), "text": transfer_cli.load(language_model("clm"))}


@pytest.fixture
def service(models):
    """Return how to have a service of these models, by limits that are not the usual ones."""

    def make(limits=None, **options):
        return Service(models, ServingConfig(**(limits or {})), **options)

    return make


@pytest.fixture
def client(service):
    """Return how to ask such a service."""

    def make(limits=None, **options):
        app = service(limits, **options).app
        return TestClient(app, HERE, raise_server_exceptions=False)

    return make


@contextmanager
def running(service):
    """Yield the port at which a service listens in a thread."""
    with closing(command._bind("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=run_server, args=(service, listening, 20.0))
        thread.start()
        try:
            assert asked(listening.getsockname()[1], "GET", "/health")[0] == 200
            yield listening.getsockname()[1]
        finally:
            service.draining = True
            thread.join(20)
    assert not thread.is_alive()


# --- answers -----------------------------------------------------------------------------------


def test_answers_are_those_of_predict(client, models, finetuned, transfer, type_in):
    type_in("\n".join(TEXTS))
    lines = [*map(json.loads, transfer("predict", finetuned, "-").out.splitlines())]

    answer = client().post("/predict", json={"texts": TEXTS})

    assert answer.status_code == 200
    answers = answer.json()["predictions"]
    assert [{"text": text, **row} for text, row in zip(TEXTS, answers, strict=True)] == lines
    assert answers[1]["warning"] == "empty"
    assert answers == models["kinds"].predict(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*task_kinds.KINDS])
def test_each_kind_of_task_answers_as_predict_does(kind, task_run, transfer, tmp_path):
    made = {"choice": task_kinds.choice, "dialog": task_kinds.turn, "span": task_kinds.asked}
    made["similarity"] = lambda n: {"text": f"the red bridge {n}", "pair": "a bridge"}
    row = made.get(kind, lambda n: {"text": f"the red bridge {n}"})
    texts, run = [row(n) for n in range(5)], task_run(kind)
    (tmp_path / "own.jsonl").write_text(task_kinds.lines(texts))
    out = transfer("predict", run, tmp_path / "own.jsonl").ok().out
    app = Service({kind: transfer_cli.load(run)}, ServingConfig()).app

    answers = TestClient(app, HERE).post("/predict", json={"texts": texts}).json()["predictions"]

    for answer, line in zip(answers, map(json.loads, out.splitlines()), strict=True):
        assert answer == {name: line[name] for name in answer}


def ask_together(port, requests):
    """Return the status and the content of each answer to requests that come at once."""

    async def ask(texts):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(as_http({"texts": texts}))
        answer = await reader.read()
        writer.close()
        return int(answer.split()[1]), json.loads(answer.partition(b"\r\n\r\n")[2])

    async def ask_all():
        return await asyncio.gather(*map(ask, requests))

    return asyncio.run(ask_all())


def test_requests_that_come_together_pass_through_the_model_together(service, models):
    texts = [f"Who is number {n} ?" for n in range(300)]
    with running(service()) as port:
        answers = ask_together(port, [[text] for text in texts])
        _, counted = asked(port, "GET", "/metrics")

    assert {code for code, _ in answers} == {200}
    together = [said["predictions"][0]["label"] for _, said in answers]
    assert together == [row["label"] for row in models["kinds"].predict(texts)]
    assert 'transfer_texts_total{model="kinds"} 300' in counted
    assert int(re.search(r'batches_total\{model="kinds"\} (\d+)', counted)[1]) < 150


def as_http(body, path="/predict"):
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


def asked(port, method, path, body=None):
    """Return the status and the text of an answer."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=20)) as line:
        line.request(method, path, None if body is None else json.dumps(body))
        answer = line.getresponse()
        return answer.status, answer.read().decode()


def test_a_text_goes_on_at_once_or_while_it_grows(client, models):
    asked = {"model": "text", "prompt": "The river", "max_tokens": 8, "seed": 3, "top_p": 0.9}
    text = models["text"].generate("The river", max_tokens=8, seed=3, top_p=0.9)

    whole = client().post("/generate", json=asked).json()
    events = client().post("/generate", json={**asked, "stream": True})

    assert whole == {"text": text, "tokens": 8, "ended": "max_tokens"}
    assert events.headers["content-type"].startswith("text/event-stream")
    *parts, end = events.text.removesuffix("\n\n").split("\n\n")
    assert "".join(json.loads(part.removeprefix("data: "))["text"] for part in parts) == text
    assert end == 'event: end\ndata: {"tokens": 8, "ended": "max_tokens"}'


def test_vectors_are_those_of_embed(client, models, monkeypatch):
    texts = ["Who wrote it ?", ["Where ?", "There ."]]

    vectors = client().post("/embed", json={"texts": texts}).json()["vectors"]

    assert vectors == models["kinds"].embed(texts).tolist()
    monkeypatch.setattr(models["kinds"], "embed", lambda texts: np.full((len(texts), 2), np.nan))
    assert client().post("/embed", json={"texts": texts}).status_code == 500


def test_what_it_takes_and_gives_is_as_it_says(client):
    client = client()
    told = client.get("/openapi.json").json()

    def schema(*place):
        node = reduce(getitem, (*place, "content", "application/json", "schema"), told)
        return {**node, "components": told["components"]}

    for path, body in {
        "/predict": {"texts": TEXTS},
        "/embed": {"texts": [["a", "b"]]},
        "/generate": {"prompt": "The", "model": "text", "max_tokens": 2},
    }.items():
        answer = client.post(path, json=body)
        jsonschema.validate(body, schema("paths", path, "post", "requestBody"))
        jsonschema.validate(answer.json(), schema("paths", path, "post", "responses", "200"))
        refused = client.post(path, json={"texts": 3})
        jsonschema.validate(refused.json(), schema("components", "responses", "Error"))
    labels = client.get("/labels").json()
    assert (labels["model"], labels["models"]) == ("kinds", ["kinds", "text"])
    assert labels["labels"] == sorted(labels["labels"])
    assert client.get("/labels?model=text").json()["abilities"] == ["generate", "embed"]
    assert client.get("/health").json() == {"status": "ok"}


# --- what is refused ---------------------------------------------------------------------------

OF_TEXT = {"model": "text", "prompt": "a"}

BAD = {
    "no JSON": ("/predict", b"nope", 400, "JSON"),
    "no UTF-8": ("/predict", b"\xff", 400, "utf-8"),
    "no object": ("/predict", b"[]", 400, "JSON object"),
    "deep": ("/predict", b"[" * 100_000, 400, "deep"),
    "large": ("/predict", b'{"texts": ["' + b"a" * 10_000_000 + b'"]}', 413, "bytes"),
    "long": ("/predict", {"texts": ["a", "b" * 100_001]}, 422, "line 2"),
    "many": ("/predict", {"texts": ["a"] * 1001}, 422, "1,001"),
    "no texts": ("/predict", {}, 422, "texts"),
    "one text": ("/predict", {"texts": "a"}, 422, "list"),
    "number": ("/predict", {"texts": ["a", 3]}, 422, "texts"),
    "half a surrogate": ("/predict", b'{"texts": ["\\ud800"]}', 422, "surrogate"),
    "half a key": ("/predict", b'{"texts": [{"text": {"\\ud800": "a"}}]}', 422, "text"),
    "no text": ("/predict", {"texts": [{"a": 1}]}, 422, "texts"),
    "no such model": ("/predict", {"texts": ["a"], "model": "kind"}, 404, "'kinds'"),
    "cannot": ("/predict", {"texts": ["a"], "model": "text"}, 404, "/generate"),
    "cannot write": ("/generate", {"prompt": "a"}, 404, "/predict"),
    "half of a vector": ("/embed", b'{"texts": ["\\ud800"]}', 422, "surrogate"),
    "no prompt": ("/generate", {"model": "text"}, 422, "prompt"),
    "empty prompt": ("/generate", {"model": "text", "prompt": ""}, 422, "prompt"),
    "long prompt": ("/generate", {"model": "text", "prompt": "a " * 999}, 422, "prompt"),
    "no such key": ("/generate", {**OF_TEXT, "max_token": 3}, 422, "'max_tokens'"),
    "no such key beside texts": ("/embed", {"texts": ["a"], "modle": "text"}, 422, "'model'"),
    "no yes or no": ("/generate", {**OF_TEXT, "stream": "yes"}, 422, "stream"),
    "other command's key": ("/generate", {**OF_TEXT, "output": "f"}, 422, "output"),
    "no number": ("/generate", {**OF_TEXT, "top_p": "x"}, 422, "top_p"),
    "infinity": ("/generate", b'{"model": "text", "prompt": "a", "top_p": 1e999}', 422, "top_p"),
    "no such page": ("/nothing", {}, 404, "Not Found"),
}  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "said"), BAD.values(), ids=BAD)
def test_a_bad_request_is_told_why_and_harms_no_other(client, path, body, status, said):
    client = client()
    given = {"content": body} if isinstance(body, bytes) else {"json": body}

    answer = client.post(path, **given)

    assert (answer.status_code, [*answer.json()]) == (status, ["error"])
    assert said in answer.json()["error"]
    assert client.post("/predict", json={"texts": ["Who ?"]}).status_code == 200


@pytest.mark.parametrize(
    ("limits", "status", "said"),
    [({"queue": 1}, 429, "wait"), ({"timeout_seconds": 1e-6}, 504, "timeout_seconds"),
     ({"max_texts": 1}, 422, "most is 1"), ({"max_bytes": 9}, 413, "max_bytes"),
     ({"max_characters": 3}, 422, "most is 3")],
)  # fmt: skip
def test_what_is_beyond_a_limit_is_refused(client, limits, status, said):
    answer = client(limits).post("/predict", json={"texts": ["Who ?", "Who are we ?"]})

    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_a_token_has_to_come_with_what_tells_of_a_model(client):
    client = client(token=BEARER, is_local=False)
    keys = {"Authorization": f"Bearer {BEARER}"}

    assert [client.get(path).status_code for path in ("/", "/health", "/labels", "/metrics")] == [
        200, 200, 401, 401,
    ]  # fmt: skip
    refused = client.post("/predict", json={"texts": ["a"]}, headers={"Authorization": "Bearer x"})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert client.post("/predict", json={"texts": ["a"]}, headers=keys).status_code == 200
    # No header makes one path look like another, which is open.
    host = {"Host": "localhost/health?"}
    assert client.post("/predict", json={"texts": ["a"]}, headers=host).status_code == 401


def test_pages_of_other_sites_ask_only_where_they_may(client):
    def ask(client, **headers):
        answer = client.post("/predict", json={"texts": ["a"]}, headers=headers)
        return answer.status_code, answer.headers.get("access-control-allow-origin")

    default, told = client(), client(origins=["https://a.org"])

    assert ask(default, origin="https://a.org") == (403, None)
    assert ask(default, origin=HERE) == (200, None)
    assert ask(default, host="a.org") == (403, None)
    assert ask(told, origin="https://a.org") == (200, "https://a.org")
    assert ask(told, origin="https://b.org")[0] == 403
    assert ask(client(is_local=False), host="a.org")[0] == 200


REFUSED = {
    "port=99999": "port", "host=nowhere.invalid": "host", "serve.token_file=none.txt": "token_file",
    "serve.token_file=empty.txt": "token_file", "serve.queue=10": "serve.queue",
    "serve.timeout_seconds=0": "timeout_seconds", "serve.batch=0": "serve.batch",
    "serve.origins=[a.org]": "serve.origins", "serve.origins=[https://a.org/page]": "serve.origins",
    "{run}": "run",
}  # fmt: skip


@pytest.mark.parametrize(("words", "key"), REFUSED.items(), ids=REFUSED)
def test_a_mistake_ends_it_with_a_line(words, key, finetuned, transfer, tmp_path):
    (tmp_path / "empty.txt").write_text("\n")

    transfer("serve", finetuned, words.format(run=finetuned)).refusal(key)


def test_a_port_that_is_taken_ends_it_with_a_line(finetuned, transfer):
    with closing(command._bind("127.0.0.1", 0)) as other:
        ended = transfer("serve", finetuned, f"port={other.getsockname()[1]}")

    ended.refusal("port")


def test_without_its_packages_it_names_them(finetuned, transfer, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)

    transfer("serve", finetuned).refusal("extra serve")


# --- how it ends -------------------------------------------------------------------------------


def test_what_nobody_waits_for_any_more_is_not_begun(service):
    service, seen, begun, go = service(), [], threading.Event(), threading.Event()

    def work(texts):
        seen.extend(text.text for text in texts)
        begun.set()
        assert go.wait(20)
        return [{"label": "a"} for _ in texts]

    service._models["kinds"].kinds["predict"] = Kind(work, 1)
    with running(service) as port:
        with socket.create_connection(("127.0.0.1", port), 20) as line:
            line.sendall(as_http({"texts": ["first", "second"]}))
            assert begun.wait(20)
        for _ in range(200):  # that it has gone is seen after a moment
            if "requests_in_flight 1.0" in asked(port, "GET", "/metrics")[1]:
                break
        go.set()
        assert asked(port, "POST", "/predict", {"texts": ["other"]})[0] == 200

    assert seen == ["first", "other"]


def half_asked(port):
    """Return a connection with a request that has begun, and the rest of it."""
    whole = as_http({"texts": ["Who ?"]})
    line = socket.create_connection(("127.0.0.1", port), 20)
    line.sendall(whole[:-5])
    while "requests_in_flight 2" not in asked(port, "GET", "/metrics")[1]:
        pass
    return line, whole[-5:]


def end_well(port, end):
    """Ask for what has begun, and for more, while it ends."""
    line, rest = half_asked(port)
    end()
    while asked(port, "GET", "/health")[0] != 503:  # a signal takes a moment
        pass
    status, said = asked(port, "POST", "/predict", {"texts": ["a"]})
    assert (status, [*json.loads(said)]) == (503, ["error"])
    with line:
        line.sendall(rest)
        assert line.recv(99_999).startswith(b"HTTP/1.1 200")


def test_what_has_begun_is_answered_and_nothing_else_is_begun(service):
    service = service()

    with running(service) as port:
        end_well(port, lambda: setattr(service, "draining", True))


def test_a_process_that_may_have_many_files_keeps_them(service, monkeypatch):
    limits = {(1_000_000, resource.RLIM_INFINITY): [], (100, 200): [(200, 200)]}
    for limit, wanted in limits.items():
        given = []
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: limit)
        monkeypatch.setattr(
            resource, "setrlimit", lambda _, asked, given=given: given.append(asked)
        )
        monkeypatch.setattr("transfer_cli.serving.server._Server.run", lambda *_: None)

        run_server(service(), None, 1.0)

        assert given == wanted


@pytest.mark.slow
def test_a_process_answers_until_a_signal_and_ends_well(finetuned, shell):
    process = shell("serve", finetuned, "port=0")
    port = int(re.search(r"http://127.0.0.1:(\d+)", process.stdout.readline())[1])

    end_well(port, lambda: process.send_signal(signal.SIGTERM))

    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def page_of(name):
    return (conf_dir().parent / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_three_commands_lead_from_a_table_to_an_answer(pretrained, questions, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    [typed] = re.findall(r"```bash\n(transfer finetune.+?)```", page_of("quickstart.md"), re.DOTALL)
    for word, value in {"=minilm": f"={pretrained}", "=questions.csv": f"={questions}"}.items():
        typed = typed.replace(word, value)
    tool = tmp_path / "transfer"
    start = f'PYTHONPATH={conf_dir().parent}:$PYTHONPATH exec "{sys.executable}" -m transfer_cli'
    tool.write_text(f'#!/bin/sh\n{start} "$@"\n')
    tool.chmod(0o755)
    script = f"{typed.replace('8001', str(port))}\necho; kill $!; wait $!; echo $?"

    ended = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip

    *_, answer, code = ended.stdout.splitlines()
    assert json.loads(answer)["predictions"][0]["label"] in ("person", "place")
    assert code == "0"


def test_the_page_names_every_path_and_every_limit(service):
    page = page_of("serving.md")

    paths = {route.path for route in service().app.routes}
    assert {"/", *re.findall(r"^\| (?:GET|POST) `(/[\w.]+)`", page, re.MULTILINE)} == paths
    limits = {field.name for field in fields(ServingConfig)}
    assert {*re.findall(r"`serve\.(\w+)", page)} == limits


@pytest.mark.slow
def test_a_thousand_clients_at_once_each_have_an_answer(service):
    with running(service({"queue": 1000})) as port:
        answers = ask_together(port, [["Who ?"] * 9] * 1000)
        status, _ = asked(port, "POST", "/predict", {"texts": ["a"]})

    assert 200 in {code for code, _ in answers} <= {200, 429}
    assert all([*said] == ["predictions" if code == 200 else "error"] for code, said in answers)
    assert status == 200


# --- the page ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_asks_on_a_phone_and_needs_no_other_address(service, chromium):
    with running(service(token=BEARER)) as port:
        context = chromium.new_context(viewport={"width": 390, "height": 800}, is_mobile=True)
        tab, asked, complaints = context.new_page(), [], []
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(f"{HERE}:{port}/")
        tab.get_by_label("Token").fill(BEARER)
        tab.get_by_role("button").click()
        tab.get_by_label("Text", exact=True).fill("Who wrote it ?")
        tab.get_by_role("button").click()
        tab.locator(".share").first.wait_for()
        label = tab.locator("h2").inner_text()
        tab.get_by_label("Model").select_option("text")
        tab.get_by_label("Text to go on with").fill("The river")
        tab.get_by_role("button").click()
        tab.wait_for_function("document.querySelector('#answer p')?.textContent.length > 12")
        wide = tab.evaluate("document.documentElement.scrollWidth")
        context.close()

    assert label in service()._models["kinds"].model.labels
    assert (wide, complaints) == (390, [])
    assert {url.split("/")[2] for url in asked} == {f"127.0.0.1:{port}"}
