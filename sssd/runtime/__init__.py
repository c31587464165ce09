"""Requests on slots: who runs in a step, and the step itself."""
