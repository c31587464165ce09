"""Many clients at once against a running server: random requests, disconnects and malformed bodies.

    python scripts/soak.py http://127.0.0.1:8000 --clients 64 --seconds 120

Afterwards every finished answer is asked for again, alone, and must be the same, byte for byte. Prints a JSON report;
exit status 1 when there was a 5xx, a difference, or an answer that is not as the API says.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import click
import httpx
import numpy as np

GARBAGE = (
    b"",
    b"{",
    b"\xff\xfe\x00",
    b"[1, 2",
    b'{"prompt": 5}',
    b'{"messages": []}',
    b'{"prompt": "a", "n": -1}',
    b"null",
)

TEXT = "the harbour of old town was built by order council in 1421 größer 東京 🙂 and then again it"
WORDS = TEXT.split(" ")


@dataclass
class Report:
    """What happened. Mutable while the run lasts."""

    seconds: float = 0.0
    finished: int = 0
    left: int = 0  # clients that went before the end
    malformed: int = 0
    refused_full: int = 0
    answers_compared: int = 0
    faults: list[str] = field(default_factory=list)


def random_body(rng: np.random.Generator, most_tokens: int) -> dict[str, Any]:
    """A request whose answer is repeatable: greedy, or sampled with a seed."""
    words = " ".join(rng.choice(WORDS, int(rng.integers(3, 60))))
    body: dict[str, Any] = {"max_tokens": int(rng.integers(1, most_tokens)), "seed": int(rng.integers(1 << 30))}
    body["temperature"] = float(rng.choice([0.0, 0.0, 0.8]))
    body |= {"prompt": words} if rng.random() < 0.5 else {"messages": [{"role": "user", "content": words}]}
    if rng.random() < 0.2:
        body["stop"] = ["\n\n", "."]
    if rng.random() < 0.1:
        body["n"] = 2
    if rng.random() < 0.1:
        body["speculative"] = {"enabled": False}
    if rng.random() < 0.1:
        body["priority"] = int(rng.integers(-2, 3))
    return body


def path_of(body: dict[str, Any]) -> str:
    """The endpoint that takes the body."""
    return "/v1/completions" if "prompt" in body else "/v1/chat/completions"


async def ask(http: httpx.AsyncClient, body: dict[str, Any], *, stream: bool) -> tuple[int, list[list[str]]]:
    """Status, and (text, finish reason) of every choice."""
    if not stream:
        response = await http.post(path_of(body), json=body)
        if response.status_code != 200:
            return response.status_code, []
        choices = response.json()["choices"]
        return 200, [[c.get("text", c.get("message", {}).get("content")), c["finish_reason"]] for c in choices]
    found = [["", ""] for _ in range(body.get("n", 1))]
    async with http.stream("POST", path_of(body), json=body | {"stream": True}) as response:
        if response.status_code != 200:
            return response.status_code, []
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return 599, []
            for c in event["choices"]:
                found[c["index"]][0] += c.get("text") or c.get("delta", {}).get("content") or ""
                found[c["index"]][1] = c["finish_reason"] or found[c["index"]][1]
    return 200, found


async def client(base: str, seed: int, until: float, most_tokens: int, report: Report, done: list[Any]) -> None:
    """One client until the time is over."""
    rng = np.random.default_rng(seed)
    async with httpx.AsyncClient(base_url=base, timeout=300) as http:
        while time.monotonic() < until:
            kind = rng.random()
            if kind < 0.05:
                report.malformed += 1
                bad = await http.post(
                    str(rng.choice(["/v1/completions", "/v1/chat/completions"])),
                    content=GARBAGE[rng.integers(len(GARBAGE))],
                )
                if not 400 <= bad.status_code < 500 or "error" not in bad.json():
                    report.faults.append(f"malformed body: {bad.status_code} {bad.text[:200]}")
                continue
            body = random_body(rng, most_tokens)
            asking = ask(http, body, stream=rng.random() < 0.6)
            try:
                status, choices = await asyncio.wait_for(asking, float(rng.exponential(0.5)) if kind < 0.25 else None)
            except TimeoutError:
                report.left += 1
                continue
            if status == 429:
                report.refused_full += 1
                await asyncio.sleep(0.2)
            elif status != 200:
                report.faults.append(f"status {status} for {body}")
            else:
                report.finished += 1
                done.append((body, choices))


async def soak(base: str, *, clients: int, seconds: float, most_tokens: int, compare: int, seed: int = 0) -> Report:
    """Run, then compare up to `compare` answers, evenly picked, with the same requests alone."""
    report, done = Report(), []
    began = time.monotonic()
    await asyncio.gather(*(client(base, seed + i, began + seconds, most_tokens, report, done) for i in range(clients)))
    report.seconds = time.monotonic() - began
    picked = done[:: max(1, -(-len(done) // compare))]
    async with httpx.AsyncClient(base_url=base, timeout=300) as http:
        for body, choices in picked:
            status, alone = await ask(http, body, stream=False)
            report.answers_compared += 1
            if status != 200 or alone != choices:
                report.faults.append(f"not what it is alone: {body}: {choices} and {alone}")
    return report


@click.command()
@click.argument("base")
@click.option("--clients", default=64, show_default=True)
@click.option("--seconds", default=120.0, show_default=True)
@click.option("--most-tokens", default=48, show_default=True, help="Longest answer.")
@click.option("--compare", default=10_000, show_default=True, help="Most answers to ask for again.")
def main(base: str, clients: int, seconds: float, most_tokens: int, compare: int) -> None:
    """Soak the server at BASE."""
    report = asyncio.run(soak(base, clients=clients, seconds=seconds, most_tokens=most_tokens, compare=compare))
    click.echo(json.dumps(asdict(report), indent=2))
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
