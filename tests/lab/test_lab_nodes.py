"""A node of the lab runs pods, which reach each other, the API server and their GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from lab import access, cluster, image, lab_errors

pytestmark = pytest.mark.lab

READY = "--for=condition=Ready"


def pod(
    name: str, script: str = "echo started; sleep infinity", environment: Sequence[object] = (), **spec: object
) -> dict[str, object]:
    container = {"name": "main", "image": image.SAMPLE, "command": ["sh", "-c", script], "env": environment}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def test_pod_runs_logs_answers_and_ends(lab: access.Access) -> None:
    with lab.namespace() as namespace:
        scope = f"--namespace={namespace}"
        lab.kubectl("create", scope, "--filename=-", input=json.dumps(pod("plain")))
        lab.kubectl("wait", scope, READY, "pod/plain", "--timeout=90s")
        assert lab.kubectl("logs", scope, "plain") == "started\n"
        assert lab.kubectl("exec", scope, "plain", "--", "hostname") == "plain\n"
        assert lab.execute(namespace, "plain", "hostname", container="main") == "plain\n"
        with pytest.raises(lab_errors.LabError, match="not that command terminated with non-zero exit code"):
            lab.execute(namespace, "plain", "sh", "-c", "echo not that >&2; exit 3")
        # A dynamic program finds this machine's C library.
        program = f"/{image.LIBRARY_DIRECTORY}/libc.so.6"
        assert "GNU C Library" in lab.execute(namespace, "plain", program)
        lab.kubectl("delete", scope, "pod/plain", "--timeout=90s")
        assert lab.kubectl("get", scope, "pods", "--output=name") == ""


def test_pods_reach_each_other_and_the_api_server_by_its_service(lab: access.Access) -> None:
    serve = "mkdir /www; echo hello >/www/index.html; httpd -f -p 80 -h /www"
    connect = "nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && echo connected"
    with lab.namespace() as namespace:
        scope = f"--namespace={namespace}"
        for manifest in (pod("server", serve), pod("client"), pod("host", hostNetwork=True)):
            lab.create(f"/api/v1/namespaces/{namespace}/pods", manifest)
        lab.kubectl("wait", scope, READY, "pod/server", "pod/client", "pod/host", "--timeout=90s")
        address = lab.read(f"/api/v1/namespaces/{namespace}/pods/server")["status"]["podIP"]
        assert lab.execute(namespace, "client", "wget", "-q", "-O", "-", f"http://{address}") == "hello\n"
        for name in ("client", "host"):
            assert lab.execute(namespace, name, "sh", "-c", connect) == "connected\n"


def test_a_deployment_and_a_runtime_class_work(lab: access.Access) -> None:
    with lab.namespace() as namespace:
        scope = f"--namespace={namespace}"
        lab.kubectl(
            "create", scope, "deployment", "two", f"--image={image.SAMPLE}", "--replicas=2", "--", "sleep", "99"
        )
        lab.create(f"/api/v1/namespaces/{namespace}/pods", pod("classed", runtimeClassName="nvidia"))
        lab.kubectl("rollout", scope, "status", "deployment/two", "--timeout=90s")
        lab.kubectl("wait", scope, READY, "pod/classed", "--timeout=90s")


def test_a_container_sees_the_driver_and_its_own_gpu_only(lab: access.Access) -> None:
    if lab.lab is None:
        pytest.skip("only the lab's node has simulated GPUs")
    devices = lab.lab.gpus(lab.lab.nodes[0])
    files = [devices / f"gpu{index}-GPU-{index:08}-0000-4000-8000-000000000000" for index in (98, 99)]
    list_files = f"ls /dev/simgpu /{image.LIBRARY_DIRECTORY}/libcuda.so.1; sleep infinity"
    variable = {"name": "NVIDIA_VISIBLE_DEVICES", "value": files[1].name.partition("-")[2]}
    for file in files:
        file.write_text("memory")
    try:
        with lab.namespace() as namespace:
            scope = f"--namespace={namespace}"
            lab.create(f"/api/v1/namespaces/{namespace}/pods", pod("gpu", list_files, [variable]))
            lab.kubectl("wait", scope, READY, "pod/gpu", "--timeout=90s")
            assert lab.kubectl("logs", scope, "gpu").split() == [
                f"/{image.LIBRARY_DIRECTORY}/libcuda.so.1",
                "/dev/simgpu:",
                files[1].name,
                *(["rendezvous"] if (devices / "rendezvous").exists() else []),  # with simulated GPUs
            ]
            # The file is the device: other containers and the node see what a container writes there.
            lab.execute(namespace, "gpu", "sh", "-c", f"echo changed >/dev/simgpu/{files[1].name}")
            assert files[1].read_text() == "changed\n"
    finally:
        for file in files:
            file.unlink()


def test_other_number_of_nodes_is_an_error_with_a_remedy(lab: access.Access) -> None:
    if lab.lab is None:
        pytest.skip("one's own cluster has the nodes it has")
    with pytest.raises(
        lab_errors.LabError, match=r"has 1 node\(s\) and keeps them: start another by `python -m lab up"
    ):
        cluster.up(lab.lab.directory, node_count=2)
