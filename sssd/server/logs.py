"""Log lines as JSON, one object a line on stderr. Owns their shape; what is logged is decided where it happens.

Prompts, answers, headers and keys are given to no logger; as a second line of defence, what looks like a credential is
masked in every line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import TextIO

_SECRET = re.compile(r"(?i)(bearer\s+|x-api-key['\":=\s]+|api[_-]?key['\":=\s]+|\bsk-)[^\s'\",;]+")
LOGGERS = ("sssd", "uvicorn")


class JsonLines(logging.Formatter):
    """`extra={"fields": {...}}` of a record becomes members of its object."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the record holds."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked(record.getMessage()),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = masked(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


class PlainLines(logging.Formatter):
    """For a terminal: time, level, message and fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback where there is one."""
        fields = " ".join(f"{k}={v}" for k, v in getattr(record, "fields", {}).items())
        text = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {record.levelname.lower()} "
        text += masked(record.getMessage()) + (f" {fields}" if fields else "")
        return text + ("\n" + masked(self.formatException(record.exc_info)) if record.exc_info else "")


def masked(text: str) -> str:
    """The text without anything that looks like a credential."""
    return _SECRET.sub(lambda m: m[1] + "***", text)


def start_logging(kind: str, stream: TextIO | None = None) -> None:
    """Send the package's and the HTTP server's records to `stream` (stderr), as "json" or "plain" lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else PlainLines())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO if name == "sssd" else logging.WARNING)
