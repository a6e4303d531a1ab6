"""The commands of README.md and of pages of docs/ do what they say, block by block.

Of what a page shows, a test puts in only what a reader does: addresses, keys, ids, paths.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bucket_support import Bucket
from cli.stack.stack import Stack
from documented.shell import Bash, shell_blocks
from scripts.docs.build import ROOT
from support import eventually
from system_support import text_of
from weights.adapters import write_peft_adapter

pytestmark = pytest.mark.timeout(300)

LEASES = {
    "north.txt": "The parties are Ada and Bo. The rent is 900. The notice is three months. The fee is 5.",
    "south.txt": "The parties are Cy and Di. The rent is 700. The notice is one month. The fee is 7.",
}


def blocks(page: str, section: str) -> list[str]:
    """The blocks of shell in this section, which are there."""
    found = [each.text for each in shell_blocks() if (each.page, each.section) == (page, section)]
    assert found, f"{page} has no commands in {section!r}"
    return found


def other_block(page: str, language: str) -> str:
    """The first block of the page in this language."""
    found = re.search(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def objects(printed: str) -> list[dict[str, Any]]:
    """What the API answered, one after another; none is an error."""
    decoder, at, found = json.JSONDecoder(), 0, []
    while at < len(printed):
        value, at = decoder.raw_decode(printed, at)
        assert "error" not in value or value["error"] is None, value
        found.append(value)
        at += len(printed[at:]) - len(printed[at:].lstrip())
    return found


def write(folder: Path, texts: dict[str, str]) -> None:
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)


def test_the_first_commands_of_the_readme(bash: Bash, bucket: Bucket, tmp_path: Path) -> None:
    reports = {name: text_of(900, start=5000 * number) for number, name in enumerate(("a.txt", "b.txt"))}
    write(tmp_path / "reports", reports)
    write(tmp_path / "inbox", {"letter.txt": text_of(900, start=30_000)})
    bucket.objects["reports/c.txt"] = text_of(900, start=60_000).encode()
    (first,) = blocks("README.md", "Longbatch")
    bash(first)
    _, summarize, _ = blocks("README.md", "Use it")
    assert "watch-folder inbox/" in summarize
    printed = bash(summarize.replace("watch-folder", "watch-folder --once"))  # it goes on until Ctrl-C
    written = {each.name for each in (tmp_path / "summaries").iterdir()}
    assert written >= {"a.txt.md", "b.txt.md", "letter.txt.md"}
    assert set(bucket.objects) == {"reports/c.txt", "out/c.txt.md"}
    assert '"summary"' in printed


def test_what_the_quick_start_does_with_a_stack(bash: Bash, tmp_path: Path) -> None:
    write(tmp_path / "reports", {"a.txt": text_of(900)})
    write(tmp_path / "contracts", LEASES)
    (block,) = blocks("docs/quickstart.md", "Use it")
    bash(block.replace("longbatch console", "longbatch console --no-open"))
    assert (tmp_path / "summaries" / "a.txt.md").read_text()
    rows = (tmp_path / "answers.csv").read_text().splitlines()
    assert len(rows) == 1 + len(LEASES)


def test_single_jobs_of_the_readme(bash: Bash, stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text(text_of(900))
    lines = [{"input": f"Say {number}.", "max_tokens": 16} for number in range(2)]
    (tmp_path / "jobs.ndjson").write_text("\n".join(json.dumps(each) for each in lines))
    *_, block = blocks("README.md", "Use it")
    block = block.replace("lb_…", stack.urls.api_key or "")
    start, wait, *others = re.split(r"^(?=lb .*job_…)", block, flags=re.MULTILINE)
    setting = "\n".join(start.splitlines()[:2])
    (job,) = objects(bash(start))
    (ended,) = objects(bash(f"{setting}\n{wait.replace('job_…', job['id'])}"))
    assert ended["state"] == "completed"
    printed = bash(f"{setting}\n{''.join(others).replace('job_…', job['id'])}")
    assert f'"id":"{job["id"]}","state":"completed","output":' in printed
    assert printed.count('"job_') >= 2


def test_questions_to_documents(bash: Bash, bucket: Bucket, tmp_path: Path) -> None:
    write(tmp_path / "contracts", LEASES)
    (tmp_path / "questions.txt").write_text("What is the rent?\nWhat is the fee?\n")
    bucket.objects["contracts/east.txt"] = b"The rent is 500. The fee is 1."
    (block,) = blocks("docs/questions.md", "One command")
    printed = bash(block)
    assert (tmp_path / "answers.csv").read_text().startswith("document,question,answer,pages,quote")
    assert '"contracts/north.txt"' in printed
    assert bucket.objects["answers.csv"].startswith(b"document,question")


def test_fields_of_documents(bash: Bash, bucket: Bucket, tmp_path: Path) -> None:
    write(tmp_path / "contracts", LEASES)
    request = json.loads(other_block("docs/extraction.md", "json"))
    (tmp_path / "lease.json").write_text(json.dumps(request["schema"]))
    bucket.objects["contracts/east.txt"] = b"The rent is 500."
    (block,) = blocks("docs/extraction.md", "One command")
    bash(block)
    assert (tmp_path / "leases.csv").read_text().startswith("document,parties,rent,notice,fees")
    assert (tmp_path / "leases.xlsx").read_bytes().startswith(b"PK")
    assert (tmp_path / "leases.jsonl").read_text().count("\n") == 1


def test_own_templates(bash: Bash, tmp_path: Path) -> None:
    write(tmp_path / "meetings", {"monday.txt": text_of(900)})
    (tmp_path / "minutes.toml").write_text(other_block("docs/templates.md", "toml"))
    (block,) = blocks("docs/templates.md", "Own templates")
    bash(block)
    assert (tmp_path / "minutes" / "monday.txt.md").read_text()


def test_tenants_keys_and_pauses(bash: Bash) -> None:
    first, over_http = blocks("docs/operations.md", "Tenants and keys")
    create, handle = first.splitlines(), "lb_3f9a1c2b4d5e6f70"
    assert create[1].startswith("longbatch keys create")
    key = bash("\n".join(create[:2])).split()[-1]
    rest = "\n".join(create[2:]).replace(handle, key)
    listed = bash(rest.replace("delete research", "delete research --yes --wait"))  # it asks
    assert key[:19] in listed
    assert key not in listed
    operator = bash("longbatch keys create --scope operator").split()[-1]
    other = re.sub(r"\bresearch\b", "development", over_http)
    setting = f"OPERATOR_KEY={operator}\n"
    until_list, after = re.split(r"^(?=op 'localhost)", other, maxsplit=1, flags=re.MULTILINE)
    tenant, changed, made = objects(bash(setting + until_list))
    assert (tenant["name"], changed["limits"]["max_requests"]) == ("development", 600)
    function = other.splitlines()[0]
    found = objects(bash(f"{setting}{function}\n{after.replace(handle, made['id'])}"))
    assert found[0]["data"][0]["id"] == made["id"]
    engine = bash("longbatch tenants create research >&2; longbatch engine list").split()[0]
    (pausing,) = blocks("docs/operations.md", "Pause, drain, resume")
    assert "new driver" in bash(pausing.replace("a6000-1", engine))
    (again,) = json.loads(bash("longbatch engine list --json"))
    assert again["state"] == "running"


def test_who_changed_what(bash: Bash) -> None:
    made = json.loads(bash("longbatch keys create --name audited --json"))
    bash(f"longbatch keys revoke {made['id']}")
    (block,) = blocks("docs/access.md", "The audit log")
    printed = bash(block.replace("lb_3f9a1c2b4d5e6f70", made["id"]))
    assert printed.count("key.create") >= 2
    assert printed.count("key.revoke") >= 3


def test_quotas_of_a_key(bash: Bash) -> None:
    bash("longbatch tenants create research-4")
    (block,) = blocks("docs/access.md", "What one key may have in the queue")
    create, change = block.splitlines()
    key = bash(create.replace("research", "research-4")).split()[-1]
    bash(change.replace("lb_3f9a1c2b4d5e6f70", key[:19]))
    (found,) = json.loads(bash("longbatch keys list --tenant research-4 --json"))
    assert (found["max_jobs"], found["max_enqueued_tokens"]) == (200, 20_000_000)


def test_a_tenant_is_deleted(bash: Bash) -> None:
    operator = bash("longbatch tenants create research-2; longbatch keys create --scope operator").split()[-1]
    bash("longbatch tenants create development-2")
    (block,) = blocks("docs/privacy.md", "Delete a tenant with everything")
    by_command, over_http = block.splitlines()
    bash(by_command.replace("research", "research-2 --yes --wait"))
    bash(f"OPERATOR_KEY={operator}\n{over_http.replace('research', 'development-2')}")
    assert eventually(lambda: "development-2" not in bash("longbatch tenants list"))


def test_adapters(bash: Bash, tmp_path: Path) -> None:
    write_peft_adapter(tmp_path / "models" / "legal")
    base = tmp_path / "models" / "Llama-3.1-8B-Instruct"
    base.mkdir()
    shape = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    (base / "config.json").write_text(json.dumps({**shape, "num_hidden_layers": 2, "model_type": "llama"}))
    bash("longbatch tenants create research-3")
    (block,) = blocks("docs/adapters.md", "Adapters (LoRA)")
    block = block.replace("/models", str(tmp_path / "models")).replace("limit research", "limit research-3")
    printed = bash(block)
    assert "llama-3.1-8b-instruct:legal" in printed


def test_tensors_by_name(bash: Bash, tmp_path: Path) -> None:
    key = bash("longbatch keys create --scope submit --scope read --scope engine").split()[-1]
    (block,) = blocks("docs/tensors.md", "Tensors by name")
    setting = f"lb() {{ curl -s -H 'Authorization: Bearer {key}' \"$@\"; }}\n"
    submit, result, content = re.split(r"^(?=lb .*…/)|^(?=lb .*file-…)", block, flags=re.MULTILINE)
    (job,) = objects(bash(setting + submit))
    objects(bash(f"{setting}lb 'localhost:8080/v1/jobs/{job['id']}?wait=60'"))
    (found,) = objects(bash(setting + result.replace("job_…", job["id"])))
    bash(setting + content.replace("file-…", found["engine_outputs"]["context_logits"]["file_id"]))
    assert (tmp_path / "context_logits.npy").read_bytes().startswith(b"\x93NUMPY")
