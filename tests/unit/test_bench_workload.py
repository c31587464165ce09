from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sssd.bench.workload import Arrival, Question, batches, choose, poisson, read_questions, together
from sssd.errors import SssdError
from sssd.text import Message, Tokenizer
from tests.helpers.bench import workload
from tests.helpers.data import DATA, records
from tests.helpers.toy import text_bundle


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    return path


def user(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


def test_a_record_holds_a_prompt_turns_or_messages(tmp_path: Path) -> None:
    dialogue = [
        {"role": "system", "content": "s"},
        {"role": "human", "content": "a"},
        {"role": "gpt", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    file = jsonl(
        tmp_path / "mine.jsonl",
        {"id": "1", "task": "qa", "prompt": "p"},
        {"id": "2", "task": "mt_bench/writing", "turns": ["one", "two"]},
        {"messages": dialogue},
    )
    assert read_questions([file]) == [
        Question("1", "qa", user("p")),
        Question("2", "mt_bench", user("one")),
        Question(
            "mine/3",
            "mine",
            (Message("system", "s"), Message("user", "a"), Message("assistant", "b"), Message("user", "c")),
        ),
    ]


def test_a_dialogue_is_asked_up_to_the_last_user_turn_before_a_tool_speaks(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "x"},
        {"role": "user", "content": "b"},
    ]
    assert read_questions([jsonl(tmp_path / "t.jsonl", {"messages": turns})])[0].messages == user("a")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no prompts in"),
        ("\n \n", "no prompts in"),
        ("{not json}\n", "data.jsonl:1 is not JSON"),
        ('{"prompt": "a"}\n[1]\n', "data.jsonl:2 is no record"),
        ('{"text": "a"}\n', "data.jsonl:1 has no text to ask: allowed are `prompt`"),
        ('{"prompt": ""}\n', "data.jsonl:1 has no text to ask"),
        ('{"turns": [{"a": 1}]}\n', "data.jsonl:1 has no text to ask"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}\n', "data.jsonl:1 has no text to ask"),
    ],
)
def test_a_file_without_prompts_is_refused_by_line(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(content)
    with pytest.raises(SssdError, match=says) as caught:
        read_questions([tmp_path / "data.jsonl"])
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SssdError, match=r"cannot read .*absent: No such file"):
        read_questions([tmp_path / "absent"])
    (tmp_path / "latin").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(SssdError, match=r"is not UTF-8 \(byte 12\)"):
        read_questions([tmp_path / "latin"])
    with pytest.raises(SssdError, match="give --data one or more JSONL files"):
        read_questions([])


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer(text_bundle(tmp_path / "toy"))


def questions(*texts: str, task: str = "t") -> list[Question]:
    return [Question(f"{task}/{i}", task, user(text)) for i, text in enumerate(texts)]


def test_the_limit_counts_each_task_alone_and_only_what_fits(tokenizer: Tokenizer) -> None:
    asked = [*questions("abc", "a" * 9, "de", "f"), *questions("g", task="u")]
    made = choose(asked, tokenizer, max_prompt=8, limit=2, chat=False)
    assert [(p.id, p.token_ids.tolist()) for p in made.prompts] == [
        ("t/0", list(b"abc")),
        ("t/2", list(b"de")),
        ("u/0", list(b"g")),
    ]
    assert [(p.id, p.reason) for p in made.passed_over] == [("t/1", "it has 9 tokens, and 1 to 8 fit")]
    assert made.tasks == ("t", "u")
    assert made.longest.id == "t/0"


def test_the_chat_template_writes_prompts_and_what_it_refuses_is_listed(tokenizer: Tokenizer) -> None:
    asked = [*questions("hi"), Question("bad", "t", (Message("tool", "x"), Message("user", "y")))]
    made = choose(asked, tokenizer, max_prompt=64, chat=True)
    assert tokenizer.decode(made.prompts[0].token_ids.tolist()) == "<user>hi\n<assistant>"
    assert [(p.id, "no tools" in p.reason) for p in made.passed_over] == [("bad", True)]


def test_an_unknown_task_names_the_known_ones(tokenizer: Tokenizer) -> None:
    asked = [*questions("a"), *questions("b", task="u")]
    with pytest.raises(SssdError, match="no prompts of task 'x': there are t, u"):
        choose(asked, tokenizer, max_prompt=8, tasks=["x"], chat=False)
    assert choose(asked, tokenizer, max_prompt=8, tasks=["u"], chat=False).tasks == ("u",)


def test_a_task_of_which_nothing_fits_is_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(SssdError, match="no prompt of task 't' can be asked: it has 3 tokens, and 1 to 2 fit"):
        choose(questions("abc"), tokenizer, max_prompt=2, chat=False)


def test_arrivals_are_poisson_and_the_same_for_the_same_seed() -> None:
    prompts = workload(t=4000).prompts
    stream = poisson(prompts, rate=4.0, seed=7)
    gaps = np.diff([0.0, *(a.at for a in stream)])
    assert (gaps > 0).all()
    assert gaps.mean() == pytest.approx(1 / 4, rel=0.08)
    assert gaps.std() == pytest.approx(1 / 4, rel=0.08)  # as wide as its mean: exponential
    assert sorted(a.prompt.id for a in stream) == sorted(p.id for p in prompts)
    assert [a.prompt.id for a in stream[:20]] != [p.id for p in prompts[:20]]
    assert stream == poisson(prompts, rate=4.0, seed=7)
    assert stream != poisson(prompts, rate=4.0, seed=8)


def test_batches_are_consecutive_and_the_last_may_be_short() -> None:
    prompts = workload(t=5).prompts
    assert batches(prompts, 2) == [prompts[0:2], prompts[2:4], prompts[4:5]]
    assert together(prompts[:1]) == [Arrival(0.0, prompts[0])]


def test_spec_bench_has_six_tasks_of_eighty() -> None:
    records("specbench.jsonl")
    found = read_questions([DATA / "specbench.jsonl"])
    counts = {task: sum(q.task == task for q in found) for task in dict.fromkeys(q.task for q in found)}
    assert list(counts.values()) == [80] * 6
    assert "mt_bench" in counts
