"""Measurements that are commands: what drafts, the loop and whole engines cost and gain."""
