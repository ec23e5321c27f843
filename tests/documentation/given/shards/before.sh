lightning-gaudi simulate --cards 1 -- python make_shards.py
