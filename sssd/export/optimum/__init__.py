"""Any other Hugging Face decoder, traced by torch's exporters into the graph that engines run.

    pipeline     the order of it all, and the bundle          \
    environment  the other interpreter, and talking to it      | here, without torch
    finish       the traced graph under the contract's names   |
    storing      its weights in the weights file               /
    job          what crosses the process border
    worker       what the other interpreter runs              \
    operators    KV scatter and attention as traced operators  |
    tree_model   one tree step through the model's own forward | there, with torch and transformers
    patches      what a model is told while it is traced       |
    tracing      torch's exporter, then Optimum's              |
    probe        the model's two-layer random copy             |
    answers      what the model itself says                   /

Torch, transformers and Optimum live in an interpreter of their own, since their pins are older than ours.
"""
