"""Compare `transfer serve` with the model it serves, and with FastAPI over a pipeline.

    python scripts/bench/serve.py [--weights FOLDER] [--soak 100000]

The model is that of `predict.py`: a BERT of 6 blocks of width 384 with random weights, or the one
of `--weights`. In each round a process with the loaded model (`load(RUN).predict`), our server and
the peer's take turns, on the same questions of TREC: one at a time, then all of them, for which
clients at 127.0.0.1 ask one by one, or 32 to a request. The peer answers each request by itself, in
a thread. `--soak` asks a server of a tiny model so often, and compares its memory early and late.
"""

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import measuring
import predict
import product
from measuring import BenchmarkError, Goal, Report

OURS = "transfer serve"
CLIENTS, LARGE, ALONE = 32, 32, 30
PATIENCE_S = 600.0


def serve_peer(folder: str, port: str) -> None:
    """Serve a pipeline of transformers by FastAPI; run by the peers' interpreter."""
    import uvicorn
    from fastapi import FastAPI
    from transformers import pipeline

    label = pipeline("text-classification", model=folder, device="cpu")
    app = FastAPI()

    @app.post("/predict")
    def answer(request: dict[str, list[str]]) -> dict[str, list[dict[str, object]]]:
        return {"predictions": label(request["texts"], batch_size=predict.BATCH)}

    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


def time_model(folder: str) -> None:
    """Answer texts of standard input, a JSON list a line; write the seconds."""
    import transfer_cli

    model = transfer_cli.load(folder, device="cpu", precision="fp32")
    for line in sys.stdin:
        texts = json.loads(line)
        began = time.perf_counter()
        model.predict(texts)
        print(time.perf_counter() - began, flush=True)


async def ask(port: int, requests: Sequence[Sequence[str]], clients: int) -> list[float]:
    """Return the seconds of each request; so many clients ask, each on a connection that stays."""
    seconds: list[float] = []
    left = iter(requests)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for texts in left:
            body = json.dumps({"texts": texts}).encode()
            head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
            began = time.perf_counter()
            writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            [size] = re.findall(rb"(?i)content-length: (\d+)", answer)
            content = await reader.readexactly(int(size))
            if not answer.startswith(b"HTTP/1.1 200"):
                raise BenchmarkError(f"port {port}: {content[:200]!r}")
            seconds.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return seconds


def clock(port: int, requests: Sequence[Sequence[str]], clients: int) -> tuple[float, list[float]]:
    """Return the seconds of all requests together, and of each."""
    began, seconds = time.perf_counter(), asyncio.run(ask(port, requests, clients))
    return time.perf_counter() - began, seconds


def spawn(words: Sequence[str], threads: int, **pipes: Any) -> subprocess.Popen[Any]:
    """Start a process that computes with so many threads."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return subprocess.Popen(words, env=environment, **pipes)


def start_server(stack: ExitStack, words: Sequence[str], threads: int) -> tuple[int, int]:
    """Start a server whose last word is its port; return port and process once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = spawn([*words[:-1], f"{words[-1]}{port}"], threads, stdout=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError, asyncio.IncompleteReadError):
            asyncio.run(ask(port, [["Who ?"]], 1))
            return port, process.pid
        time.sleep(0.2)
    raise BenchmarkError(f"{words[0]}: does not answer")


def start_model(stack: ExitStack, folder: Path, threads: int) -> Callable[[Sequence[str]], float]:
    """Return what gives the seconds in which the model alone answers texts."""
    words = [sys.executable, "-c", measuring.call_code("serve", "time_model"), str(folder)]
    process = spawn(words, threads, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(process.kill)

    def seconds(texts: Sequence[str]) -> float:
        process.stdin.write(f"{json.dumps(texts)}\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    seconds(["Who ?"])
    return seconds


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Measure both servers and the model alone, and perhaps a soak."""
    measuring.require_peers(args.peers)
    questions = [question for _, question in product.read_trec(args.data_dir)["test"]]
    (folder / "texts.txt").write_text("".join(f"{question}\n" for question in questions), "utf-8")
    code = measuring.call_code("predict", "write_model")

    def make(name: str, size: dict[str, int], weights: str) -> Path:
        words = (folder / "texts.txt", json.dumps(size), weights, folder / name)
        measuring.run_python(args.peers, code, *words)
        return folder / name

    model = make("model", predict.TRIAL if args.quick else predict.SIZE, str(args.weights or ""))
    ones = [[question] for question in questions]
    large = [questions[n : n + LARGE] for n in range(0, len(questions), LARGE)]
    ways = (
        *(
            (f"one a request, {clients} clients", ones, clients)
            for clients in (CLIENTS, 4 * CLIENTS)
        ),
        (f"{LARGE} a request", large, CLIENTS // 8),
    )
    command = ["serve", model, "device=cpu", "precision=fp32", "port="]
    theirs = [args.peers, "-c", measuring.call_code("serve", "serve_peer"), str(model), ""]
    samples: dict[str, list[float]] = {}
    with ExitStack() as stack:
        seconds = start_model(stack, model, args.threads)
        ports = {OURS: start_server(stack, measuring.transfer_command(*command), args.threads)[0],
                 "FastAPI, pipeline": start_server(stack, theirs, args.threads)[0]}  # fmt: skip
        for number in range(args.rounds):
            base_ms = 1000 * statistics.median(seconds(texts) for texts in ones[:ALONE])
            base_rate = len(questions) / seconds(questions)
            values = {"load: ms a text": base_ms, "load: texts a second": base_rate}
            for name in [*ports][:: -1 if number % 2 else 1]:
                ms = 1000 * statistics.median(clock(ports[name], ones[:ALONE], 1)[1])
                values |= {f"{name}: ms a text": ms, f"{name}: ms above load": ms - base_ms}
                for way, requests, clients in ways:
                    rate = len(questions) / clock(ports[name], requests, clients)[0]
                    values[f"{name}: texts a second, {way}"] = rate
                    values[f"{name}: {way} over load"] = rate / base_rate
            for what, value in values.items():
                samples.setdefault(what, []).append(value)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    goals = [Goal("p50 above load, ms", medians[f"{OURS}: ms above load"], 15)]
    for way, *_ in ways:
        rate = medians[f"{OURS}: {way} over load"]
        goals.append(Goal(f"texts a second over load, {way}", rate, 0.9, at_most=False))
    rows = [["what", "median"], *([name, f"{value:.3g}"] for name, value in medians.items())]
    yield Report(f"{len(questions)} questions", (), goals, rows)
    if args.soak:
        yield soak(make("tiny", predict.TRIAL, ""), questions, args.soak, args.threads)


def soak(model: Path, questions: Sequence[str], count: int, threads: int) -> Report:
    """Ask a server very often; compare its memory early and late."""
    words = measuring.transfer_command("serve", model, "device=cpu", "precision=fp32", "port=")
    requests = [[questions[n % len(questions)]] for n in range(count)]
    rows = [["requests", "MiB"]]
    with ExitStack() as stack:
        port, process = start_server(stack, words, threads)
        for part in range(10):
            asyncio.run(ask(port, requests[part * count // 10 : (part + 1) * count // 10], CLIENTS))
            status = Path(f"/proc/{process}/status").read_text("ascii")
            [resident] = re.findall(r"VmRSS:\s+(\d+)", status)
            rows.append([f"{(part + 1) * count // 10:,}", f"{int(resident) / 1024:.1f}"])
    growth = float(rows[-1][1]) / float(rows[1][1])
    goal = Goal("memory at the end over that after a tenth", growth, 1.02)
    return Report("soak", (), [goal], rows)


if __name__ == "__main__":
    weights = {"type": Path, "help": "folder of a published BERT"}
    often = {"type": int, "default": 0, "metavar": "N", "help": "requests to soak a server with"}
    measuring.main(__doc__, measure, {"--weights": weights, "--soak": often}, rounds=5)
