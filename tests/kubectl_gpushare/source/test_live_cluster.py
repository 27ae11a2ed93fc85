"""Reads of a live cluster, with scripted answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from kubectl_gpushare import kubectl
from kubectl_gpushare.source.live_cluster import LiveCluster

REFUSED = "echo 'Error from server ({reason}): {words}' >&2; exit 1"


def cluster(fake_kubectl: Callable[[str], str], answers: dict[str, str]) -> LiveCluster:
    """`answers`: the action for a call with an argument that ends so."""
    cases = "\n".join(f"*{end}) {does};;" for end, does in answers.items())
    nothing = REFUSED.format(reason="NotFound", words="there is none")
    return LiveCluster(kubectl.Kubectl((), fake_kubectl(f'case "$*" in\n{cases}\n*) {nothing};;\nesac')))


def shows(directory: Path, name: str, document: object) -> str:
    (directory / name).write_text(json.dumps(document))
    return f"cat {directory / name}"


def agent(*arguments: str) -> object:
    return {"spec": {"template": {"spec": {"containers": [{"name": "agent", "args": list(arguments)}]}}}}


def test_config_map_is_found_by_the_agents_arguments(fake_kubectl: Callable[[str], str], tmp_path: Path) -> None:
    mine = shows(tmp_path, "mine", {"data": {"default": "version: v1"}})
    told = shows(tmp_path, "agent", agent("--log-level=info", "--config-map=gpushare-system/my-config"))
    asked = cluster(fake_kubectl, {"daemonsets/gpushare-agent": told, "configmaps/my-config": mine})
    assert asked.configurations() == {"default": "version: v1"}


def test_usual_config_map_is_tried_first(fake_kubectl: Callable[[str], str], tmp_path: Path) -> None:
    usual = shows(tmp_path, "usual", {"data": {"a": "b"}})
    assert cluster(fake_kubectl, {"configmaps/gpushare-config": usual}).configurations() == {"a": "b"}


def test_no_config_map_and_no_agents_give_no_configurations(fake_kubectl: Callable[[str], str], tmp_path: Path) -> None:
    usual = shows(tmp_path, "agent", agent("--config-map=gpushare-system/gpushare-config"))
    assert cluster(fake_kubectl, {"daemonsets/gpushare-agent": usual}).configurations() == {}
    assert cluster(fake_kubectl, {}).configurations() == {}
    refused = REFUSED.format(reason="Forbidden", words='User "x" cannot get resource "daemonsets" in API group "apps"')
    assert cluster(fake_kubectl, {"daemonsets/gpushare-agent": refused}).configurations() == {}
