"""The retrieval drafter alone: feed any engine with it. Here the engine is a text that is known already."""

from __future__ import annotations

import numpy as np

from sssd.drafting.retrieval import Retrieval
from sssd.types import DraftJob, DraftOptions

prompt = np.array([5, 6, 7, 8, 9, 1, 2, 5, 6], np.int32)
answer = [7, 8, 9, 1, 3, 5, 6, 7, 8, 9, 1, 3]  # what your engine would say

drafter = Retrieval()
drafter.begin(1, prompt, DraftOptions())
said: list[int] = []
while len(said) < len(answer):
    tree = drafter.propose([DraftJob(request_id=1, budget=4)])[0]
    node, new = -1, []
    while len(said) + len(new) < len(answer):  # the engine's own walk down the tree
        new.append(answer[len(said) + len(new)])
        children = [i for i in range(len(tree)) if tree.parents[i] == node and tree.tokens[i] == new[-1]]
        if not children:
            break
        node = children[0]
    drafter.accept(1, np.array(new, np.int32), tree)
    said += new
    print(f"{len(new)} tokens in one step: {new}")
drafter.end(1)
drafter.close()
