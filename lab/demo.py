"""The demo, `python -m lab.demo`: calls the real webhook as an API server would, with a cluster in memory.

The cluster has three nodes with four GPUs each, of two models. The demo sends the pods of config/samples one after the
other, as AdmissionReviews over HTTPS, and prints the differences between the sent and the admitted pod.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from gpushare import codec, contract, pod
from gpushare.gpunode import Gpu, GpuNode
from lab import lab_errors

REPOSITORY = Path(__file__).resolve().parent.parent
DIRECTORY = REPOSITORY / "build" / "demo"
CLUSTER, STATE = "cluster.json", "state.json"  # in a separate directory for each webhook
GIB = 1 << 30
# By node: the model, memory and compute capability of its four GPUs
NODES = (
    ("gpu-a", "NVIDIA A100-SXM4-40GB", 40 * GIB, (8, 0)),
    ("gpu-b", "NVIDIA A100-SXM4-40GB", 40 * GIB, (8, 0)),
    ("gpu-c", "NVIDIA L4", 24 * GIB, (8, 9)),
)
# The order matters: the last two pods are gated and refused.
SAMPLES = (
    *("half-gpu", "quarter-memory", "memory-only", "two-gpus", "two-containers", "burst", "by-model", "apart"),
    *("exclusion", "whole-gpu", "busy", "waits", "refused/too-much"),
)
START_SECONDS = 60.0
CALL_SECONDS = 10.0  # the API server's timeout for the webhook
STOP_SECONDS = 15.0

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Webhook:
    """A running webhook: its address, and the CA that it created for itself."""

    port: int
    trust: ssl.SSLContext

    def review(self, manifest: Json) -> Json:
        """Return the `response` to an AdmissionReview that creates this pod."""
        request = {
            "uid": str(uuid.uuid4()),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "default",
            "name": manifest["metadata"]["name"],
            "userInfo": {"username": "demo"},
            "object": manifest,
            "dryRun": False,
        }
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        question = urllib.request.Request(
            f"https://127.0.0.1:{self.port}{contract.WEBHOOK_PATH}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(question, timeout=CALL_SECONDS, context=self.trust) as answer:  # noqa: S310
            response: Json = json.load(answer)["response"]
        if response["uid"] != request["uid"]:
            raise lab_errors.LabError("the webhook's response belongs to another review")
        return response


def main() -> None:
    """Run the demo; exit with 0 only if every sample had the result that its comment promises."""
    began = time.monotonic()
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    write_cluster(DIRECTORY / CLUSTER)
    state = DIRECTORY / STATE
    print(f"A cluster in memory: {', '.join(f'{node} with 4 × {model}' for node, model, *_ in NODES)}.")
    with webhook(DIRECTORY) as running:
        print(
            f"The webhook listens on https://127.0.0.1:{running.port}; its certificate is verified with its own CA.\n"
        )
        ends = [_send(running, manifest, says) for manifest, says in _manifests()]
    counts = {end: ends.count(end) for end in ("placed", "gated", "refused")}
    _print_top(state)
    print(f"{len(ends)} pods: {', '.join(f'{count} {end}' for end, count in counts.items())}; ", end="")
    print(f"{time.monotonic() - began:.1f} s.\n")
    _print_next(state)
    if counts["gated"] != 1 or counts["refused"] != 1:
        raise lab_errors.LabError(
            f"one pod should be gated and one refused; the webhook's log is {DIRECTORY}/webhook.log"
        )


def write_cluster(path: Path) -> None:
    """Write the cluster as a list of its GPUNodes, in the format that `--from` reads."""
    nodes = [codec.to_document(_node(*described)) for described in NODES]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}, indent=1))


def _node(name: str, model: str, memory_bytes: int, capability: tuple[int, int]) -> GpuNode:
    gpus = tuple(
        Gpu(
            uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{name}/{index}')}",
            index=index,
            model=model,
            memory_bytes=memory_bytes,
            compute_capability=capability,
            numa_node=index // 2,
            pci_bus_id=f"00000000:{(0x07, 0x0F, 0x87, 0x90)[index]:02X}:00.0",
        )
        for index in range(4)
    )
    return GpuNode(name=name, gpus=gpus, config="default")


def _manifests() -> Iterator[tuple[Json, str]]:
    """Yield each sample pod with the first line of the comment at the top of its file."""
    for name in SAMPLES:
        text = (REPOSITORY / "config" / "samples" / f"{name}.yaml").read_text()
        says = text.splitlines()[0].removeprefix("# ")
        for manifest in yaml.safe_load_all(text):
            yield manifest, says


@contextlib.contextmanager
def webhook(directory: Path) -> Iterator[Webhook]:
    """Run the webhook for the cluster in `directory`, where it also stores its state. Raises LabError."""
    port_file, certificates = directory / "port", directory / "certificates"
    argv = [
        *(sys.executable, "-m", "webhook", "--from", str(directory / CLUSTER), "--state", str(directory / STATE)),
        *("--host", "127.0.0.1", "--port", "0", "--port-file", str(port_file), "--probe-host", "127.0.0.1"),
        *("--certificate-directory", str(certificates)),
    ]
    log = directory / "webhook.log"
    with log.open("wb") as output:
        process = subprocess.Popen(argv, cwd=REPOSITORY, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (port_file.exists() and port_file.read_text().endswith("\n")):
            if process.poll() is not None or time.monotonic() > deadline:
                raise lab_errors.LabError(f"the webhook did not start; its log is {log}:\n{log.read_text()}")
            time.sleep(0.05)
        trust = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        yield Webhook(int(port_file.read_text()), trust)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _send(webhook: Webhook, manifest: Json, says: str) -> str:
    """Send a pod and print the outcome; return it: `placed`, `gated` or `refused`."""
    keys = {key: value for key, value in pod.annotations_of(manifest).items() if key.startswith(contract.PREFIX)}
    asked = ", ".join(f"{key.removeprefix(contract.PREFIX)}: {value}" for key, value in keys.items())
    print(f"● {manifest['metadata']['name']}  ({asked})\n  {says}")
    response = webhook.review(manifest)
    if not response["allowed"]:
        print(f"  REFUSED: {response['status']['message']}\n")
        return "refused"
    patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
    admitted = jsonpatch.apply_patch(manifest, patch)
    for line in difference(manifest, admitted):
        print(f"  {line}")
    gated = contract.SCHEDULING_GATE in pod.gates(admitted)
    if gated:
        print("  GATED: created, and not scheduled until there is room; gpushare.io/reason says what is missing.")
    else:
        for warning in response.get("warnings") or ():
            print(f"  warning: {warning}")
    print()
    return "gated" if gated else "placed"


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the differences between two manifests, a line per value: `+ path: value`, `- path: value`.

    An extended resource's request always equals its limit and is left out here.
    """
    old, new = dict(_leaves(before)), dict(_leaves(after))
    lines = [f"- {path}: {value}" for path, value in old.items() if new.get(path) != value]
    lines += [f"+ {path}: {value}" for path, value in new.items() if old.get(path) != value]
    return [line for line in lines if f".resources.requests.{contract.PREFIX}" not in line]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            named = inner.get("name") if isinstance(inner, Mapping) else None
            if named is None:
                yield from _leaves(inner, f"{path}[{position}]")
            elif set(inner) == {"name"}:
                yield path, named
            else:  # print an environment variable as its value
                rest = {key: of_it for key, of_it in inner.items() if key != "name"}
                yield from _leaves(rest.get("value", rest), f"{path}[{named}]")
    else:
        yield path, str(value)


def _print_top(state: Path) -> None:
    for arguments in (("top",), ("top", "nodes")):
        command = [*arguments, "--from", str(state.relative_to(REPOSITORY))]
        print(f"$ kubectl gpushare {' '.join(command)}", flush=True)
        plugin = [sys.executable, "-m", "kubectl_gpushare", *command]
        if subprocess.run(plugin, cwd=REPOSITORY, check=False, timeout=START_SECONDS).returncode:
            raise lab_errors.LabError(f"kubectl gpushare {' '.join(command)} failed; see above")
        print(flush=True)


def _print_next(state: Path) -> None:
    saved = state.relative_to(REPOSITORY)
    print("Next:")
    print('  export PATH="$PWD/.venv/bin:$PATH"                          # so that kubectl finds its plugin')
    print(f"  kubectl gpushare describe pod two-gpus --from {saved}")
    print(f"  kubectl gpushare describe pod waits --from {saved}")
    print(
        "  make lab                                                    # a real Kubernetes with simulated GPUs (root)"
    )
    print("  make test                                                   # everything, on that")
    print(f"  kubectl gpushare ui --from {saved!s:<33}# all of this cluster on one page, in your browser")


if __name__ == "__main__":
    try:
        main()
    except lab_errors.LabError as error:
        sys.exit(f"demo: {error}")
