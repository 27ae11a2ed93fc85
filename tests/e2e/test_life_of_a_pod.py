"""From `kubectl apply` to the byte above the limit: the whole path on a real Kubernetes with simulated GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from deviceplugin.state import pod_resources
from gpushare import contract, ledger
from lab import lab_layout
from tests import builders
from tests.e2e.observation import Observer, Reviews, annotation, environment, eventually

pytestmark = pytest.mark.lab

SAMPLES = "config/samples"


def sleeper(name: str, **annotations: str) -> dict[str, Any]:
    """Return a pod that shares a GPU and sleeps."""
    manifest = builders.pod(name, **annotations)
    del manifest["metadata"]["namespace"]
    for container in manifest["spec"]["containers"]:
        container |= {"command": ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"]}
    manifest["spec"]["terminationGracePeriodSeconds"] = 1
    return manifest


def test_a_half_gpu_pod_lives_from_apply_to_an_empty_ledger(user: Observer) -> None:
    user.apply(f"{SAMPLES}/half-gpu.yaml")
    pod = user.running("half-gpu")
    node = user.gpunode()

    (held,) = [entry for entry in node.allocations if entry.pod.namespace == user.namespace]
    (uuid,) = held.gpu_uuids
    gpu = node.gpu_by_uuid()[uuid]
    assert held.shares[0].request_percent == 50
    assert held.shares[0].memory_bytes == gpu.memory_bytes // 2
    confirmed = eventually(
        lambda: next((e for e in user.gpunode().allocations if e.id == held.id and e.pod.uid), None), what="confirmed"
    )
    assert (confirmed.pod.name, confirmed.pod.uid) == ("half-gpu", pod["metadata"]["uid"])
    assert confirmed.reserved_until is None

    assert annotation(pod, contract.ALLOCATION) == held.id
    assert annotation(pod, contract.NODE) == node.name == pod["spec"]["nodeName"]
    assert annotation(pod, contract.GPU_UUIDS) == uuid
    assert pod["spec"]["nodeSelector"][contract.HOSTNAME_LABEL] == node.name
    assert pod["spec"]["containers"][0]["resources"]["limits"][contract.RESOURCE_PERCENT] == "50"
    assert environment(pod)[contract.ENV_VISIBLE_DEVICES] == uuid

    said = user.inside("half-gpu", "sh", "-c", f"env; cat {contract.CONTAINER_PRELOAD_FILE} /proc/mounts").splitlines()
    inside = dict(line.split("=", 1) for line in said if "=" in line)
    assert inside[contract.ENV_VISIBLE_DEVICES] == uuid
    assert inside[contract.ENV_REQUEST] == "50"
    assert contract.CONTAINER_LIBRARY in said
    mounts = "\n".join(said)
    assert f" {contract.CONTAINER_LIBRARY} " in mounts
    assert f" {contract.CONTAINER_ARBITER_DIRECTORY} " in mounts
    with pytest.raises(Exception, match="Read-only"):
        user.inside("half-gpu", "sh", "-c", f"echo > {contract.CONTAINER_PRELOAD_FILE}")

    limit = held.shares[0].memory_bytes
    seen = user.inside("half-gpu", "gpushare-probe")
    assert uuid in seen
    assert str(limit) in seen
    assert str(gpu.memory_bytes) not in seen
    script = f"gpushare-probe --allocate {limit} && ! gpushare-probe --allocate {limit + 1}"
    answers = user.inside("half-gpu", "sh", "-c", script)
    assert f"allocated {limit}" in answers
    assert f"refused {limit + 1}: CUDA_ERROR_OUT_OF_MEMORY" in answers
    both = user.inside("half-gpu", "sh", "-c", f"! gpushare-probe --allocate {limit - 1},2,1")
    assert both.count("allocated") == 2
    assert "refused 2: CUDA_ERROR_OUT_OF_MEMORY" in both

    shown = next(line for line in user.plugin("top").splitlines() if line.startswith(f"{node.name}/{gpu.index} "))
    assert "0.5/1" in shown
    described = user.plugin("describe", "pod", "half-gpu", f"--namespace={user.namespace}")
    assert uuid in described
    assert f"{user.namespace}/half-gpu" in described

    user.delete("pod", "half-gpu")
    user.ledger_is_empty()


def test_init_container_and_app_use_one_gpu_in_turn_and_the_larger_counts(
    installed: lab_layout.Layout, user: Observer
) -> None:
    gpu = user.gpunode().gpus[1]
    warm, main = gpu.memory_bytes // 10 * 8, gpu.memory_bytes // 10 * 7
    manifest = sleeper("warmed", uuid=gpu.uuid)
    manifest["metadata"]["annotations"] |= {
        f"{contract.REQUEST}.warm": "0.8",
        f"{contract.MEMORY}.warm": str(warm),
        f"{contract.REQUEST}.main": "0.7",
        f"{contract.MEMORY}.main": str(main),
    }
    script = f"gpushare-probe && gpushare-probe --allocate {warm} && ! gpushare-probe --allocate {warm + 1}"
    manifest["spec"]["initContainers"] = [
        {"name": "warm", "image": manifest["spec"]["containers"][0]["image"], "command": ["/bin/sh", "-c", script]}
    ]
    user.apply(manifest)
    uid = user.running("warmed")["metadata"]["uid"]

    kept = pod_resources.checkpoint_containers(
        installed.kubelet_directory(installed.nodes[0]) / "device-plugins" / pod_resources.CHECKPOINT_NAME
    )
    ids = {name: kept[uid, name, contract.RESOURCE_PERCENT] for name in ("warm", "main")}
    assert (len(ids["warm"]), len(ids["main"])) == (80, 70)
    assert ids["main"] < ids["warm"]  # they are restored
    (held,) = [entry for entry in user.gpunode().allocations if entry.pod.namespace == user.namespace]
    assert held.gpu_uuids == (gpu.uuid,)
    assert ledger.held(held, gpu.uuid) == (80, warm)
    seen = user.kubectl("logs", "warmed", "--container=warm")
    assert gpu.uuid in seen
    assert f"allocated {warm}" in seen
    script = f"gpushare-probe --allocate {main} && ! gpushare-probe --allocate {main + 1}"
    answers = user.inside("warmed", "sh", "-c", script)
    assert f"allocated {main}" in answers
    assert "CUDA_ERROR_OUT_OF_MEMORY" in answers

    user.apply(sleeper("beside", uuid=gpu.uuid, request="0.2"))
    user.running("beside")
    shown = next(line for line in user.plugin("top").splitlines() if f"-0/{gpu.index} " in line)
    assert "1/1" in shown


def test_a_request_of_one_and_a_half_is_rejected_with_a_reason(user: Observer) -> None:
    error = user.refused(sleeper("too-much", request="1.5"))
    assert 'gpushare.io/request "1.5" is more than one GPU: write 0 to 1 in steps of 0.01' in error
    assert user.pod("too-much") is None


def test_a_pod_that_does_not_fit_waits_with_a_reason_and_runs_when_another_ends(user: Observer) -> None:
    user.apply(sleeper("holders", request="0.9", gpus="3"))
    user.apply(sleeper("holder", request="0.9"))
    user.apply(sleeper("waits", request="0.5"))
    waiting = user.pod("waits")
    assert waiting is not None
    assert [gate["name"] for gate in waiting["spec"]["schedulingGates"]] == [contract.SCHEDULING_GATE]
    sentence = "no GPU fits 0.5 GPU with 50% of the memory: of 4 GPUs on 1 node, 4 with too little compute free"

    def is_told() -> bool:
        """Whether the Event has the annotation's text; both change once the holders are known to exist."""
        (pod,) = [pod for pod in user.pods() if pod["metadata"]["name"] == "waits"]
        reason = annotation(pod, contract.REASON)
        notes = [event["note"] for event in events(user, "waits") if event["reason"] == contract.EVENT_GATED]
        return reason.startswith(sentence) and reason in notes

    eventually(is_told, what="a Gated event with the pod's reason")

    uuid = annotation(user.running("holder"), contract.GPU_UUIDS)
    user.delete("pod", "holder")
    running = user.running("waits")
    assert annotation(running, contract.GPU_UUIDS) == uuid
    assert annotation(running, contract.REASON) == ""
    limit = user.gpunode().gpu_by_uuid()[uuid].memory_bytes // 2
    script = f"echo ${contract.ENV_VISIBLE_DEVICES}; ! gpushare-probe --allocate {limit + 1}"
    inside, *probed = user.inside("waits", "sh", "-c", script).splitlines()
    assert inside == uuid
    assert "CUDA_ERROR_OUT_OF_MEMORY" in "\n".join(probed)


def events(user: Observer, name: str) -> list[dict[str, str]]:
    listed = user.access.read(f"/apis/events.k8s.io/v1/namespaces/{user.namespace}/events")["items"]
    return [entry for entry in listed if entry.get("regarding", {}).get("name") == name]


def test_a_deleted_gated_pod_leaves_no_allocation(user: Observer) -> None:
    user.apply(sleeper("never", request="0.5", model="no-such-model"))
    user.delete("pod", "never")
    user.ledger_is_empty(seconds=5)


def test_ten_quarters_of_a_deployment_never_over_commit(user: Observer) -> None:
    user.apply(f"{SAMPLES}/ten-quarters.yaml")

    def look() -> list[dict[str, object]] | None:
        for node in user.gpunodes():
            assert ledger.violations(node) == []
        pods = user.pods()
        ready = [pod for pod in pods if pod["status"].get("phase") == "Running"]
        return ready if len(ready) == 10 else None

    pods = eventually(look, seconds=90, what="ten pods running")
    uuids = [annotation(pod, contract.GPU_UUIDS) for pod in pods]  # type: ignore[arg-type]
    assert max(uuids.count(uuid) for uuid in uuids) <= 4
    assert len({annotation(pod, contract.ALLOCATION) for pod in pods}) == 10  # type: ignore[arg-type]


def test_each_container_has_its_own_limit_on_its_own_share(user: Observer) -> None:
    manifest = sleeper("two", **{"memory.a": "2Gi", "memory.b": "3Gi", "request.b": "0.1"})
    command = manifest["spec"]["containers"][0]["command"]  # type: ignore[index]
    manifest["spec"]["containers"] = [  # type: ignore[index]
        {"name": name, "image": "gpushare/sample:0.1", "command": command} for name in ("a", "b", "c")
    ]
    user.apply(manifest)
    user.running("two")
    for container, gib in (("a", 2), ("b", 3)):
        probe = (
            f"gpushare-probe --allocate {gib * builders.GIB} && ! gpushare-probe --allocate {gib * builders.GIB + 1}"
        )
        user.inside("two", "sh", "-c", probe, container=container)
    assert "libcuda" not in user.inside("two", "cat", "/proc/mounts", container="c")


def test_pods_of_one_gpu_cannot_take_each_others_memory(user: Observer) -> None:
    gpu = user.gpunode().gpus[0]
    for name in ("left", "right"):
        user.apply(sleeper(name, request="0.5", uuid=gpu.uuid))
    for name in ("left", "right"):
        user.running(name)
    half = gpu.memory_bytes // 2
    held = f"gpushare-probe --allocate {half} --hold 600 > /tmp/held 2>&1 &"
    user.inside("left", "sh", "-c", held)
    eventually(lambda: f"allocated {half}" in user.file("left", "/tmp/held"), what="left holds its half")
    user.inside("right", "sh", "-c", f"gpushare-probe --allocate {half}")
    user.inside("left", "sh", "-c", "! gpushare-probe --allocate 1")


def test_a_pod_without_our_annotations_is_never_seen(user: Observer, reviews: Reviews) -> None:
    before = reviews.count()
    for number in range(5):
        plain = sleeper(f"plain-{number}")
        plain["spec"]["schedulerName"] = "none"  # it need not run
        user.apply(plain)
    assert reviews.count() == before
    user.apply(sleeper("ours", request="0.1", model="no-such-model"))
    assert reviews.count() == before + 1


def test_results_forged_by_a_user_are_ignored(user: Observer) -> None:
    uuid = user.gpunode().gpus[3].uuid
    forged = sleeper("forged", request="0.1", uuid=user.gpunode().gpus[0].uuid)
    forged["metadata"]["annotations"] |= {contract.GPU_UUIDS: uuid, contract.ALLOCATION: "mine", contract.NODE: "moon"}  # type: ignore[index]
    user.apply(forged)
    pod = user.running("forged")
    assert annotation(pod, contract.GPU_UUIDS) != uuid
    assert annotation(pod, contract.ALLOCATION) != "mine"
    with pytest.raises(Exception, match=contract.PREFIX):
        user.kubectl(
            "annotate",
            "pod",
            "forged",
            "--overwrite",
            f"{contract.GPU_UUIDS}={uuid}",
            "--as=student",
            "--as-group=everyone",
        )
    bare = sleeper("bare")
    bare["metadata"]["annotations"] = {contract.GPU_UUIDS: uuid}  # type: ignore[index]
    assert contract.PREFIX in user.refused(bare)
