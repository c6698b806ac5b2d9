"""The communicator: how a group forms, opens links and chooses algorithms, and the calls that users make.

Invariant: imports no training framework, such as PyTorch.
"""
