from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sssd.errors import BundleError, RequestError
from sssd.spec import TOKENIZER
from sssd.text import Detokenizer, Message, OutputText, Tokenizer
from tests.helpers.toy import EOS, text_bundle

TEXT = "日本語 café 👩‍👩‍👧‍👦 naïve 🎉🎉 end. Ωμέγα \u200d x"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer(text_bundle(tmp_path))


def test_encode_and_decode_are_inverse(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.encode_all([TEXT, "a"]) == [tokenizer.encode(TEXT), [97]]


def test_pieces_joined_are_the_full_decode_and_no_character_is_cut(tokenizer: Tokenizer) -> None:
    stream = Detokenizer(tokenizer)
    pieces = [stream.push(t) for t in tokenizer.encode(TEXT)]
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in p for p in pieces)
    assert stream.finish() == ""


def test_pieces_of_random_bytes_are_the_full_decode(tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        ids = rng.choice([65, 0xE3, 0x81, 0x82, 0xF0, 0x9F, 0x8E, 0x89, 0xFF, 0xC3, EOS], 12).tolist()
        stream = Detokenizer(tokenizer)
        text = "".join(stream.push(t) for t in ids) + stream.finish()
        assert text == tokenizer.decode(ids)


def test_a_character_that_never_completes_comes_out_at_the_end(tokenizer: Tokenizer) -> None:
    stream = Detokenizer(tokenizer)
    assert [stream.push(t) for t in (97, 0xE3, 0x81)] == ["a", "", ""]
    assert stream.finish() == tokenizer.decode([97, 0xE3, 0x81])[1:] != ""


def push_all(tokenizer: Tokenizer, text: str, stop: list[str]) -> tuple[str, int]:
    """The text given out, and after how many tokens the stream stopped (all of them if it did not)."""
    output, ids, out = OutputText(tokenizer, stop), tokenizer.encode(text), ""
    for n, token in enumerate(ids, 1):
        cut = output.push(token)
        out += cut.text
        if cut.stopped:
            return out, n
        assert text.startswith(out), "what was given out is never taken back"
    return out + output.finish(), len(ids)


def test_output_is_cut_before_the_first_stop_string(tokenizer: Tokenizer) -> None:
    assert push_all(tokenizer, "one END two END", ["END"]) == ("one ", 7)
    assert push_all(tokenizer, "aab aaab", ["aaab"]) == ("aab ", 8)
    assert push_all(tokenizer, "xyz", ["z", "yz"]) == ("x", 3)
    assert push_all(tokenizer, "日本語", ["本"]) == ("日", 6)


def test_what_could_become_a_stop_string_is_held_back_and_given_at_the_end(tokenizer: Tokenizer) -> None:
    output = OutputText(tokenizer, ["END"])
    assert [output.push(t).text for t in tokenizer.encode("a EN")] == ["a", " ", "", ""]
    assert output.finish() == "EN"
    assert push_all(tokenizer, "a ENX EN", ["END"]) == ("a ENX EN", 8)


def test_random_stop_strings_agree_with_find(tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(1)
    for _ in range(500):
        text = "".join(rng.choice(list("ab"), 12))
        stop = ["".join(rng.choice(list("ab"), int(rng.integers(1, 5)))) for _ in range(2)]
        # the stream stops at the token that completes a stop string, whichever is complete first
        ends = sorted((text.find(s) + len(s), text.find(s)) for s in stop if s in text)
        expected = text
        if ends:
            expected = text[: min(at for end, at in ends if end == ends[0][0])]
        assert push_all(tokenizer, text, stop)[0] == expected


def test_chat_prompt_is_what_the_template_writes(tokenizer: Tokenizer) -> None:
    messages = [Message("system", "s"), Message("user", "u")]
    assert tokenizer.chat_prompt(messages) == "<system>s\n<user>u\n<assistant>"


def test_a_template_that_refuses_is_a_request_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="no tools"):
        tokenizer.chat_prompt([Message("tool", "x")])


def test_a_bundle_without_template_says_so(tmp_path: Path) -> None:
    plain = Tokenizer(text_bundle(tmp_path, template=None))
    assert not plain.has_chat_template
    with pytest.raises(RequestError, match="no chat template"):
        plain.chat_prompt([Message("user", "u")])


def test_a_template_cannot_reach_into_python(tmp_path: Path) -> None:
    hostile = Tokenizer(text_bundle(tmp_path, template="{{ messages.__class__.__mro__ }}"))
    with pytest.raises(RequestError, match="unsafe"):
        hostile.chat_prompt([Message("user", "u")])


def test_fingerprint_names_the_vocabulary(tmp_path: Path) -> None:
    a, b = Tokenizer(text_bundle(tmp_path / "a")), Tokenizer(text_bundle(tmp_path / "b", template=None))
    assert a.fingerprint() == b.fingerprint()
    path = tmp_path / "b" / TOKENIZER
    path.write_text(path.read_text("utf-8").replace("<eos>", "<end>"), "utf-8")
    assert Tokenizer(text_bundle_of(tmp_path / "b")).fingerprint() != a.fingerprint()


def text_bundle_of(directory: Path):
    from sssd.spec import Bundle, write_manifest

    bundle = text_bundle(directory.parent / "other")
    return Bundle(directory, write_manifest(directory, bundle.manifest))


def test_a_file_that_is_no_tokenizer_is_a_bundle_error(tmp_path: Path) -> None:
    bundle = text_bundle(tmp_path)
    bundle.file(TOKENIZER).write_text("{}", "utf-8")
    with pytest.raises(BundleError, match="is not a tokenizer"):
        Tokenizer(bundle)
