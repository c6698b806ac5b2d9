"""Schedules: what the ranks of a group do in a collective, as values that can be checked, shown and compiled.

Invariant: nothing here moves a byte, and nothing needs the native engine to be imported.
"""

from collectives.schedule.algorithm import Algorithm as Algorithm
from collectives.schedule.check import VerificationError as VerificationError
from collectives.schedule.draw import draw as draw
from collectives.schedule.explain import explain as explain
from collectives.schedule.explain import explain_group as explain_group
from collectives.schedule.form import IN as IN
from collectives.schedule.form import NOTHING as NOTHING
from collectives.schedule.form import OUT as OUT
from collectives.schedule.form import SCRATCH as SCRATCH
from collectives.schedule.form import Builder as Builder
from collectives.schedule.form import Chunk as Chunk
from collectives.schedule.form import Copy as Copy
from collectives.schedule.form import Recv as Recv
from collectives.schedule.form import Reduce as Reduce
from collectives.schedule.form import Schedule as Schedule
from collectives.schedule.form import Send as Send
from collectives.schedule.form import Step as Step
from collectives.schedule.layout import Layout as Layout
from collectives.schedule.verify import Report as Report
from collectives.schedule.verify import verify as verify
