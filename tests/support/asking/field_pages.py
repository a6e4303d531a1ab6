"""Extractions as tests of the console's pages make them."""

from functools import partial

from asking.cases import Cases
from asking.fields import extract, look_up, run
from jobs import ids

LIST = "/console/extractions"
SHORT = "The rent is 900. The parties are Ada and Bo."

_CASES = Cases(
    LIST, ids.EXTRACTION, "lease-{number}.txt", make=partial(extract, length=96), run=run, script=look_up
)
waiting, running, completed, work = _CASES.waiting, _CASES.running, _CASES.completed, _CASES.work
address_of, listed, document_of = _CASES.address_of, _CASES.listed, _CASES.document_of
