"""The stand-ins for the CUDA driver and NCCL, for tests of this folder."""

from tests.stand_in.fixture import stand_in

__all__ = ["stand_in"]
