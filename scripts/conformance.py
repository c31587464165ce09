"""Clients of others against a running server; each is run if it is installed, and what it says is shown.

    python scripts/conformance.py http://127.0.0.1:8000 --bundle smol/ [--bin DIR_WITH_CLIENTS ...]

lm_eval (a loglikelihood and a generation task, on texts made here), guidellm, aiperf, schemathesis, LangChain. Install
them where you like (`pip install lm_eval[api] guidellm aiperf schemathesis langchain-openai`), in one environment each
if they do not go together, and name the environments' bin directories. Nothing is fetched: no data set, no tokenizer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import httpx

TASKS = {
    "local_choice": """
task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["{{{{good}}}}", "{{{{bad}}}}"]
doc_to_target: 0
metric_list: [{{metric: acc}}]
""",
    "local_generate": """
task: local_generate
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{good}}}}"
generation_kwargs: {{until: ["\\n", "."], max_gen_toks: 16, temperature: 0}}
metric_list: [{{metric: exact_match}}]
""",
}
QUESTIONS = [
    ("The capital of France is", " Paris", " purple"),
    ("The sun rises in the", " east", " fork"),
    ("Two plus two is", " four", " Monday"),
    ("Water freezes at zero degrees", " Celsius", " bananas"),
]
LANGCHAIN = """
import sys
from langchain_openai import ChatOpenAI
llm = ChatOpenAI(base_url=sys.argv[1] + "/v1", api_key="EMPTY", model=sys.argv[2], temperature=0, max_tokens=24)
whole = llm.invoke("Write one sentence about trains.")
chunks = list(llm.stream("Write one sentence about trains.", stream_usage=True))
text = "".join(c.content for c in chunks)
assert text == whole.content, (text, whole.content)
usage = [c.usage_metadata for c in chunks if c.usage_metadata]
assert usage[-1]["output_tokens"] == whole.usage_metadata["output_tokens"], usage
print("invoke and stream agree:", repr(text))
"""


@dataclass(frozen=True)
class Site:
    """Where things are."""

    base: str
    model: str
    tokenizer: Path  # a directory that transformers can open
    work: Path
    bins: tuple[Path, ...]

    def command(self, name: str) -> str | None:
        """The client's path, or None when it is not installed."""
        return shutil.which(name, path=os.pathsep.join([*map(str, self.bins), os.environ.get("PATH", "")]))


def lm_eval(site: Site) -> list[str]:
    """A loglikelihood and a generation task."""
    data = site.work / "questions.jsonl"
    data.write_text("".join(json.dumps({"question": q, "good": a, "bad": b}) + "\n" for q, a, b in QUESTIONS))
    for name, text in TASKS.items():
        (site.work / f"{name}.yaml").write_text(text.format(data=data))
    arguments = f"model={site.model},base_url={site.base}/v1/completions,num_concurrent=4,tokenizer={site.tokenizer}"
    tasks = ["--include_path", str(site.work), "--tasks", ",".join(TASKS)]
    return ["lm_eval", "--model", "local-completions", "--model_args", arguments, *tasks]


def guidellm(site: Site) -> list[str]:
    """A short benchmark with synthetic prompts."""
    load = ["--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=8"]
    data = ["--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=32"]
    tokenizer = ["--tokenizer", f"kind=huggingface_auto,model={site.tokenizer}"]
    where = ["--backend", f"kind=openai_http,target={site.base}", "--disable-progress"]
    return ["guidellm", "run", *where, *load, *data, *tokenizer]


def aiperf(site: Site) -> list[str]:
    """A short streaming benchmark."""
    load = ["--concurrency", "2", "--request-count", "8", "--isl", "64", "--osl", "32", "--streaming"]
    where = ["--url", site.base, "--endpoint-type", "chat", "--tokenizer", str(site.tokenizer)]
    out = ["--output-artifact-dir", str(site.work), "--ui", "none"]
    return ["aiperf", "profile", "-m", site.model, *where, *load, *out]


def schemathesis(site: Site) -> list[str]:
    """Generated requests; a server error or a reply that is not as described is a failure."""
    checks = "not_a_server_error,response_schema_conformance,content_type_conformance"
    url = f"{site.base}/openapi.json"
    return ["schemathesis", "run", url, "--max-examples", "400", "--request-timeout", "60", "--checks", checks]


def langchain(site: Site) -> list[str]:
    """One chat, whole and streamed."""
    script = site.work / "langchain_client.py"
    script.write_text(LANGCHAIN)
    return ["python", str(script), site.base, site.model]


CLIENTS: tuple[Callable[[Site], list[str]], ...] = (langchain, lm_eval, guidellm, aiperf, schemathesis)


@contextmanager
def site_of(base: str, bundle: Path, bins: tuple[Path, ...]) -> Iterator[Site]:
    """A scratch directory with the bundle's tokenizer as transformers reads one."""
    model = httpx.get(f"{base}/v1/models").json()["data"][0]["id"]
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = Path(scratch) / "tokenizer"
        tokenizer.mkdir()
        shutil.copy(bundle / "tokenizer.json", tokenizer)
        if (bundle / "chat_template.jinja").exists():
            shutil.copy(bundle / "chat_template.jinja", tokenizer)
        names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
        (tokenizer / "tokenizer_config.json").write_text(json.dumps(names))
        yield Site(base, model, tokenizer, Path(scratch), bins)


@click.command()
@click.argument("base")
@click.option("--bundle", required=True, type=click.Path(path_type=Path), help="The served bundle, for its tokenizer.")
@click.option("--bin", "bins", multiple=True, type=click.Path(path_type=Path), help="Where clients are installed.")
@click.option("--only", help="Clients to run, with commas between.")
def main(base: str, bundle: Path, bins: tuple[Path, ...], only: str | None) -> None:
    """Run the clients against the server at BASE."""
    failed = []
    environment = os.environ | {"OPENAI_API_KEY": "EMPTY", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    with site_of(base, bundle, bins) as site:
        for client in CLIENTS:
            name, *rest = client(site)
            if only and client.__name__ not in only.split(","):
                continue
            path = site.command(name)
            if path is None:
                click.echo(f"== {client.__name__}: not installed, not run")
                continue
            began = time.monotonic()
            done = subprocess.run([path, *rest], env=environment, capture_output=True, text=True, timeout=900)
            click.echo(f"== {client.__name__}: status {done.returncode} after {time.monotonic() - began:.0f} s")
            click.echo("\n".join((done.stdout + done.stderr).splitlines()[-40:]))
            failed += [client.__name__] * (done.returncode != 0)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
