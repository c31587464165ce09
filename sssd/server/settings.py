"""What an operator chooses about the HTTP side. Checked when made; knows no engine and no request."""

from __future__ import annotations

from dataclasses import dataclass

from sssd.errors import SssdError


@dataclass(frozen=True)
class Settings:
    """Options of the server. Raises SssdError naming the field, what was given and what is allowed."""

    names: tuple[str, ...] = ()  # names that requests may give as `model`, the first one is shown; () = the bundle's
    max_body_bytes: int = 8 * 1024 * 1024  # a larger request body is refused
    max_choices: int = 128  # most answers that one call may ask for: prompts times `n`
    temperature: float = 1.0  # of requests that give none; OpenAI's default
    timeout: float | None = None  # seconds until a request that gives none is ended; None = never

    def __post_init__(self) -> None:
        for name, ok, allowed in (
            ("names", all(self.names), "names that are not empty"),
            ("max_body_bytes", self.max_body_bytes >= 1, "1 or more"),
            ("max_choices", self.max_choices >= 1, "1 or more"),
            ("temperature", 0 <= self.temperature < float("inf"), "0 (greedy) or more"),
            ("timeout", self.timeout is None or self.timeout > 0, "above 0 seconds"),
        ):
            if not ok:
                raise SssdError(f"{name} is {getattr(self, name)!r}: allowed is {allowed}")
