"""A Deployment of shares under a load that grows and ends, scaled by a real HorizontalPodAutoscaler.

The controller manager runs the autoscaler; a real Prometheus scrapes the agent; the lab's metrics adapter serves
`config/samples/scaling`. In place of a load balancer, a file on the node gives each ready pod an equal part of the
load.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from lab import access
from tests.monitoring.prometheus import Prometheus

SAMPLE: Final = Path("config/samples/scaling/inference.yaml")
METRIC: Final = "gpushare_pod_gpu_busy_ratio"
SELECTOR: Final = "app=inference"
INSIDE: Final = "/work"  # where containers see the directory of the load
QUIET, BUSY = 15.0, 100.0  # percent of a GPU
STEP_SECONDS: Final = 1.0
MAX_SECONDS: Final = 300.0
DOWN_SECONDS: Final = 15  # the autoscaler's stabilization window, 300 s by default


@dataclasses.dataclass(frozen=True)
class Moment:
    """A sample: the load in percent of a GPU, the pods, and the ratio of their use to their request."""

    seconds: float
    load_percent: float
    desired: int
    ready: int
    busy_ratio: float | None


@dataclasses.dataclass
class Service:
    """The Deployment in its namespace, and the file with each pod's load."""

    administrator: access.Access
    namespace: str
    prometheus: Prometheus
    directory: Path
    moments: list[Moment] = dataclasses.field(default_factory=list)
    _began: float = dataclasses.field(default_factory=time.monotonic)

    def apply(self) -> None:
        """Create the sample's objects, with the load's directory in the pods and a short way down."""
        (self.directory / "load").write_text("0\n")
        deployment, autoscaler = yaml.safe_load_all(SAMPLE.read_text())
        spec = deployment["spec"]["template"]["spec"]
        spec["volumes"] = [{"name": "load", "hostPath": {"path": str(self.directory)}}]
        (container,) = spec["containers"]
        container["command"][-1] += f" --load {INSIDE}/load"
        container["volumeMounts"] = [{"name": "load", "mountPath": INSIDE, "readOnly": True}]
        autoscaler["spec"]["behavior"] = {"scaleDown": {"stabilizationWindowSeconds": DOWN_SECONDS}}
        text = yaml.safe_dump_all([deployment, autoscaler])
        self.administrator.kubectl(f"--namespace={self.namespace}", "apply", "--filename=-", input=text)

    def under(self, load_percent: float, ends: Callable[[Moment], bool]) -> None:
        """Keep up a load until a moment ends it; fail after MAX_SECONDS."""
        deadline = time.monotonic() + MAX_SECONDS
        while True:
            moment = self._look(load_percent)
            self.moments.append(moment)
            each = min(100.0, load_percent / max(1, moment.ready))
            (self.directory / "load").write_text(f"{each:.1f}\n")
            if ends(moment):
                return
            assert time.monotonic() < deadline, (self.moments[-5:], self.explain())
            time.sleep(STEP_SECONDS)

    def explain(self) -> str:
        """Return the autoscaler's own account."""
        return self.administrator.kubectl(f"--namespace={self.namespace}", "describe", "hpa,pods")

    def _look(self, load_percent: float) -> Moment:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/inference"
        deployment: dict[str, Any] = self.administrator.read(path)
        series = f'{{namespace="{self.namespace}", pod=~"inference-.*"}}'
        used = self.prometheus.value(f"sum(gpushare_share_used_compute_ratio{series})")
        asked = self.prometheus.value(f"sum(gpushare_share_allocated_compute_ratio{series})")
        return Moment(
            seconds=time.monotonic() - self._began,
            load_percent=load_percent,
            desired=deployment["spec"]["replicas"],
            ready=deployment["status"].get("readyReplicas", 0),
            busy_ratio=used / asked if used is not None and asked else None,
        )


def tell(service: Service, *, grown: int) -> Iterator[str]:
    """Run the story; yield the name of each part when it ends. grown: how many pods the load has to start."""
    service.apply()
    service.under(QUIET, lambda now: now.ready == 1 and now.busy_ratio is not None)
    yield "quiet"
    service.under(BUSY, lambda now: now.ready >= grown)
    yield "grown"
    service.under(QUIET, lambda now: now.desired == now.ready == 1)
    yield "shrunk"
