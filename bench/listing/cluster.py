"""A large cluster's API server: watches, and lists of Nodes and ordinary pods, always in one piece.

kube-apiserver ignores `limit` for resourceVersion 0, and serves the list from its cache.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from aiohttp import web

PODS_OF_A_NODE: Final = 20
DIGITS: Final = "@@@@@@@@"  # the placeholder of a pod's number in the common text
VERSION: Final = "########"
PIECE: Final = 100  # objects

Json = dict[str, Any]


def pod() -> Json:
    """Return an ordinary pod of one container and twelve variables, as the API server stores it: 5.7 KB."""
    times = {"periodSeconds": 10, "failureThreshold": 3, "successThreshold": 1, "timeoutSeconds": 1}
    probes = {
        name: {"httpGet": {"path": f"/{name}", "port": "http", "scheme": "HTTP"}, **times}
        for name in ("livenessProbe", "readinessProbe")
    }
    resources = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}
    container = {
        "name": "app",
        "image": "registry.example.com/team/app:1.2.3",
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": f"SETTING_{number}", "value": f"value-{number}-of-this"} for number in range(12)],
        "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
        "resources": resources,
        **probes,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "volumeMounts": [
            {
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                "name": f"kube-api-access-{DIGITS}",
                "readOnly": True,
            }
        ],
    }
    fields: Json = {f"f:{name}": {} for name in ("image", "name", "imagePullPolicy", "terminationMessagePath")}
    fields["f:env"] = {
        f'k:{{"name":"SETTING_{number}"}}': {".": {}, "f:name": {}, "f:value": {}} for number in range(12)
    }
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    moment = "2026-11-01T10:00:00Z"
    managed = {"apiVersion": "v1", "operation": "Update", "fieldsType": "FieldsV1", "time": moment}
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "app-7c9f8d6b5",
        "uid": "0" * 36,
        "controller": True,
    }
    tolerated = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    return {
        "metadata": {
            "name": f"app-7c9f8d6b5-{DIGITS}",
            "generateName": "app-7c9f8d6b5-",
            "namespace": "team",
            "uid": f"3f0e5b7a-0000-4000-8000-0000{DIGITS}",
            "resourceVersion": VERSION,
            "creationTimestamp": moment,
            "labels": {"app": f"app-{DIGITS}", "pod-template-hash": "7c9f8d6b5", "team": "team"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
            "ownerReferences": [owner],
            "managedFields": [
                {
                    **managed,
                    "manager": "kube-controller-manager",
                    "fieldsV1": {"f:spec": {"f:containers": {'k:{"name":"app"}': fields}}},
                },
                {
                    **managed,
                    "manager": "kubelet",
                    "subresource": "status",
                    "fieldsV1": {
                        "f:status": {
                            "f:conditions": {
                                f'k:{{"type":"{kind}"}}': {".": {}, "f:lastProbeTime": {}, "f:status": {}, "f:type": {}}
                                for kind in kinds
                            }
                        }
                    },
                },
            ],
        },
        "spec": {
            "nodeName": "node-00000000",
            "containers": [container],
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "schedulerName": "default-scheduler",
            "priority": 0,
            "terminationGracePeriodSeconds": 30,
            "tolerations": [{"key": f"node.kubernetes.io/{why}", **tolerated} for why in ("not-ready", "unreachable")],
            "volumes": [
                {
                    "name": f"kube-api-access-{DIGITS}",
                    "projected": {
                        "defaultMode": 420,
                        "sources": [
                            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                        ],
                    },
                }
            ],
        },
        "status": {
            "phase": "Running",
            "hostIP": "10.0.0.1",
            "podIPs": [{"ip": "10.1.2.3"}],
            "qosClass": "Burstable",
            "startTime": moment,
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": moment} for kind in kinds
            ],
            "containerStatuses": [
                {
                    "name": "app",
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "image": container["image"],
                    "imageID": "registry.example.com/team/app@sha256:" + "a" * 64,
                    "containerID": "containerd://" + "b" * 64,
                    "state": {"running": {"startedAt": moment}},
                    "allocatedResources": resources["requests"],
                    "resources": resources,
                }
            ],
        },
    }


def node() -> Json:
    """Return a Node with its list of images: 6 KB."""
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    images = [
        {"names": [f"registry.example.com/image-{number}@sha256:{'c' * 64}"], "sizeBytes": 10**8}
        for number in range(50)
    ]
    return {
        "metadata": {
            "name": f"node-{DIGITS}",
            "uid": f"4f0e5b7a-0000-4000-8000-0000{DIGITS}",
            "resourceVersion": VERSION,
            "labels": {"kubernetes.io/hostname": f"node-{DIGITS}", "topology.kubernetes.io/zone": "a"},
        },
        "spec": {},
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "images": images,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def storage() -> dict[str, tuple[str, Json]]:
    """Return path -> kind and object for each pod's storage: a bound claim, its volume and attachment; 0.7 to 1.2
    KB.
    """
    moment, size = "2026-11-01T10:00:00Z", {"storage": "10Gi"}
    bound: Json = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeMode": "Filesystem"}
    managed = [
        {
            "apiVersion": "v1",
            "operation": "Update",
            "fieldsType": "FieldsV1",
            "time": moment,
            "manager": "kube-controller-manager",
            "fieldsV1": {"f:spec": {f"f:{key}": {} for key in (*bound, "resources", "volumeName")}},
        }
    ]

    def metadata(name: str, **more: str) -> Json:
        fields = {"name": name, "uid": f"{name:0>36}"[:36], "resourceVersion": VERSION, "creationTimestamp": moment}
        return {**fields, **more, "managedFields": managed}

    name = f"pvc-3f0e5b7a-0000-4000-8000-0000{DIGITS}"
    claim = metadata(f"data-{DIGITS}", namespace="team")
    claimed = {"kind": "PersistentVolumeClaim", "namespace": "team", "name": f"data-{DIGITS}"}
    csi = {"driver": "disk.example.com", "volumeHandle": f"vol-{DIGITS}", "fsType": "ext4"}
    attached = {"attacher": "disk.example.com", "nodeName": "node-00000000", "source": {"persistentVolumeName": name}}
    return {
        "/api/v1/persistentvolumeclaims": (
            "PersistentVolumeClaim",
            {"metadata": claim, "spec": {**bound, "resources": {"requests": size}, "volumeName": name}},
        ),
        "/api/v1/persistentvolumes": (
            "PersistentVolume",
            {"metadata": metadata(name), "spec": {**bound, "capacity": size, "claimRef": claimed, "csi": csi}},
        ),
        "/apis/storage.k8s.io/v1/volumeattachments": (
            "VolumeAttachment",
            {"metadata": metadata(f"csi-{DIGITS}"), "spec": attached, "status": {"attached": True}},
        ),
    }


def csi_node() -> Json:
    """Return a CSINode with a volume limit."""
    driver = {"name": "disk.example.com", "nodeID": f"node-{DIGITS}", "allocatable": {"count": 25}}
    metadata = {"name": f"node-{DIGITS}", "uid": f"5f0e5b7a-0000-4000-8000-0000{DIGITS}", "resourceVersion": VERSION}
    return {"metadata": metadata, "spec": {"drivers": [driver]}}


class Cluster:
    """A server of `count` pods. With `having` "claims" each mounts its own claim, with "shares" each has a share.

    A new version applies to every object and ends every watch with 410, as compaction does.
    """

    def __init__(self, count: int, *, having: str = "") -> None:
        self._version = 1
        self._changed = asyncio.Event()
        self._texts = {
            "/api/v1/pods": ("Pod", _text(_OTHERS.get(having, dict)(pod())), count),
            "/api/v1/nodes": ("Node", _text(node()), max(1, count // PODS_OF_A_NODE)),
        }
        if having == "claims":
            self._texts |= {path: (kind, _text(item), count) for path, (kind, item) in storage().items()}
            limits = "/apis/storage.k8s.io/v1/csinodes"
            self._texts[limits] = ("CSINode", _text(csi_node()), max(1, count // PODS_OF_A_NODE))
        self._have_shares = having == "shares"

    def application(self) -> web.Application:
        """Return the web application."""
        made = web.Application()
        made.router.add_post("/expire", self._expire)
        made.router.add_get("/{path:.*}", self._answer)
        return made

    async def _expire(self, request: web.Request) -> web.Response:
        """Expire all watches; with `?changed=yes` also give every object a new version."""
        self._version += request.query.get("changed") == "yes"
        self._changed.set()
        self._changed = asyncio.Event()
        return web.Response()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        if request.query.get("watch"):
            await self._changed.wait()
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await answer.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        else:
            kind, text, count = self._texts.get(request.path, ("", b"", 0))
            if "labelSelector" in request.query and not self._have_shares:
                count = 0
            head = f'{{"kind":"{kind}List","apiVersion":"v1","metadata":{{"resourceVersion":"{10**7}"}},"items":['
            await answer.write(head.encode())
            for piece in self._pieces(text, count):
                await answer.write(piece)
            await answer.write(b"]}\n")
        await answer.write_eof()
        return answer

    def _pieces(self, text: bytes, count: int) -> Iterator[bytes]:
        text = text.replace(VERSION.encode(), b"%08d" % self._version)
        for first in range(0, count, PIECE):
            numbers = range(first, min(first + PIECE, count))
            made = b",".join(_placed(text.replace(DIGITS.encode(), b"%08d" % number), number) for number in numbers)
            yield made if first == 0 else b"," + made


def _mounting(item: Json) -> Json:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{DIGITS}"}}
    return {**item, "spec": {**item["spec"], "volumes": [*item["spec"]["volumes"], volume]}}


def _with_share(item: Json) -> Json:
    metadata, (container,) = item["metadata"], item["spec"]["containers"]
    notes = {"request": "50%", "memory": "20Gi", "allocation": f"aaaaaaaaaaaaaaaaaa{DIGITS}", "node": "node-00000000"}
    annotations = {f"gpushare.io/{key}": value for key, value in notes.items()}
    annotations["gpushare.io/gpu-uuids"] = f"GPU-00000000-0000-4000-8000-0000{DIGITS}"
    share = {"gpushare.io/gpu-percent": "50", "gpushare.io/gpu-memory": "20480"}
    resources = {kind: {**amounts, **share} for kind, amounts in container["resources"].items()}
    return {
        **item,
        "metadata": {
            **metadata,
            "labels": {**metadata["labels"], "gpushare.io/share": "true"},
            "annotations": {**metadata["annotations"], **annotations},
        },
        "spec": {**item["spec"], "containers": [{**container, "resources": resources}]},
    }


_OTHERS: Final = {"claims": _mounting, "shares": _with_share}


def _text(item: Json) -> bytes:
    return json.dumps(item, separators=(",", ":")).encode()


def _placed(text: bytes, number: int) -> bytes:
    return text.replace(b'"nodeName":"node-00000000"', b'"nodeName":"node-%08d"' % (number // PODS_OF_A_NODE))


async def serve(count: int, having: str) -> None:
    """Serve and print the port; never returns."""
    runner = web.AppRunner(Cluster(count, having=having).application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
