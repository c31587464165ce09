"""What HTTP and streaming cost: the same prompts through the Python API and through `sssd serve`, in turns.

    python scripts/serve_overhead.py smol/ --data prompts.jsonl --clients 8 --requests 24 --rounds 3

Each round answers all requests with `--clients` of them at a time, once in this process and once by a server in a
process of its own, streamed to clients in a third. Prints tokens a second of every run and the median loss as JSON.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import click
import httpx

from sssd.answer import Answer
from sssd.config import SamplingParams
from sssd.loading import load


def direct(bundle: Path, prompts: list[str], clients: int, tokens: int) -> float:
    """Tokens a second through the Python API."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    with load(bundle, n_slots=clients) as llm:
        llm.generate(prompts[0], params)
        waiting, running = deque(prompts), list[Answer]()
        began, n = time.perf_counter(), 0
        while waiting or running:
            while waiting and len(running) < clients:
                running.append(llm.submit(waiting.popleft(), params))
            llm.step()
            for answer in [a for a in running if a.completion is not None]:
                assert answer.completion is not None
                n += len(answer.completion.token_ids)
                running.remove(answer)
                llm.drop(answer)
        return n / (time.perf_counter() - began)


async def streamed(base: str, prompts: list[str], clients: int, tokens: int) -> float:
    """Tokens a second of a running server."""
    waiting = deque(prompts)
    n = 0

    async def client(http: httpx.AsyncClient) -> None:
        nonlocal n
        while waiting:
            body: dict[str, Any] = {"prompt": waiting.popleft(), "max_tokens": tokens, "temperature": 0}
            body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
            async with http.stream("POST", "/v1/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if '"usage":{' in line:
                        n += json.loads(line[6:])["usage"]["completion_tokens"]

    async with httpx.AsyncClient(base_url=base, timeout=600) as http:
        await http.post("/v1/completions", json={"prompt": prompts[0], "max_tokens": tokens, "ignore_eos": True})
        began = time.perf_counter()
        await asyncio.gather(*(client(http) for _ in range(clients)))
        return n / (time.perf_counter() - began)


def served(bundle: Path, prompts: list[str], clients: int, tokens: int) -> float:
    """The same, of a server that is started for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    run = [sys.executable, "-c", "from sssd.cli import main; main()", "serve", "--engine", str(bundle)]
    server = subprocess.Popen([*run, "--port", str(port), "--slots", str(clients)], stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                httpx.get(f"{base}/v1/models").raise_for_status()
                break
            except httpx.HTTPError:
                assert server.poll() is None, "the server did not start"
                time.sleep(0.1)
        return asyncio.run(streamed(base, prompts, clients, tokens))
    finally:
        server.terminate()
        server.wait(30)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--data", required=True, type=click.Path(path_type=Path), help="JSONL with `prompt` or `turns`.")
@click.option("--clients", default=8, show_default=True)
@click.option("--requests", default=24, show_default=True)
@click.option("--tokens", default=64, show_default=True, help="Of each answer.")
@click.option("--rounds", default=3, show_default=True)
def main(bundle: Path, data: Path, clients: int, requests: int, tokens: int, rounds: int) -> None:
    """Measure BUNDLE both ways."""
    records = [json.loads(line) for line in data.read_text("utf-8").splitlines()]
    step = max(1, len(records) // requests)
    prompts = [(r.get("prompt") or r["turns"][0])[:1200] for r in records[::step]][:requests]
    runs: list[dict[str, float]] = []
    for _ in range(rounds):
        api = direct(bundle, prompts, clients, tokens)
        http = served(bundle, prompts, clients, tokens)
        runs.append({"python_api": api, "http": http, "loss": 1 - http / api})
        click.echo(json.dumps(runs[-1]), err=True)
    click.echo(json.dumps({"runs": runs, "median_loss": statistics.median(r["loss"] for r in runs)}, indent=2))


if __name__ == "__main__":
    main()
