"""`kubectl gpushare ui` from the command line: the address, the saved page, and one sentence for bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.conftest import SECONDS, Plugin, environment

SLOT = re.compile(r'<script type="application/json" id="saved">(.*?)</script>', re.DOTALL)


def saved_model(path: Path) -> tuple[str, dict[str, object]]:
    text = path.read_text()
    (inside,) = SLOT.findall(text)
    return text, json.loads(inside)


def test_the_saved_page_has_everything_inside(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    ended = plugin("ui", "--from", saved, "--export", path)
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    text, inside = saved_model(path)
    model, answers = inside["model"], inside["answers"]
    assert isinstance(model, dict)
    assert isinstance(answers, dict)
    assert len(model["nodes"]) == 3
    for name in ("why&pod=ml/waiting", "describe&kind=gpu&name=gpu-1/0", "fit&request=0.5", "defrag"):
        assert "page" in answers[name]
    assert not re.findall(r'(?:src|href)="(?!data:)[^"]*"', text)


def test_names_in_a_saved_page_cannot_end_its_script(plugin: Plugin, tmp_path: Path) -> None:
    path, evil = tmp_path / "evil.json", "</script><script>alert(1)</script><!--"
    node = {"apiVersion": "gpushare.io/v1alpha1", "kind": "GPUNode", "metadata": {"name": evil}, "status": {"gpus": []}}
    path.write_text(json.dumps(node))
    page = tmp_path / "page.html"
    assert plugin("ui", "--from", path, "--export", page).code == 0
    text, inside = saved_model(page)
    assert "alert(1)" in text
    assert text.count("<script") == text.count("</script>") == 2
    assert inside["model"]["nodes"][0]["name"] == evil  # type: ignore[index]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("hello", "neither JSON nor YAML|is not a Kubernetes object|has no GPUNode or pod"),
        ('{"kind": "List", "items": [{"kind": "Secret"}]}', "has no GPUNode or pod: make one with"),
        ('{"kind": "GPUNode", "metadata": {}}', "has a GPUNode that is invalid"),
        ("", "has no GPUNode or pod"),
    ],
)
def test_a_file_that_is_no_cluster_is_one_sentence(plugin: Plugin, tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    ended = plugin("ui", "--from", path, "--no-browser")
    assert ended.code == 1
    assert len(ended.err.splitlines()) == 1
    assert re.search(sentence, ended.err)


def test_usage_of_a_file_is_refused(plugin: Plugin, saved: Path) -> None:
    assert "--usage needs a cluster" in plugin("ui", "--from", saved, "--usage").err


def test_a_page_that_cannot_be_written_is_one_sentence(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    ended = plugin("ui", "--from", saved, "--export", tmp_path / "nowhere" / "page.html")
    assert ended.err == f"error: {tmp_path}/nowhere/page.html cannot be written: No such file or directory\n"


def started(*arguments: str, **variables: str) -> tuple[subprocess.Popen[str], str]:
    """Start the plugin, and return it with the address that it printed."""
    run = "import sys; from kubectl_gpushare.__main__ import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", run, "ui", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    return process, next(line.strip() for line in lines if line.strip().startswith("http"))


@pytest.mark.slow
def test_ctrl_c_ends_it(saved: Path) -> None:
    process, address = started("--from", str(saved), "--no-browser")
    with urllib.request.urlopen(address.replace("/?", "/cluster?"), timeout=SECONDS) as answer:  # noqa: S310
        assert json.load(answer)["totals"]["gpus"] == 12
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=SECONDS)
    assert (process.returncode, said.strip()) == (130, "")


@pytest.mark.slow
def test_without_a_display_it_says_how_to_get_there(saved: Path) -> None:
    hidden = dict.fromkeys(("DISPLAY", "WAYLAND_DISPLAY"), "")
    process, address = started("--from", str(saved), **hidden)
    port = address.partition("127.0.0.1:")[2].partition("/")[0]
    assert process.stderr is not None
    said = process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS)
    assert f"`ssh -L {port}:127.0.0.1:{port}`" in said


@pytest.mark.slow
def test_the_users_browser_is_led_to_the_address_by_a_file(saved: Path, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    os.mkfifo(opened)
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    process, address = started("--from", str(saved), DISPLAY=":99", BROWSER=str(browser))
    leads = Path(opened.read_text().strip().removeprefix("file://"))
    assert address in leads.read_text()
    assert (leads.stat().st_mode & 0o777, leads.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS)
    assert not leads.parent.exists()


GONE = "Unable to connect to the server: dial tcp 127.0.0.1:1: connect: connection refused"


@pytest.mark.slow
def test_a_user_without_the_right_to_read_pods_sees_the_rest(
    fake_kubectl: Callable[[str], str], tmp_path: Path
) -> None:
    """Pods, Nodes and agents are forbidden; the page still has the GPUs, and says why there is no queue."""
    from gpushare import codec

    nodes = tmp_path / "nodes.json"
    items = [codec.to_document(node) for node in sample.nodes()]
    whole = {"kind": "GPUNodeList", "apiVersion": "gpushare.io/v1alpha1", "metadata": {"resourceVersion": "7"}}
    nodes.write_text(json.dumps({**whole, "items": items}))
    forbidden = (
        'Error from server (Forbidden): pods is forbidden: User "eve" cannot list resource "pods" in API group ""'
    )
    kubectl = fake_kubectl(
        'case "$*" in\n'
        "*watch=true*) exec sleep 60 ;;\n"
        f"*gpunodes*) exec cat {nodes} ;;\n"
        '*current-context*) echo "prod" ;;\n'
        f"*) echo '{forbidden} at the cluster scope' >&2; exit 1 ;;\n"
        "esac"
    )
    page = tmp_path / "page.html"
    process = subprocess.run(
        [sys.executable, "-m", "kubectl_gpushare", "ui", "--export", str(page)],
        env=environment(KUBECTL_PATH=kubectl),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    model = saved_model(page)[1]["model"]
    assert isinstance(model, dict)
    assert model["totals"]["gpus"] == 12
    assert (model["cluster"]["name"], model["cluster"]["live"]) == ("prod", True)
    assert 'user "eve" may not list pods' in model["queue"]["why"]
    assert 'user "eve" may not list pods' in model["absent"]["pods"]


@pytest.mark.slow
def test_with_rights_in_one_namespace_its_queue_is_shown(fake_kubectl: Callable[[str], str], tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.json", tmp_path / "pods.json"
    nodes.write_text(json.dumps({"kind": "GPUNodeList", "metadata": {"resourceVersion": "7"}, "items": []}))
    waits = sample.gated("team-a/waiting", request="0.5")
    pods.write_text(json.dumps({"kind": "PodList", "metadata": {}, "items": [waits]}))
    forbidden = (
        'Error from server (Forbidden): pods is forbidden: User "eve" cannot list resource "pods" in API group ""'
    )
    kubectl = fake_kubectl(
        'case "$*" in\n'
        "*watch=true*) exec sleep 60 ;;\n"
        f"*gpunodes*) exec cat {nodes} ;;\n"
        f"*namespaces/team-a/pods*) exec cat {pods} ;;\n"
        f"*) echo '{forbidden} at the cluster scope' >&2; exit 1 ;;\n"
        "esac"
    )
    page = tmp_path / "page.html"
    process = subprocess.run(
        [sys.executable, "-m", "kubectl_gpushare", "ui", "-n", "team-a", "--export", str(page)],
        env=environment(KUBECTL_PATH=kubectl),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    model: Any = saved_model(page)[1]["model"]
    assert [item["pod"] for item in model["queue"]["pods"]] == ["team-a/waiting"]
    assert model["cluster"]["namespace"] == "team-a"
    assert any("only those of team-a could be read" in note for note in model["notes"])


def test_an_unreachable_cluster_is_one_sentence(plugin: Plugin, fake_kubectl: Callable[[str], str]) -> None:
    ended = plugin("ui", "--no-browser", KUBECTL_PATH=fake_kubectl(f"echo '{GONE}' >&2; exit 1"))
    assert ended.code == 1
    assert ended.err.startswith("error: the API server cannot be reached")
