"""What is wrong with a whole answer: with its text, or with the calls that it makes."""

import re
from typing import Final
from uuid import UUID

from jobs.checkpoints import Output
from jobs.prompts.guides import Guide, GuideKind
from jobs.prompts.tools.forms import AnswerForm, CallForm
from worker.guides.checker import FormChecker

# A whole answer in one block of Markdown, as models like to write code.
_FENCED: Final = re.compile(r"\s*```[a-zA-Z]*[ \t]*\n(.*)\n[ \t]*```\s*", re.DOTALL)


async def fault_of(output: Output, form: AnswerForm, checker: FormChecker, *, tenant_id: UUID) -> str | None:
    """Return what keeps an answer from being what it must be; None: nothing does.

    Raises:
        CheckerLostError: it cannot be checked now; try again.
    """
    if form.calls is not None:
        return await _fault_of_calls(output, form.calls, checker, tenant_id=tenant_id)
    if form.guide is None:
        return None
    return await checker.fault_of(output.text, form.guide, tenant_id=tenant_id)


def unfenced(text: str) -> str:
    """Take an answer out of the block of code that it is; return any other as it is."""
    found = _FENCED.fullmatch(text)
    return found[1] if found else text


async def _fault_of_calls(
    output: Output, calls: CallForm, checker: FormChecker, *, tenant_id: UUID
) -> str | None:
    """Check the arguments of functions that are strict, and that there is a call where one is required."""
    if calls.is_required and not output.calls:
        return "it calls no function"
    for index, call in enumerate(output.calls):
        schema = calls.strict.get(call.name)
        if schema is not None:
            guide = Guide(GuideKind.JSON, schema)
            fault = await checker.fault_of(call.arguments, guide, tenant_id=tenant_id)
            if fault is not None:
                of_call = f"call {index}, of {call.name}" if checker.quotes else f"call {index}"
                return f"the arguments of {of_call}: {fault}"
    return None
