"""Calibration: a group of ranks measures which algorithms are fastest on its machines.

Invariant: every rank goes through the same steps, because the steps depend only on the times of the slowest rank, which
all ranks know.
"""

from collectives.calibration.run import FULL as FULL
from collectives.calibration.run import QUICK as QUICK
from collectives.calibration.run import Effort as Effort
from collectives.calibration.run import Outcome as Outcome
from collectives.calibration.run import calibrate as calibrate
