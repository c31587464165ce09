"""The plain twin of the native drafting core: the same trees, found by looking at everything. Owns no fast structure.

It knows what csrc/ promises and not how it is done; tests hold the two against each other on random streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sssd.drafting.reference_authors import draft_authors
from sssd.drafting.reference_confidence import Learned
from sssd.drafting.reference_rules import Evidence, Guides, Node, draft_mixture, guides
from sssd.drafting.rules import AuthorsRules, MixtureRules
from sssd.drafting.segments import SEPARATOR, Segment
from sssd.errors import RequestError
from sssd.types import DraftJob, DraftOptions, DraftTree, Int32, Source


@dataclass(slots=True)
class _Request:
    """One request's text and the tree proposed last."""

    tokens: list[int]
    prompt_size: int
    prediction: list[int]
    namespaces: tuple[str, ...]
    on_prediction: bool = True  # the output so far is the beginning of the prediction
    proposal: list[Node] = field(default_factory=list)
    guides: Guides | None = None  # of the proposal
    cursor: int = 0  # position behind what was copied last


class ReferenceRetrieval:
    """Implements Drafter as `Retrieval` does, at a cost of everything for every tree."""

    def __init__(self, rules: MixtureRules | AuthorsRules, *, learn: bool = True) -> None:
        self._rules = rules
        self._learn = learn
        self._segments: dict[str, tuple[Segment, ...]] = {"default": ()}
        self._learned: dict[str, Learned] = {}
        self._requests: dict[int, _Request] = {}

    def publish(self, namespace: str, segments: Sequence[Segment]) -> None:
        """Replace a namespace's segments."""
        self._segments[namespace] = tuple(segments)

    def begin(self, request_id: int, prompt: Int32, options: DraftOptions) -> None:
        """Raises RequestError if the id is in use or a namespace unknown."""
        unknown = [name for name in options.namespaces if name not in self._segments]
        if unknown or request_id in self._requests:
            raise RequestError(f"request id {request_id} is in use, or one of the namespaces {unknown} is unknown")
        prediction = [] if options.prediction is None else _closed(options.prediction)
        self._requests[request_id] = _Request(_closed(prompt), len(prompt), prediction, options.namespaces)

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        """One tree a job, in order."""
        return [self._tree(self._requests[job.request_id], job.budget) for job in jobs]

    def _tree(self, request: _Request, budget: int) -> DraftTree:
        learned = self._learned_of(request) if self._learn else None
        segments = [s for name in request.namespaces for s in self._segments[name]]
        written = len(request.tokens) - request.prompt_size
        on_prediction = request.on_prediction and written < len(request.prediction)
        evidence = Evidence(
            request.tokens, request.prompt_size, request.cursor, request.prediction, on_prediction, segments
        )
        nodes: list[Node] = []
        request.guides = None
        if budget > 0 and request.tokens:
            if isinstance(self._rules, AuthorsRules):
                nodes = draft_authors(self._rules, evidence, learned, budget)
            else:
                nodes = draft_mixture(self._rules, evidence, learned, budget)
                request.guides = guides(self._rules, evidence)
        request.proposal = arrange(nodes)
        scores = [n.path if learned is None else learned.paths.corrected(n.path) for n in request.proposal]
        return DraftTree(
            np.array([n.token for n in request.proposal], np.int32),
            np.array([n.parent for n in request.proposal], np.int32),
            np.array(scores, np.float32),
            np.array([n.source for n in request.proposal], np.uint8),
        )

    def _learned_of(self, request: _Request) -> Learned | None:
        if not request.namespaces:
            return None
        return self._learned.setdefault(request.namespaces[0], Learned(len(Source)))

    def accept(self, request_id: int, tokens: Int32, tree: DraftTree) -> None:
        """Append committed tokens and learn from the tree proposed last."""
        request = self._requests[request_id]
        committed = _closed(tokens)
        if self._learn:
            self._judge(request, committed)
        _follow(request, committed)
        request.proposal, request.guides = [], None
        for token in committed:
            written = len(request.tokens) - request.prompt_size
            request.on_prediction &= written < len(request.prediction) and request.prediction[written] == token
            request.tokens.append(token)

    def _judge(self, request: _Request, committed: list[int]) -> None:
        learned = self._learned_of(request)
        if learned is None:
            return
        guided = request.guides
        if committed and guided is not None and len(set(guided[:3])) > 1:
            learned.leaning.learn([committed[0] == guide for guide in guided[:3]])
        for i, node in enumerate(request.proposal):
            path = _path(request.proposal, i)
            known = committed[: len(path)]
            if len(path) > len(known) and path[: len(known)] == known:
                continue  # nobody knows
            learned.paths.learn(node.path, path == known)
            if path[:-1] == known[: len(path) - 1]:
                learned.curves[node.source].learn(node.chance, path == known)

    def end(self, request_id: int) -> None:
        """Drop the request."""
        del self._requests[request_id]

    def check(self) -> list[str]:
        """There is nothing that could be wrong with a list."""
        return []

    def close(self) -> None:
        """Nothing to release."""


def _closed(tokens: Int32) -> list[int]:
    return [t if t >= 0 else SEPARATOR for t in tokens.tolist()]


def _follow(request: _Request, committed: list[int]) -> None:
    """Move the cursor behind what was committed as it stands at the onward place, if that was right."""
    guided = request.guides
    if guided is None or guided.onward_at is None or committed[:1] != [guided.onward]:
        return
    text = [*request.tokens, SEPARATOR]
    n = 0
    while n < len(committed) and committed[n] == text[guided.onward_at + n] >= 0:
        n += 1
    request.cursor = guided.onward_at + n


def _path(nodes: list[Node], i: int) -> list[int]:
    path: list[int] = []
    while i != -1:
        path.append(nodes[i].token)
        i = nodes[i].parent
    return path[::-1]


def arrange(nodes: list[Node]) -> list[Node]:
    """Depth first; of siblings the likeliest first, then the one with the taller subtree, then the earlier."""
    children: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(i)

    def height(i: int) -> int:
        return 1 + max((height(c) for c in children.get(i, [])), default=0)

    arranged: list[Node] = []

    def visit(i: int, parent: int) -> None:
        place = len(arranged)
        arranged.append(nodes[i]._replace(parent=parent))
        for c in ordered(i):
            visit(c, place)

    def ordered(i: int) -> list[int]:
        return sorted(children.get(i, []), key=lambda c: (-nodes[c].path, -height(c), c))

    for i in ordered(-1):
        visit(i, -1)
    return arranged
