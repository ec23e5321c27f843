"""Autocast lists, loss scaling and gradient clipping for the plugins of Trainer and Fabric."""
