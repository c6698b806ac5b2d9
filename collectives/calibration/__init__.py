"""Measuring which algorithm is fastest, by a group on itself.

Invariant: every rank goes through the same steps, because what decides them, the times of the slowest rank, is the
same on all.
"""

from collectives.calibration.run import FULL as FULL
from collectives.calibration.run import QUICK as QUICK
from collectives.calibration.run import Effort as Effort
from collectives.calibration.run import Outcome as Outcome
from collectives.calibration.run import calibrate as calibrate
