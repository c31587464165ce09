"""Where drafts come from; the target decides what becomes of them."""
