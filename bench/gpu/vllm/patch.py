"""`python patch.py FOLDER`: make an unpacked vLLM 0.24 end answers of random weights at known lengths.

Random weights never generate an end token, so every answer would run to `max_tokens`. Both edits act only
while `MARKS_JSON` names a file (`marks.py` writes it):

- the scheduler ends an answer after as many tokens as its prompt's `[[tokens=N]]` states. Neither the
  clients nor vLLM's admission know that length beforehand, as with a real model;
- rows of `lm_head` are zero except for plain English words, so that an answer is ordinary text.

This module imports nothing of Longbatch: it runs where only vLLM is unpacked.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in a source file of vLLM.

    Attributes:
        file: path within the package.
        old: text that occurs exactly once.
        new: its replacement.
    """

    file: str
    old: str
    new: str


_STOP_LIMIT: Final = """    if (
        request.num_tokens >= max_model_len
        or request.num_output_tokens >= request.max_tokens
    ):
"""
_STOP_AT_MARK: Final = """    if _MARKS and request.num_tokens >= _ends_at(request):
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = _MARKS["end"]
        return True
"""
_CHECK_STOP: Final = "def check_stop(request: Request, max_model_len: int) -> bool:\n"
_MARKED_END: Final = """def _load_marks():
    import json
    import os

    name = os.environ.get("MARKS_JSON")
    return json.load(open(name)) if name else None


_MARKS = _load_marks()


def _ends_at(request: Request) -> int:
    found = getattr(request, "_marked_end", None)
    if found is None:
        found = 1 << 60
        ids = list(request.prompt_token_ids or ())
        head, close, digits = _MARKS["head"], _MARKS["close"], _MARKS["digits"]
        for place in range(len(ids) - 4, -1, -1):
            if ids[place] == head[0] and ids[place : place + 3] == head:
                text, at = "", place + 3
                while at < len(ids) and ids[at] != close:
                    text, at = text + digits[str(ids[at])], at + 1
                found = at + 1 + _MARKS["suffix"] + int(text) + 1
                break
        request._marked_end = found
    return found


"""
_TRIM: Final = """                del new_token_ids[num_new:]  # Trim new tokens if needed.
"""
_LAST_ID: Final = """                if _MARKED_END is not None and request.stop_reason == _MARKED_END:
                    new_token_ids[-1] = _MARKED_END
"""
_DUMMY: Final = """        initialize_single_dummy_weight(param, low, high, seed)
"""
_PLAIN_WORDS: Final = """    import json
    import os

    if os.environ.get("MARKS_JSON"):
        allowed = json.load(open(os.environ["MARKS_JSON"]))["allowed"]
        for name, param in model.state_dict().items():
            is_head = type(model).__name__ == "ParallelLMHead" and name == "weight"
            if is_head or name.endswith("lm_head.weight"):
                keep = torch.zeros(param.shape[0], dtype=torch.bool, device=param.device)
                keep[torch.tensor(allowed, device=param.device)] = True
                param.data[~keep] = 0
                logger.info("dummy %s: rows of %d words of %d", name, len(allowed), param.shape[0])
"""
_SCHEDULER_LOGGER: Final = "logger = init_logger(__name__)\n"
_END_ID: Final = """

def _marked_end():
    import json
    import os

    name = os.environ.get("MARKS_JSON")
    return json.load(open(name))["end"] if name else None


_MARKED_END = _marked_end()
"""
EDITS: Final = (
    Edit("v1/core/sched/utils.py", _STOP_LIMIT, _STOP_AT_MARK + _STOP_LIMIT),
    Edit("v1/core/sched/utils.py", _CHECK_STOP, _MARKED_END + _CHECK_STOP),
    Edit("v1/core/sched/scheduler.py", _TRIM, _TRIM + _LAST_ID),
    Edit("v1/core/sched/scheduler.py", _SCHEDULER_LOGGER, _SCHEDULER_LOGGER + _END_ID),
    Edit(
        "model_executor/model_loader/weight_utils.py",
        "    for param in model.state_dict().values():\n" + _DUMMY,
        "    for param in model.state_dict().values():\n" + _DUMMY + _PLAIN_WORDS,
    ),
)


def apply(root: Path) -> None:
    """Apply all edits to the package in this folder.

    Raises:
        ValueError: a file lacks the expected text; the release is not the one these edits were written for.
    """
    for edit in EDITS:
        path = root / "vllm" / edit.file
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise ValueError(f"{edit.file} contains the expected text {text.count(edit.old)} times, not once")
        path.write_text(text.replace(edit.old, edit.new))


if __name__ == "__main__":
    apply(Path(sys.argv[1]))
