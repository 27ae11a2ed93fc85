"""Views of the agents' answers about the sample cluster, and of its configurations."""

from __future__ import annotations

import dataclasses

from gpushare import contract
from gpushare.gpunode import Condition, GpuNode, Mode
from kubectl_gpushare.output.values import Table
from kubectl_gpushare.planning import auditing, rightsizing
from kubectl_gpushare.views import audit, config_sentences, configuration_state, gpu_summary, rightsize
from tests.kubectl_gpushare import answers, sample
from tests.kubectl_gpushare.conftest import ROOT


def audited(name: str) -> Table:
    verdict = auditing.check(sample.nodes(), answers.read(answers.troubled()))
    made: Table = {"problems": audit.problems_table, "shares": audit.shares_table}[name](
        verdict, gpu_summary.names(sample.nodes())
    )
    return made


def rightsized(*, namespaces: bool = True) -> rightsize.RightsizeListing:
    suggestions = rightsizing.suggest(sample.nodes(), rightsizing.parse_peaks([answers.metrics()]), rightsizing.Rules())
    return rightsize.RightsizeListing(suggestions, gpu_summary.names(sample.nodes()), {}, namespaces=namespaces)


def configured() -> list[configuration_state.NodeConfigState]:
    changing, refused, _ = sample.nodes()
    entries = configurations()
    labels = {contract.NODE_CONFIG_LABEL: "mps"}
    return [
        configuration_state.for_node(waiting_for_pods(changing), labels, entries),
        configuration_state.for_node(refused, {contract.NVIDIA_CONFIG_LABEL: "mixd"}, entries),
    ]


def configurations() -> dict[str, str]:
    text = (ROOT / "config" / "samples" / "config" / "configmap.yaml").read_text()
    manifest = config_sentences.read_manifest(text)
    assert manifest is not None
    return dict(manifest.maps[0].entries)


def waiting_for_pods(node: GpuNode) -> GpuNode:
    """Return the node while two of its GPUs wait to be shared by MPS, with the agent's message."""
    closed = tuple(
        dataclasses.replace(gpu, mode=Mode.MPS) if gpu.index > 1 else dataclasses.replace(gpu, pending_mode=Mode.MPS)
        for gpu in node.gpus
    )
    sentences = [f"GPU {gpu.index} ({gpu.uuid}) is to become mps, 2 × nvidia.com/gpu" for gpu in closed[:2]]
    message = (
        f"{sentences[0]} once it is not used any more by ml/trainer, ml/notebook; {sentences[1]}, which failed: no"
    )
    conditions = (
        Condition(contract.CONDITION_CONFIG_VALID, "True", "InForce", "mps is in force"),
        Condition(contract.CONDITION_CONFIG_PENDING, "True", "GpusInUse", message),
    )
    return dataclasses.replace(node, gpus=closed, config="mps", conditions=conditions)
