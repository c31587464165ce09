"""The plain twin of the authors' rules: trees out of lists, by the definitions. Owns no index and no order of its own.

What is looked for and in which order ties are broken is told in csrc/authors.h.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sssd.drafting.reference_confidence import Learned
from sssd.drafting.reference_rules import Evidence, Node, Occurrence, Stored, agreeing, run_length, split
from sssd.drafting.rules import AuthorsRules
from sssd.types import Source


class _Entry(NamedTuple):
    token: int
    occurrences: list[Occurrence]
    score: float
    discount: float
    depth: int
    parent: int
    order: int  # of creation


def _windows(rules: AuthorsRules, evidence: Evidence, m: int) -> list[Occurrence]:
    """Occurrences of the last m tokens inside inserted windows, newest first."""
    text, n = evidence.context, len(evidence.context)
    found = []
    for end in range(n - 1, 0, -1):
        if agreeing(text, n, text, end, m) < m:
            continue
        in_prompt = end - m < max(evidence.prompt_size - rules.bridge, 0)
        text_end = evidence.prompt_size if in_prompt else n
        if end > text_end or (not in_prompt and end - m + rules.window > n):
            continue
        match = agreeing(text, n, text, end, rules.prefix)
        found.append(Occurrence(text, end, min(rules.window - m, text_end - end), match, Source.CONTEXT))
    return found


def _samples(rules: AuthorsRules, evidence: Evidence, branch: int) -> list[Occurrence]:
    stored = Stored(evidence)
    sizes = [len(suffixes) for _, _, suffixes in stored.segments]
    found: list[Occurrence] = []
    for n in range(min(rules.prefix, run_length(evidence.context, rules.prefix)), 0, -1):
        if len(found) >= rules.enough:
            break
        for k, size in enumerate(sizes):
            places = stored.interval(k, n)
            leading = next(s for s in sizes if s > 0) if places else 1
            cap = max(_round(rules.store_most * size / sum(sizes)), _round(rules.store_least * size / leading), 1)
            step = max(1.0, (len(places) - 1) / cap)
            offset = 0.0
            while offset <= len(places) - 1 + 1e-9:
                occurrence = stored.occurrence(k, places[_round(offset)], n, n)
                if occurrence is not None:
                    found.append(occurrence._replace(left=min(occurrence.left, branch)))
                offset += step
    return found


def _round(x: float) -> int:
    return math.floor(x + 0.5)


def _branch_length(tree_size: int) -> int:
    for largest, length in ((5, tree_size - 1), (8, 5), (32, 6), (48, 8)):
        if tree_size <= largest:
            return length
    return 10


def draft_authors(rules: AuthorsRules, evidence: Evidence, learned: Learned | None, budget: int) -> list[Node]:
    """The best `budget` nodes by the authors' rules, parents first."""
    entries: list[_Entry] = []
    n_made = 0

    def push(occurrences: list[Occurrence], factor: float, discount: float, depth: int, parent: int) -> None:
        nonlocal n_made
        for token, branch in split(occurrences).items():
            score = factor * (len(branch) / len(occurrences))
            entries.append(_Entry(token, branch, score, discount, depth + 1, parent, n_made))
            n_made += 1

    for m in range(rules.prefix, 0, -1):
        push(_windows(rules, evidence, m), rules.context_weight, 0.6 + 0.1 * m, 0, -1)
    push(_samples(rules, evidence, rules.branch or _branch_length(budget + 1)), 1.0, 1.0, 0, -1)
    nodes: list[Node] = []
    while entries and len(nodes) < budget:
        best = min(entries, key=lambda e: (-e.score, -e.depth, e.order))
        entries.remove(best)
        siblings = [i for i, node in enumerate(nodes) if node.parent == best.parent]
        same = [i for i in siblings if nodes[i].token == best.token]
        if not same:
            if len(siblings) >= min(rules.most_children, budget):
                continue
            above = 1.0 if best.parent == -1 else nodes[best.parent].path
            source = best.occurrences[0].source
            nodes.append(Node(best.token, best.parent, source, best.score / above, best.score))
            same = [len(nodes) - 1]
        push(best.occurrences, best.score * best.discount, best.discount, best.depth, same[0])
    return nodes if learned is None else _corrected(nodes, learned)


def _corrected(nodes: list[Node], learned: Learned) -> list[Node]:
    corrected: list[Node] = []
    for node in nodes:
        above = 1.0 if node.parent == -1 else corrected[node.parent].path
        corrected.append(node._replace(path=above * learned.curves[node.source].corrected(node.chance)))
    return corrected
