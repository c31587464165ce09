"""Options as frozen values, checked when made. The CLI's defaults are these classes' own; nothing is ever mutated.

Knows no engine and no text beyond stop strings.
"""

from __future__ import annotations

from dataclasses import dataclass

from sssd.errors import RequestError, SssdError


@dataclass(frozen=True)
class SamplingParams:
    """How a request's tokens are chosen and when it ends.

    Order of operations on a node's scores: repetition, presence and frequency penalties, logit bias, min_tokens' ban
    of ending tokens; temperature; top-k; top-p; min-p; draw. Temperature 0 takes the best after the first group.
    Penalties count what precedes the token: committed tokens and the accepted path above it.
    Raises RequestError naming the field, what was given and what is allowed.
    """

    max_tokens: int = 256
    min_tokens: int = 0  # ending tokens are banned before this many were emitted
    temperature: float = 0.0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off
    min_p: float = 0.0  # 0 = off
    seed: int | None = None  # None = drawn when the request starts, and told in its stats
    repetition_penalty: float = 1.0  # over prompt and output; 1 = off
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0  # over output
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its score)
    stop: tuple[str, ...] = ()  # strings that end the output; not part of its text
    stop_ids: tuple[int, ...] = ()  # tokens that end the output, beside the model's own
    ignore_eos: bool = False  # the model's own ending tokens do not end the output
    include_stop: bool = False  # the stop string, or the ending token's text, is part of the output's text
    skip_special: bool = True  # special tokens have no text
    logprobs: int | None = None  # alternatives to report for each token; None = no logprobs
    prompt_logprobs: int | None = None  # the same for the prompt's tokens, but the first

    def __post_init__(self) -> None:
        for name, ok, allowed in (
            ("max_tokens", self.max_tokens >= 1, "1 or more"),
            ("min_tokens", 0 <= self.min_tokens <= self.max_tokens, "0 to max_tokens"),
            ("temperature", 0 <= self.temperature < float("inf"), "0 (greedy) or more"),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0, at most 1"),
            ("min_p", 0 <= self.min_p < 1, "0 (off) to below 1"),
            ("seed", self.seed is None or 0 <= self.seed < 2**64, "0 to 2**64 - 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < float("inf"), "above 0 (1 is off)"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "-2 to 2"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "-2 to 2"),
            ("logit_bias", all(i >= 0 and -100 <= b <= 100 for i, b in self.logit_bias), "token ids with -100 to 100"),
            ("stop", all(self.stop), "strings that are not empty"),
            ("stop_ids", all(i >= 0 for i in self.stop_ids), "token ids"),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= 20, "0 to 20"),
            ("prompt_logprobs", self.prompt_logprobs is None or 0 <= self.prompt_logprobs <= 20, "0 to 20"),
        ):
            if not ok:
                raise RequestError(f"{name} is {getattr(self, name)!r}: allowed is {allowed}", param=name)

    @property
    def penalizes(self) -> bool:
        """Whether scores depend on the tokens before them beyond what the model computes."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True)
class LoopConfig:
    """How the loop shapes its steps."""

    n_slots: int = 4  # requests that can run at once
    n_warm: int = 2  # further slots, which keep the beginnings of finished requests for reuse
    max_waiting: int = 1024  # requests that may wait for a slot
    chunk: int = 256  # most columns of a row in a step: prompt tokens, and the draft tree behind the last of them
    max_draft_tokens: int = 15  # most draft nodes a row carries in a step; what pays is decided anew in every step
    fixed_width: int | None = None  # always run exactly this many columns
    fastest: bool = False  # allow widths below the engine's min_width: plain steps are faster, bits may differ

    def __post_init__(self) -> None:
        for name, ok, allowed in (
            ("n_slots", self.n_slots >= 1, "1 or more"),
            ("n_warm", self.n_warm >= 0, "0 or more"),
            ("max_waiting", self.max_waiting >= 1, "1 or more"),
            ("chunk", self.chunk >= 1, "1 or more"),
            ("max_draft_tokens", self.max_draft_tokens >= 0, "0 (no speculation) or more"),
            ("fixed_width", self.fixed_width is None or self.fixed_width >= 2, "2 or more"),
            ("fastest", not (self.fastest and self.fixed_width), "off when fixed_width is given"),
        ):
            if not ok:
                raise SssdError(f"{name} is {getattr(self, name)!r}: allowed is {allowed}")


@dataclass(frozen=True)
class CascadeConfig:
    """How draft models work together (Cascade Speculative Drafting, arXiv 2312.11462).

    Levels stand largest first, the model-free drafter at the bottom. Row i of `k` says how a draft for level i - 1 is
    made (row 0: for the target): so many positions by level i, so many more by level i + 1, ..., the last ones by the
    bottom drafter. Raises SssdError naming the entry.
    """

    k: tuple[tuple[int, ...], ...]  # row i has one entry less than row i - 1; all of them 1 or more
    lenience: float = 1.0  # a level accepts a draft token that it gives a probability above 1 / lenience; 1 = its own
    children: int = 1  # of a node; above 1, levels branch out and the bottom drafter's own tree is merged in
    adaptive: bool = True  # leave levels out of a step where they do not pay

    def __post_init__(self) -> None:
        shape = [len(row) for row in self.k]
        if not shape or shape != list(range(shape[0], 0, -1)) or len(shape) != shape[0]:
            raise SssdError(
                f"the rows of K have {', '.join(map(str, shape)) or 'no'} entries: allowed is one row a draft model "
                "and one for the bottom drafter, each an entry shorter than the one before, such as 5,14,10;1,10;10"
            )
        for name, ok, allowed in (
            ("k", all(n >= 1 for row in self.k for n in row), "1 or more everywhere"),
            ("lenience", 1 <= self.lenience < float("inf"), "1 or more"),
            ("children", 1 <= self.children <= 20, "1 to 20"),
        ):
            if not ok:
                raise SssdError(f"{name} is {getattr(self, name)!r}: allowed is {allowed}")

    @property
    def n_levels(self) -> int:
        """Draft models it is for."""
        return len(self.k) - 1


# published settings by name, for as many draft models as they have rows, less one
CASCADE_PRESETS = {
    "mmlu": CascadeConfig(((5, 14, 10), (1, 10), (10,)), lenience=2),
    "mmlu-cheap": CascadeConfig(((5, 8, 10), (1, 10), (10,)), lenience=5),  # where small models cost relatively more
    "llama": CascadeConfig(((13, 10), (10,)), lenience=3),
    "one": CascadeConfig(((5, 10), (10,))),
}
_DEFAULT_PRESETS = {1: "one", 2: "mmlu"}  # by number of draft models


def cascade_config(
    n_levels: int, *, k: str | None = None, lenience: float | None = None, children: int = 1, adaptive: bool = True
) -> CascadeConfig:
    """From what a user writes: `k` is a preset's name or rows such as "5,14,10;1,10;10", None the usual preset.

    Raises SssdError for a name that is unknown, rows that are no numbers, and a K for another number of models.
    """
    if k is None and n_levels not in _DEFAULT_PRESETS:
        raise SssdError(f"no usual K for {n_levels} draft models: give one with {n_levels + 1} rows")
    name = _DEFAULT_PRESETS[n_levels] if k is None else k
    preset = CASCADE_PRESETS.get(name)
    if preset is None:
        try:
            rows = tuple(tuple(int(entry) for entry in row.split(",")) for row in name.split(";"))
        except ValueError:
            raise SssdError(
                f"K is {name!r}: allowed are rows of numbers such as 5,14,10;1,10;10, or {', '.join(CASCADE_PRESETS)}"
            ) from None
        preset = CascadeConfig(rows)
    if preset.n_levels != n_levels:
        raise SssdError(f"K {name!r} is for {preset.n_levels} draft models and there are {n_levels}: one row a model")
    lenience = preset.lenience if lenience is None else lenience
    return CascadeConfig(preset.k, lenience=lenience, children=children, adaptive=adaptive)
