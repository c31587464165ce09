"""Every exception a caller may catch. Owns the tree and its wording rules; knows nothing of what went wrong.

    SssdError
    ├── ExportError              a checkpoint could not become a bundle
    │   ├── UnsupportedModel     family, rope type or tensor format we do not export
    │   └── ParityError          the graph and the reference disagree
    ├── BundleError              a bundle cannot be used as it stands
    │   ├── RevisionMismatch     written by a newer or older sssd
    │   └── SpecMismatch         two artefacts that must fit do not (tokenizer, vocabulary, slots)
    ├── DatastoreError           a datastore file or namespace cannot be used
    ├── RequestError             a request's own parameters are wrong
    │   └── QueueFull            too many requests wait already
    ├── ConfigError              a configuration or keys file is wrong
    ├── EngineError              an engine cannot start, or a forward failed
    │   └── OutOfMemory          the KV cache cannot grow
    └── MissingExtra             an optional dependency is not installed

A message says what was given, what is allowed and what to do, in one line.
"""

from __future__ import annotations


class SssdError(Exception):
    """Base of all errors that sssd raises on purpose."""


class ExportError(SssdError):
    """A checkpoint could not become a bundle."""


class UnsupportedModel(ExportError):
    """The model needs something that sssd does not export; the message lists what it does."""


class ParityError(ExportError):
    """The exported graph and the plain-numpy reference disagree by more than the tolerance."""


class BundleError(SssdError):
    """A bundle directory is missing, incomplete or damaged."""


class RevisionMismatch(BundleError):
    """A bundle or datastore was written in a revision that this version does not read."""


class SpecMismatch(BundleError):
    """Two artefacts that must fit each other do not."""


class DatastoreError(SssdError):
    """A datastore file, segment or namespace cannot be used."""


class RequestError(SssdError):
    """A request is invalid; no other request is affected.

    `param` names the option to blame, `code` the kind of fault, where one is known.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFull(RequestError):
    """As many requests wait as may; the same request can be given again later."""


class ConfigError(SssdError):
    """A file that configures the server cannot be read or says something wrong; the message names every line."""


class EngineError(SssdError):
    """An engine cannot be started here, or a forward pass failed."""


class OutOfMemory(EngineError):
    """The KV cache cannot grow; fewer running requests may still fit."""


class MissingExtra(SssdError):
    """An optional dependency is absent; the message names the extra that brings it."""

    def __init__(self, module: str, extra: str, *, hint: str | None = None) -> None:
        how = f"install it with  pip install 'sssd[{extra}]'" if hint is None else hint
        super().__init__(f"this needs the package {module}: {how}")
