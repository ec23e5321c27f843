"""Capturing device work and replaying it without its Python; `hpu.graphs` is the public face.

In reading order: `record` (what ran while a capture was open), `program` (running it again),
`refusals` (what cannot be captured), `graph` and `context` (HPUGraph, capturing a block), `keys`
(when a graph is found again), `inference` (wrap_in_hpu_graph), `callables`
(make_graphed_callables), `packer`, `graph_model` and `cacher` (ModuleCacher), `checks` (misuse that
a card does not notice).
"""
