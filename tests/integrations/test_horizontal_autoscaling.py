"""An autoscaler adds and removes pods by what their shares use, with the samples' own rules."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import yaml

from lab import access, lab_layout
from tests.e2e.observation import eventually
from tests.integrations import metrics_adapter, scaling_story
from tests.monitoring import prometheus, test_story

pytestmark = [pytest.mark.integration, pytest.mark.lab, pytest.mark.timeout(900)]
KEDA = Path("config/samples/scaling/keda.yaml")


def test_a_deployment_of_shares_grows_under_load_and_shrinks_again(
    installed: lab_layout.Layout, lab: access.Access, tmp_path: Path
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="gpushare-load-", dir="/tmp") as directory,
        prometheus.running(tmp_path / "prometheus", test_story.scrapes(lab)) as seen,
        metrics_adapter.running(lab, tmp_path / "adapter", seen.url),
        lab.namespace("team") as namespace,
    ):
        Path(directory).chmod(0o755)
        service = scaling_story.Service(lab, namespace, seen, Path(directory))
        story = scaling_story.tell(service, grown=4)
        assert next(story) == "quiet"
        query = yaml.safe_load(KEDA.read_text())["spec"]["triggers"][0]["metadata"]["query"].replace("team", namespace)

        def both_agree() -> bool:
            """Whether KEDA's query and prometheus-adapter's rule give the same figure, within a scrape's change."""
            served = metrics_adapter.values(lab, namespace, scaling_story.METRIC, scaling_story.SELECTOR)
            (amount,) = map(_number, served.values())
            return abs(amount - (seen.value(query) or 0)) < 0.1 and 0.3 < amount < 1

        eventually(both_agree, what=f"{query} as the adapter has it")
        full = metrics_adapter.values(lab, namespace, "gpushare_pod_gpu_memory_ratio", scaling_story.SELECTOR)
        assert [_number(amount) for amount in full.values()] == [0]  # the sample allocates nothing
        assert list(story) == ["grown", "shrunk"]


def test_a_share_without_a_process_is_not_busy(
    installed: lab_layout.Layout, lab: access.Access, tmp_path: Path
) -> None:
    deployment, _ = yaml.safe_load_all(scaling_story.SAMPLE.read_text())
    deployment["spec"]["template"]["spec"]["containers"][0]["command"][-1] = "sleep 3600"
    with (
        prometheus.running(tmp_path / "prometheus", test_story.scrapes(lab)) as seen,
        metrics_adapter.running(lab, tmp_path / "adapter", seen.url),
        lab.namespace("team") as namespace,
    ):
        lab.kubectl(f"--namespace={namespace}", "apply", "--filename=-", input=yaml.safe_dump(deployment))

        def served() -> list[str]:
            return [*metrics_adapter.values(lab, namespace, scaling_story.METRIC, scaling_story.SELECTOR).values()]

        eventually(lambda: served() == ["0"], what="a figure of 0, which lets the autoscaler shrink")


def _number(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)
