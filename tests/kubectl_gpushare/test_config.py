"""`config`: the effect and the errors of a file, the changes that it would make, and the active configuration."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gpushare import codec, contract
from gpushare.config import config_file, node_settings
from gpushare.gpunode import Condition, GpuNode, Mode
from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.conftest import ROOT, Plugin

CONFIGURATIONS = ROOT / "config" / "samples" / "config" / "configmap.yaml"
SAMPLES = sorted((ROOT / "config" / "samples" / "config").glob("*.yaml"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_configuration_is_valid_without_warnings(plugin: Plugin, path: Path) -> None:
    ended = plugin("config", "validate", path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"{path}: ")


def test_each_entry_of_a_config_map_is_checked(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(
        "kind: ConfigMap\ndata:\n  good: |\n    version: v1\n  bad: |\n    version: v1\n    sharing:\n      mps: {}\n"
    )
    ended = plugin("config", "validate", path)
    assert ended.code == 1
    assert ended.out == f"{path}: good: every device whole\n"
    assert ended.err == (
        f"error: {path}: bad: line 3: sharing.mps: no resources specified: list at least one under resources\n"
    )


TWO_MAPS = """apiVersion: v1
kind: Namespace
metadata: {name: gpushare-system}
---
---
kind: ConfigMap
metadata: {name: first}
data:
  any: "version: v1"
---
kind: List
items:
- kind: ConfigMap
  metadata: {name: second}
  data:
    any: "version: v1"
    broken: "version: v3"
    broken: "version: v2"
"""


def test_every_config_map_of_a_manifest_is_checked(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(TWO_MAPS)
    ended = plugin("config", "validate", path)
    assert ended.code == 1
    assert ended.out == f"{path}: first: any: every device whole\n{path}: second: any: every device whole\n"
    assert ended.err == (
        f"warning: {path}: line 18: items[0].data.broken is written twice: only the last one counts\n"
        f'error: {path}: second: broken: line 1: version "v2": unknown version: v2: write v1\n'
    )
    path.write_text(TWO_MAPS + "---\nversion: v1\n---\nkind: ConfigMap\n")
    ended = plugin("config", "validate", path)
    assert (
        f"error: {path}: line 20: the file: has no kind: put the configuration under data of a ConfigMap" in ended.err
    )
    assert f"error: {path}: line 22: the file: the ConfigMap has no entry under data" in ended.err


def test_diff_finds_the_entry_in_several_config_maps(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    text = TWO_MAPS.replace('broken: "version: v2"', 'mine: "version: v1"')
    assert difference(plugin, saved, tmp_path, text, "--entry", "mine")[0] == 0
    code, _, err = difference(plugin, saved, tmp_path, text, "--entry", "any")
    assert code == 1
    assert "any is in several ConfigMaps (first, second): give a file with one of them" in err


def test_mig_parted_file_is_rejected_with_a_remedy(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "mig-parted.yaml"
    layouts = "".join(f"  l{number}:\n  - {{devices: all, mig-enabled: false}}\n" for number in range(4))
    path.write_text(f"version: v1\nmig-configs:\n{layouts}")
    ended = plugin("config", "validate", path)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"error: {path}: line 2: mig-configs: belongs to a mig-parted file")
    assert ended.err.endswith("write the list of one (l0, l1, l2, …) as mig\n")


def test_setting_without_effect_is_a_warning(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("version: v1\nflag: {}\nresources: {gpus: [{pattern: '*', name: a}]}\n")
    ended = plugin("config", "validate", path)
    assert (ended.code, ended.err) == (0, f"warning: {path}: line 2: flag is unknown: did you mean flags?\n")
    assert "resources has no effect" in plugin("config", "validate", "--strict-compatibility", path).err


def test_startup_setting_in_a_file_is_a_warning(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("flags: {mpsRoot: /elsewhere, failOnInitError: true}\n")
    ended = plugin("config", "validate", path)
    assert ended.code == 0
    assert ended.err == (
        f"warning: {path}: flags.mpsRoot /elsewhere has no effect: the agent takes it from --mps-root when it starts\n"
    )


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("kind: Pod\n", "neither a configuration file nor a ConfigMap"),
        ("kind: ConfigMap\n", "no entry under data"),
        ("kind: ConfigMap\ndata: {a: {version: v1}}\n", "put | after its name"),
        ("flags: {migStrategy: two}", "unknown MIG strategy: two"),
        ("a: [", "line 1: the file is not YAML"),
        ("sharing: {fractionl: {}}", "line 1: sharing.fractionl is unknown: did you mean fractional?"),
        (
            "flags: {migStrategy: mixed}\nmig: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 9}}]",
            "mig[0] fits on no known GPU: 9 × 1g.5gb does not fit on A100-40GB: it has 7 GPU slices",
        ),
        ("mig: all-1g.7gb", "mig is all-1g.7gb, which no known GPU supports: did you mean all-1g."),
        (
            "mig: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 1, 1c.3g.22gb: 1}}]",
            "mig[0]: no known GPU has the MIG profile 1c.3g.22gb: did you mean 3g.",
        ),
        (
            "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 49}]}}",
            "sharing.mps.resources[0].replicas 49: at most 48 processes can share a GPU by MPS",
        ),
    ],
)
def test_invalid_configuration_ends_with_code_1(plugin: Plugin, tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    ended = plugin("config", "validate", path)
    assert ended.code == 1
    assert part in ended.err
    assert ended.out == ""


def test_warning_names_the_effective_entry_for_all_devices(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    more = "{name: gpu, replicas: 4, rename: gpu.shared}, {name: gpu, replicas: 2, devices: [0, 1]}"
    path.write_text(f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: 8}}, {more}]}}}}\n")
    ended = plugin("config", "validate", path)
    assert ended.code == 0
    assert ended.out == (
        f"{path}: time-slicing: all of nvidia.com/gpu, each 8 times as nvidia.com/gpu; "
        "time-slicing: devices 0, 1 of nvidia.com/gpu, each 2 times as nvidia.com/gpu\n"
    )
    assert ended.err == (
        f"warning: {path}: sharing.timeSlicing.resources[1] has no effect: sharing.timeSlicing.resources[0] claims all "
        "devices of nvidia.com/gpu that no other entry names\n"
    )


def test_unknown_mig_layout_is_a_warning(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("mig: [{devices: [0, 2], device-filter: '0x1', mig-enabled: true, mig-devices: {1g.45gb: 7}}]\n")
    ended = plugin("config", "validate", path)
    assert ended.code == 0
    assert ended.out.startswith(f"{path}: MIG: 7 × 1g.45gb on GPU 0, 2 with PCI number 0x1; ")
    assert "a newer model may have other profiles of these names" in ended.err


@pytest.mark.parametrize("text", ["", "\n# all that is left\n"])
def test_an_empty_file_is_a_warning(plugin: Plugin, tmp_path: Path, text: str) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    ended = plugin("config", "validate", path)
    assert (ended.code, ended.out) == (0, f"{path}: every device whole\n")
    assert "the file is empty, so every GPU is exclusive: write version: v1 if that is intended" in ended.err


@pytest.mark.parametrize(
    "text",
    [
        "mig: all-1g.5gb",
        "mig: all-1g.12gb.me",
        "mig: all-balanced",
        "mig: [{devices: all, mig-enabled: true, mig-devices: {1c.3g.20gb: 2}}]",
        "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 48}]}}",
        "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 49}]}}",
    ],
)
def test_configuration_possible_for_some_gpu_is_valid(plugin: Plugin, tmp_path: Path, text: str) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    assert plugin("config", "validate", path).code == 0


def test_missing_file_is_an_error(plugin: Plugin, tmp_path: Path) -> None:
    ended = plugin("config", "validate", tmp_path / "none.yaml")
    assert ended.code == 1
    assert "cannot be read: No such file or directory" in ended.err


def difference(plugin: Plugin, saved: Path, tmp_path: Path, text: str, *more: str) -> tuple[int, str, str]:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    ended = plugin("config", "diff", "--node", "gpu-1", "-f", path, "--from", saved, *more)
    return ended.code, ended.out, ended.err


def test_diff_names_each_gpus_change_and_the_pods_in_the_way(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    text = "sharing: {mps: {resources: [{name: gpu, replicas: 2, devices: [0], rename: gpu.mps}]}, fractional: {resources: [{name: gpu}]}}"
    code, out, err = difference(plugin, saved, tmp_path, text)
    assert (code, err) == (0, "")
    first, second, *_ = out.splitlines()
    assert first.startswith("GPU 0 (")
    assert "fractional → mps, 2 × nvidia.com/gpu.mps, once these pods have ended: " in first
    assert second.endswith(": stays fractional")


def test_isolations_of_new_shares_are_shown_by_diff_and_validate(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    text = "sharing: {fractional: {resources: [{name: gpu, isolations: [arbiter, mps]}]}}"
    code, out, _ = difference(plugin, saved, tmp_path, text)
    assert code == 0
    first = out.splitlines()[0]
    assert first.endswith(": stays fractional, with isolation arbiter or mps as far as the GPU can, now arbiter")
    path = tmp_path / "node.yaml"
    assert (
        "by annotation: all of nvidia.com/gpu, with isolation arbiter or mps" in plugin("config", "validate", path).out
    )
    cut = text.replace("mps]", "mps], smPartitions: 4")
    _, out, _ = difference(plugin, saved, tmp_path, cut)
    later = "with isolation arbiter or mps in 4 equal SM partitions"
    assert out.splitlines()[0].endswith(f": stays fractional, {later} as far as the GPU can, now arbiter")
    assert f"by annotation: all of nvidia.com/gpu, {later}" in plugin("config", "validate", path).out
    path.write_text(text.replace("mps", "wall"))
    ended = plugin("config", "validate", path)
    assert ended.code == 1
    assert "is not an isolation: write one of arbiter, mps, mig, none" in ended.out + ended.err


def test_diff_of_an_impossible_configuration_is_one_error(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    text = "sharing: {mps: {resources: [{name: gpu, replicas: 2, devices: [99]}]}}"
    code, out, err = difference(plugin, saved, tmp_path, text)
    assert (code, out) == (1, "")
    assert "no matching device at index: 99; the node has 0 (GPU-" in err
    text = "sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}"
    code, out, err = difference(plugin, saved, tmp_path, text)
    assert (code, out) == (1, "")
    assert "replicas 49: maximum allowed replicas exceeded: at most 48 processes can share GPU 0 (NVIDIA A100-" in err


def test_diff_chooses_an_entry_by_name(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    text = CONFIGURATIONS.read_text()
    assert "stays fractional" in difference(plugin, saved, tmp_path, text)[1]
    assert "→ exclusive, nvidia.com/gpu" in difference(plugin, saved, tmp_path, text, "--entry", "exclusive")[1]
    code, _, err = difference(plugin, saved, tmp_path, text, "--entry", "none")
    assert code == 1
    assert "name one of them with --entry" in err


@pytest.mark.parametrize(
    ("profiles", "change"),
    [
        (("3g.40gb", "3g.40gb"), "stays mig, 2 × 3g.40gb"),
        (("1g.10gb", "3g.40gb"), "mig, 1 × 1g.10gb + 1 × 3g.40gb → mig, 2 × 3g.40gb"),
        ((), "mig → mig, 2 × 3g.40gb, if that is not so already"),
    ],
    ids=str,
)
def test_diff_compares_mig_devices(plugin: Plugin, tmp_path: Path, profiles: tuple[str, ...], change: str) -> None:
    gpu = dataclasses.replace(sample.gpu("gpu-1", 0), mode=Mode.MIG, mig_profiles=profiles)
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(codec.to_document(GpuNode("gpu-1", (gpu,)))))
    text = "mig: [{devices: all, mig-enabled: true, mig-devices: {3g.40gb: 2}}]"
    code, out, err = difference(plugin, saved, tmp_path, text)
    assert (code, err) == (0, "")
    assert out.endswith(f"): {change}\n")


def test_diff_warns_about_settings_without_effect_on_the_node(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    text = "sharing: {timeSlicing: {resources: [{name: gpus, replicas: 2}]}}"
    code, _, err = difference(plugin, saved, tmp_path, text)
    assert code == 0
    assert err.startswith("warning: sharing.timeSlicing.resources[0] has no effect: this node has no nvidia.com/gpus")


def node(tmp_path: Path, labels: dict[str, str]) -> Path:
    path = tmp_path / "node.json"
    path.write_text(json.dumps({"kind": "Node", "metadata": {"name": "gpu-1", "labels": labels}}))
    return path


def test_show_lists_nodes_and_configurations(plugin: Plugin, saved: Path) -> None:
    ended = plugin("config", "show", "--from", saved, "--from", CONFIGURATIONS)
    assert (ended.code, ended.err) == (0, "")
    nodes, _, configurations = ended.out.partition("\n\n")
    assert [line.split()[:2] for line in nodes.splitlines()[1:]] == [
        ["gpu-1", "default"],
        ["gpu-2", "mixed"],
        ["gpu-10", "default"],
    ]
    assert "default        2       by annotation: all of nvidia.com/gpu" in configurations
    document = json.loads(plugin("config", "show", "-o", "json", "--from", saved, "--from", CONFIGURATIONS).out)
    assert [item["status"] for item in document["items"]] == ["Unknown", "Refused", "Unknown"]
    assert "mps" in [configuration["name"] for configuration in document["configurations"]]


def test_node_without_a_valid_entry_has_no_active_configuration(plugin: Plugin, tmp_path: Path) -> None:
    gpu = dataclasses.replace(sample.gpu("gpu-1", 0), mode=Mode.EXCLUSIVE)
    refused = Condition(contract.CONDITION_CONFIG_VALID, "False", contract.REASON_NOTHING_IN_FORCE, "no entry exclusiv")
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(codec.to_document(GpuNode("gpu-1", (gpu,), conditions=(refused,)))))
    node_file = node(tmp_path, {contract.NODE_CONFIG_LABEL: "exclusiv"})
    ended = plugin("config", "show", "gpu-1", "--from", path, "--from", node_file, "--from", CONFIGURATIONS)
    assert (ended.code, ended.err) == (0, "")
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert "In Force: nothing" in lines, ended.out
    assert "It Says: nothing: the node offers no GPU" in lines, ended.out


def test_show_reports_a_cluster_without_nodes(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(sample.pod("ml/trainer", request="0.5")))
    ended = plugin("config", "show", "--from", path)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.startswith("No nodes found.\n")


def test_show_names_the_requested_configuration_and_its_origin(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    files = ("--from", saved, "--from", CONFIGURATIONS, "--from", node(tmp_path, {}))
    assert "Asked For:  default\nBecause:    the node has no label" in plugin("config", "show", "gpu-1", *files).out
    path = node(tmp_path, {contract.NODE_CONFIG_LABEL: "mps"})
    ended = plugin("config", "show", "gpu-1", "--from", saved, "--from", CONFIGURATIONS, "--from", path)
    assert (ended.code, ended.err) == (0, "")
    assert "In Force:   default\nAsked For:  mps\nBecause:    the node's label gpushare.io/config" in ended.out


def test_show_prints_a_valid_configuration_with_all_defaults(plugin: Plugin, saved: Path) -> None:
    files = ("--from", saved, "--from", CONFIGURATIONS)
    for name, text in yaml.safe_load(CONFIGURATIONS.read_text())["data"].items():
        printed = plugin("config", "show", name, "-o", "yaml", *files).out
        whole, short = config_file.read(printed), config_file.read(text)
        assert whole.warnings == short.warnings
        assert node_settings.values_of(whole) == node_settings.values_of(short)
        assert (whole.sharing, whole.mig, whole.resources) == (short.sharing, short.mig, short.resources)
        assert "deviceIDStrategy: uuid" in printed
    assert json.loads(plugin("config", "show", "gpu-1", "-o", "json", *files).out)["flags"]["failOnInitError"] is True


def test_show_of_an_entry_lists_its_nodes(plugin: Plugin, saved: Path) -> None:
    ended = plugin("config", "show", "default", "--from", saved, "--from", CONFIGURATIONS)
    assert ended.code == 0
    assert "In Force On:  gpu-1, gpu-10\n" in ended.out


def test_show_of_an_unknown_name_lists_the_known_ones(plugin: Plugin, saved: Path) -> None:
    ended = plugin("config", "show", "nope", "--from", saved, "--from", CONFIGURATIONS)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(
        'error: no GPUNode "nope", and no such entry of the ConfigMap: it has default, exclusive, mig'
    )


def test_show_without_access_to_the_config_map_has_a_note(
    plugin: Plugin, fake_kubectl: Callable[[str], str], tmp_path: Path
) -> None:
    nodes = {"kind": "GPUNodeList", "items": [codec.to_document(node) for node in sample.nodes()]}
    (tmp_path / "nodes.json").write_text(json.dumps(nodes))
    program = fake_kubectl(f"""
        refuse() {{
            echo "Error from server (Forbidden): $1 is forbidden: User \\"jane\\" cannot get resource \\"$1\\" in API group \\"\\"" >&2
            exit 1
        }}
        case "$3" in
        */gpunodes*) cat {tmp_path}/nodes.json;;
        */configmaps/*) refuse configmaps;;
        *) refuse nodes;;
        esac
    """)
    ended = plugin("config", "show", "gpu-1", KUBECTL_PATH=program)
    assert (ended.code, ended.err) == (0, "")
    assert 'configurations: user "jane" may not get configmaps: ask an admin for a role that allows' in ended.out
    assert 'the labels of the node gpu-1: user "jane" may not get nodes' in ended.out
    ended = plugin("config", "show", "gpu-1", "-o", "yaml", KUBECTL_PATH=program)
    assert (ended.code, ended.out) == (1, "")
    assert 'in force on gpu-1 is unknown: configurations: user "jane" may not get configmaps' in ended.err
