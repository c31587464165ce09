from __future__ import annotations

import io
import json
import logging

import pytest

from sssd.server.logs import JsonLines, PlainLines, masked


def logged(formatter: logging.Formatter, message: str, *args: object, fields: dict[str, object] | None = None) -> str:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    logger = logging.Logger("sssd.test")
    logger.addHandler(handler)
    try:
        raise ValueError("Bearer sk-hidden-in-an-error")
    except ValueError:
        logger.exception(message, *args, extra={"fields": fields or {}})
    return out.getvalue()


def test_a_record_is_one_json_object_on_one_line() -> None:
    text = logged(JsonLines(), "it\nbroke: %s", "x", fields={"request_id": "r-1", "status": 500})
    assert text.count("\n") == 1
    line = json.loads(text)
    assert line["message"] == "it\nbroke: x"
    assert (line["level"], line["logger"], line["request_id"], line["status"]) == ("error", "sssd.test", "r-1", 500)
    assert line["time"].endswith("Z")
    assert "ValueError" in line["traceback"]
    assert "hidden" not in text


def test_a_plain_record_has_its_fields_behind_the_message() -> None:
    text = logged(PlainLines(), "done", fields={"status": 200})
    assert " error done status=200\n" in text
    assert "hidden" not in text


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer s3cret",
        "{'authorization': 'bearer s3cret'}",
        "x-api-key: s3cret",
        '"api_key": "s3cret"',
        "GET /v1/models?api_key=s3cret",
        "Incorrect API key provided: sk-s3cret",
    ],
)
def test_what_looks_like_a_credential_is_masked(text: str) -> None:
    assert "s3cret" not in masked(text)
