"""Types of the native drafting core; csrc/drafter.h holds the contracts."""

import numpy as np
import numpy.typing as npt

from sssd.types import Float32, Int32, Int64, Uint8

class MixtureRules:
    def __init__(
        self,
        *,
        max_match: int,
        context_most: int,
        store_most: int,
        enough: int,
        head_start: int,
        context_doubt: float,
        store_doubt: float,
        sure_from: int,
        longest_share: float,
    ) -> None: ...

class AuthorsRules:
    def __init__(
        self,
        *,
        prefix: int,
        window: int,
        bridge: int,
        context_weight: float,
        store_most: int,
        store_least: int,
        enough: int,
        branch: int,
        most_children: int,
    ) -> None: ...

class Segment:
    def __init__(self, tokens: Int32, suffixes: Int32, dead: Int64, source: int) -> None: ...
    def find(self, query: Int32) -> tuple[int, int]: ...
    def check(self) -> list[str]: ...

class Batch:
    def __init__(
        self,
        *,
        request_ids: Int64,
        budgets: Int32,
        tokens: Int32,
        parents: Int32,
        scores: Float32,
        source: Uint8,
        counts: Int32,
    ) -> None: ...

class Drafter:
    def __init__(
        self,
        mixture: MixtureRules,
        authors: AuthorsRules | None,
        *,
        n_threads: int,
        rows_per_thread: int,
        background_from: int,
        learn: bool,
    ) -> None: ...
    def begin(self, request_id: int, prompt: Int32, namespaces: Int64, prediction: Int32) -> None: ...
    def propose(self, batch: Batch, first_row: int, n_rows: int) -> None: ...
    def propose_behind(self, request_id: int, ahead: Int32, budget: int) -> tuple[Int32, Int32, Float32, Uint8]: ...
    def accept(self, request_id: int, tokens: Int32) -> None: ...
    def end(self, request_id: int) -> None: ...
    def text(self, request_id: int, n_prompt: int) -> Int32: ...
    def publish(self, namespace_id: int, segments: list[Segment]) -> None: ...
    def settle(self) -> None: ...
    def confidence(self, namespace_id: int) -> npt.NDArray[np.float64]: ...
    def restore_confidence(self, namespace_id: int, state: npt.NDArray[np.float64]) -> None: ...
    def reliability(self) -> npt.NDArray[np.float64]: ...
    def memory(self) -> int: ...
    def check(self) -> list[str]: ...
    def plant_fault(self, request_id: int) -> None: ...
