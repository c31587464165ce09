"""The API over HTTP with OpenAI's own client, on a scripted target."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from sssd.config import SamplingParams
from sssd.llm import LLM
from tests.helpers.serving import Lucky, python_api, scripted_model, served, speaker


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    script = speaker()
    with served(scripted_model(tmp_path_factory.mktemp("toy"), script, Lucky(script))) as base:
        yield base


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with python_api(tmp_path_factory.mktemp("toy"), speaker()) as plain:
        yield plain


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0) as made:
        yield made


def test_models_are_listed_with_their_length(client: openai.OpenAI) -> None:
    (card,) = client.models.list().data
    assert (card.id, card.max_model_len) == ("scripted", 512)
    assert client.models.retrieve("scripted").id == "scripted"
    with pytest.raises(openai.NotFoundError, match="served here is scripted"):
        client.models.retrieve("gpt-4")


@pytest.mark.parametrize("n", [1, 2, 3, 5, 17, 60])
def test_stream_and_whole_answer_and_python_api_say_the_same(client: openai.OpenAI, llm: LLM, n: int) -> None:
    expected = llm.generate("Say:", SamplingParams(max_tokens=n)).text
    whole = client.completions.create(model="scripted", prompt="Say:", max_tokens=n, temperature=0)
    assert whole.choices[0].text == expected
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == n
    stream = list(client.completions.create(model="scripted", prompt="Say:", max_tokens=n, temperature=0, stream=True))
    assert "".join(c.choices[0].text for c in stream) == expected


def test_a_chat_streams_what_it_answers(client: openai.OpenAI) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "?"}]},
    ]
    asked = {"model": "scripted", "messages": messages, "max_completion_tokens": 40, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    stream = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert stream[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in stream[:-1]) == whole.choices[0].message.content
    assert stream[-1].choices == []
    assert stream[-1].usage.total_tokens == whole.usage.total_tokens
    assert whole.usage.completion_tokens == 40
