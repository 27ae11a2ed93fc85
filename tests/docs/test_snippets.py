"""Every fenced block of every page is valid: programs accept the commands and the YAML."""

from __future__ import annotations

import base64
import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from gpushare import codec, contract
from gpushare.object_parsers import read_yaml
from lab import access, demo
from lab import api_server_files as files
from tests import builders
from tests.config import manifests
from tests.docs import commands, pages
from tests.docs.pages import Block

BLOCKS = pages.blocks()
SHELL = [block for block in BLOCKS if block.language in {"sh", "console"}]
YAML = [(block, document) for block in BLOCKS if block.language == "yaml" for document in read_yaml(block.text)]
PODS = [(block, document) for block, document in YAML if document.get("kind") == "Pod"]
# For an owner of pods, the pod that it would create.
TEMPLATES = [
    (block, document["spec"]["template"]) for block, document in YAML if "template" in document.get("spec", {})
]
CONFIGURATIONS = [(block, document) for block, document in YAML if document.get("version") == "v1"]
INSTALLATIONS = [(block, document) for block, document in YAML if "components" in document]
# Files for the API server, which tests/webhook tests in the lab.
API_SERVERS = [
    (block, document)
    for block, document in YAML
    if document.get("kind") in {"AdmissionConfiguration", "AuthorizationConfiguration", "Config"}
]
# tests/monitoring tests these with Prometheus.
SCRAPES = [(block, document) for block, document in YAML if "scrape_configs" in document]
DIFFS = [block for block in BLOCKS if block.language == "diff"]
WITHOUT_LANGUAGE = [block for block in BLOCKS if not block.language]


def named(value: object) -> str | None:
    return str(value) if isinstance(value, Block) else None


def test_every_block_of_every_page_is_checked() -> None:
    assert {"README.md", "docs/operations.md", "docs/cli/top.md", "interposer/README.md"} <= set(
        map(pages.name, pages.PAGES)
    )
    known = {id(block) for block in (*SHELL, *DIFFS, *WITHOUT_LANGUAGE)}
    known |= {id(block) for block, _ in (*PODS, *TEMPLATES, *CONFIGURATIONS, *INSTALLATIONS, *SCRAPES, *API_SERVERS)}
    assert [str(block) for block in BLOCKS if id(block) not in known] == []
    assert len(PODS) >= 1
    assert len(TEMPLATES) >= 1
    assert len(CONFIGURATIONS) >= 3


def test_api_server_files_equal_the_labs() -> None:
    templates = (files.ADMISSION, files.WEBHOOKS, files.AUTHORIZATION, files.UNUSED_KUBECONFIG)
    texts = [text.replace("{certificates}", "/etc/kubernetes/webhooks") for text in templates]
    shown = {yaml.safe_dump(document) for _, document in API_SERVERS}
    assert shown == {yaml.safe_dump(yaml.safe_load(text)) for text in texts}


@pytest.mark.parametrize("block", SHELL, ids=named)
def test_commands_are_accepted_by_their_programs(block: Block) -> None:
    sentences = {line: commands.wrong(part) for line in pages.lines(block) for part in commands.parts(line)}
    assert {line: sentence for line, sentence in sentences.items() if sentence} == {}


@pytest.mark.parametrize("block", WITHOUT_LANGUAGE, ids=named)
def test_a_block_without_a_language_is_output_or_usage(block: Block) -> None:
    usage = re.fullmatch(r"kubectl gpushare( [a-z]+){0,2}( [A-Z\[{(].*)?\n", block.text)
    assert usage or any(sign in block.text for sign in "│─▶"), block.text


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_commands_quoted_in_text_exist(page: Path) -> None:
    flaws = {}
    for text in pages.quoted(page):
        words = text.split()
        if words[:2] == ["kubectl", "gpushare"] and words[2:] and words[2].islower():
            flags = [word.partition("=")[0] for word in words if word.startswith("-")]
            known = commands.plugins_options()
            flaws[text] = [*flags, words[2]] if words[2] not in commands.cli.VERBS or not {*flags} <= known else []
        elif words[:1] in (["make"], ["./install.sh"], ["python"], ["python3"], ["pytest"]) and words[1:]:
            flaws[text] = [sentence] if (sentence := commands.wrong([word for word in words if word != "FILE"])) else []
    assert {text: why for text, why in flaws.items() if why} == {}


# Flags of other projects' programs.
FOREIGN = {
    *("--request-timeout", "--manifest", "--archive", "--raw", "--server-side"),  # API server, kubectl and krew
    *("--admission-control-config-file", "--authorization-config", "--authorization-mode"),  # API server
    *("--delete-emptydir-data", "--ignore-daemonsets", "--force"),  # kubectl drain and delete
    *("--bump-revision", "--mark-compacted"),  # etcdutl
    "--enable-provisioning-requests",  # Cluster Autoscaler
    *("--gpu-reset", "--replace"),  # nvidia-smi and simgpu
    *("--copy-to", "--set-as-default"),  # kubectl and nvidia-ctk
    *("--prune", "--take-ownership", "--reuse-values"),  # kubectl apply and helm
}


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_flags_quoted_in_text_exist(page: Path) -> None:
    ours = ("webhook", "deviceplugin", "deviceplugin.mps.supervisor", "lab", "bench.gpu", "./install.sh")
    known = {*FOREIGN, *commands.plugins_options(), *itertools.chain(*(commands.options(our) for our in ours))}
    quoted = {flag for text in pages.quoted(page) for flag in re.findall(r"(?:^|[ (])(--[a-z][a-z-]+)", text)}
    assert sorted(quoted - known) == []


def misplaced(diff: str, read: Callable[[str], list[str]]) -> list[list[str]]:
    """Return the old lines of each hunk that its file lacks in one piece, or has before those of the last hunk."""
    wrong, lines, at = [], list[str](), 0
    for hunk in re.split(r"^ …\n|(?=^--- )", diff, flags=re.MULTILINE):
        head, _, rest = hunk.partition("\n")
        if head.startswith("--- "):
            lines, at, hunk = read(head.removeprefix("--- ")), 0, rest
        old = [line[1:] for line in hunk.splitlines() if not line.startswith("+")]
        found = next((start for start in range(at, len(lines)) if lines[start : start + len(old)] == old), None)
        if found is not None:
            at = found + len(old)
        elif old:
            wrong.append(old)
    return wrong


@pytest.mark.parametrize("block", DIFFS, ids=named)
def test_diffs_apply_to_their_files(block: Block) -> None:
    assert misplaced(block.text, lambda path: (pages.ROOT / path).read_text().splitlines()) == []


def test_a_diff_that_does_not_apply_is_detected() -> None:
    files = {"a.py": ["one", "two"], "b.py": ["three"]}
    assert misplaced("--- a.py\n one\n+new\n two\n--- b.py\n-three\n+four\n", files.__getitem__) == []
    assert misplaced("--- a.py\n two\n …\n one\n--- b.py\n-four\n", files.__getitem__) == [["one"], ["four"]]
    assert misplaced("--- a.py\n one\n three\n", files.__getitem__) == [["one", "three"]]


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[demo.Webhook]:
    """The real webhook with two nodes in memory."""
    folder = tmp_path_factory.mktemp("snippets")
    nodes = [codec.to_document(builders.node(name, gpus=4)) for name in ("node-a", "node-b")]
    (folder / demo.CLUSTER).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    with demo.webhook(folder) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(("block", "manifest"), [*PODS, *TEMPLATES], ids=named)
def test_pods_in_pages_are_admitted(webhook: demo.Webhook, block: Block, manifest: dict[str, Any]) -> None:
    manifest = {**manifest, "metadata": {"name": "of-a-template", **manifest["metadata"]}}
    response = webhook.review(manifest)
    assert response["allowed"], response
    assert not response.get("warnings")
    patch = json.loads(base64.b64decode(response["patch"]))
    assert contract.ALLOCATION in jsonpatch.apply_patch(manifest, patch)["metadata"]["annotations"]


@pytest.mark.parametrize(("block", "document"), CONFIGURATIONS, ids=named)
def test_configurations_in_pages_give_no_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], block: Block, document: dict[str, Any]
) -> None:
    (tmp_path / "node.yaml").write_text(block.text)
    assert commands.cli.main(["config", "validate", str(tmp_path / "node.yaml")]) == 0
    said = capfd.readouterr()
    assert "warning:" not in said.out + said.err


@pytest.mark.parametrize(("block", "document"), INSTALLATIONS, ids=named)
def test_kustomizations_in_pages_name_existing_folders(block: Block, document: dict[str, Any]) -> None:
    assert all((pages.ROOT / path / "kustomization.yaml").exists() for path in document["resources"])
    assert all((pages.ROOT / path / "kustomization.yaml").exists() for path in document["components"])


@pytest.mark.slow
def test_every_component_is_in_the_agents_table() -> None:
    text = (pages.ROOT / "docs" / "agent.md").read_text()
    there = [path.parent.name for path in (manifests.CONFIG / "components").glob("*/kustomization.yaml")]
    assert [name for name in there if f"| `{name}` |" not in text] == []


@pytest.mark.apiserver
def test_kubectl_has_the_verbs_and_flags_used(api_server: access.Access) -> None:
    asked: dict[tuple[str, ...], set[str]] = {}
    for block in SHELL:
        for part in itertools.chain(*map(commands.parts, pages.lines(block))):
            words = commands.kubectl_part(part[1:])
            if part[0] != "kubectl" or words[0] in {"gpushare", "krew"}:
                continue
            verb = tuple(words[: 2 if words[0] in {"set", "rollout", "create"} else 1])
            flags = {word.partition("=")[0] for word in part if re.match(r"--?[a-zA-Z]", word)}
            asked.setdefault(verb, set()).update(flags)
    everywhere = words_of(api_server, "options")
    wrong = {verb: flags - words_of(api_server, *verb, "--help") - everywhere for verb, flags in asked.items()}
    assert {verb: flags for verb, flags in wrong.items() if flags} == {}
    assert len(asked) > 5


def words_of(administrator: access.Access, *command: str) -> set[str]:
    program = [str(administrator.kubectl_program), *command]
    text = subprocess.run(program, capture_output=True, text=True, timeout=30, check=True).stdout
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))
