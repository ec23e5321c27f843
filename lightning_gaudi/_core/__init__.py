"""What all rooms stand on: the vendor's package, processes, the cache; nothing knows Lightning.

A process has one of each, whichever of Lightning's namespaces it uses.
"""
