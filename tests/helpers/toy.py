"""A byte-level tokenizer and a bundle around it, without weights: for everything that handles text."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers

from sssd.engines.scripted import scripted_spec
from sssd.spec import CHAT_TEMPLATE, FORMAT_REVISION, LAYOUT_REVISION, TOKENIZER, Bundle, Manifest, write_manifest

EOS = 256
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer() -> Core:
    """One token a byte, id = byte value; 256 is the ending token."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # the byte-level alphabet maps printable bytes to themselves and the rest to 256, 257, ... in order
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in printable]
    characters = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    assert set(characters.values()) == set(alphabet)
    core = Core(models.BPE(vocab={characters[b]: b for b in range(256)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<eos>"])
    return core


def text_bundle(directory: Path, *, template: str | None = TEMPLATE, eos_ids: tuple[int, ...] = (EOS,)) -> Bundle:
    """A bundle with a byte tokenizer and no graph."""
    directory.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(directory / TOKENIZER))
    if template is not None:
        (directory / CHAT_TEMPLATE).write_text(template, "utf-8")
    spec = scripted_spec(257, max_len=4096, eos_ids=eos_ids)
    manifest = Manifest(FORMAT_REVISION, LAYOUT_REVISION, spec, None, "toy", (), {}, (), ())
    return Bundle(directory, write_manifest(directory, manifest))
