"""A checkpoint of the Hugging Face hub as a local directory.

Owns the choice of files and the errors of downloading; knows nothing of what the files hold.
"""

from __future__ import annotations

import re
from pathlib import Path

from sssd.errors import ExportError, MissingExtra

FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "model*.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.json",
    "chat_template.jinja",
)


def is_hub_id(source: str) -> bool:
    """Does it read as `organisation/name`?"""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", source) is not None


def fetch(hub_id: str) -> Path:
    """The directory of a hub id's files that an export reads, downloaded where they are not cached.

    Raises MissingExtra without huggingface_hub, and ExportError when the files can neither be downloaded nor found in
    the cache.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise MissingExtra("huggingface_hub", "hub") from error
    try:
        return Path(snapshot_download(repo_id=hub_id, allow_patterns=list(FILES)))
    except LocalEntryNotFoundError as error:
        raise ExportError(
            f"{hub_id} is neither a path here nor in the local cache, and the hub cannot be reached: "
            "go online once, or give a directory or a .gguf file"
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExportError(
            f"{hub_id} cannot be downloaded from the hub ({reason}): check the name and your access"
        ) from error
