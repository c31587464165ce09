from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sssd.server.app import make_app
from sssd.server.serving import Serving
from sssd.server.settings import Settings
from tests.helpers.serving import scripted_model, speaker


@pytest.fixture
def described(tmp_path: Path) -> Iterator[dict[str, Any]]:
    with closing(Serving(scripted_model(tmp_path, speaker()))) as serving:
        yield make_app(serving, Settings()).openapi()


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_body_and_reply_is_described_and_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    assert {ref.removeprefix("#/components/schemas/") for ref in references(described)} <= set(schemas)
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        assert described["paths"][path]["post"]["requestBody"]["required"]
        assert set(described["paths"][path]["post"]["responses"]) == {"200", "4XX"}
    assert "seed" in schemas["ChatRequest"]["properties"]
    assert "text/event-stream" in described["paths"]["/v1/completions"]["post"]["responses"]["200"]["content"]
