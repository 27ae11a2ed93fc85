"""An API server that has only pods and serves them in pages prepared in advance, so that it needs little CPU time.

    python -m bench.handover.pods COUNT

Prints its port.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from aiohttp import web

PAGE = 500  # the limit that `gpushare.cluster.api_client` requests


def pod(number: int) -> dict[str, Any]:
    """Return a typical pod with the fields that controllers and the kubelet write, some 5 KB."""
    container = {
        "name": "main",
        "image": "registry.example.com/team/trainer:1.2.3",
        "env": [{"name": f"SETTING_{number}", "value": f"value-{number}" * 4} for number in range(20)],
        "resources": {"limits": {"gpushare.io/gpu-percent": "50"}, "requests": {"cpu": "1", "memory": "4Gi"}},
        "volumeMounts": [{"name": f"volume-{number}", "mountPath": f"/mnt/{number}"} for number in range(5)],
    }
    return {
        "metadata": {
            "name": f"trainer-{number}",
            "namespace": "bench",
            "uid": f"00000000-0000-0000-0000-{number:012}",
            "resourceVersion": str(number + 1),
            "labels": {f"label-{number}": f"value-{number}" for number in range(10)},
            "annotations": {"gpushare.io/allocation": f"a{number}"},
            "managedFields": [
                {"manager": manager, "fieldsV1": {f"f:field-{number}": {} for number in range(40)}}
                for manager in ("controller", "kubelet")
            ],
        },
        "spec": {"nodeName": "node-a", "containers": [container], "tolerations": [{"operator": "Exists"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "containerID": f"containerd://{number:064}", "ready": True}],
        },
    }


def pages(count: int) -> list[bytes]:
    """Return the pages of a list of `count` pods."""
    made: list[bytes] = []
    for first in range(0, count, PAGE):
        rest = {"continue": str(len(made) + 1)} if first + PAGE < count else {}
        items = [pod(number) for number in range(first, min(count, first + PAGE))]
        page = {"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1", **rest}, "items": items}
        made.append(json.dumps(page).encode())
    return made


def main(count: int) -> None:
    """Serve until killed."""
    made = pages(count)

    async def listed(request: web.Request) -> web.Response:
        return web.Response(body=made[int(request.query.get("continue", 0))], content_type="application/json")

    async def say(site: web.Application) -> None:
        print(site["socket"].getsockname()[1], flush=True)

    app = web.Application()
    app["socket"] = socket.create_server(("127.0.0.1", 0))
    app.router.add_get("/api/v1/pods", listed)
    app.on_startup.append(say)
    web.run_app(app, sock=app["socket"], print=None, access_log=None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
