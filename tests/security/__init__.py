"""Attacks on what reads files, the network and the environment."""
