"""Complete training runs to copy and change; each is a package that `python -m` runs."""
