"""What several rooms need that has nothing to do with collectives: sizes as people write them, pictures.

Invariant: imports nothing of the library but `native`.
"""
