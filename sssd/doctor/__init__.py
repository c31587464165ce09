"""What this machine can run, what a bundle needs of it, and what to install."""
