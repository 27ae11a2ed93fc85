"""Time and memory of `kubectl gpushare top`, from a saved cluster of 5,000 nodes × 8 GPUs.

Also measures the start of the plugin against a bare interpreter, and `top` on 100 nodes against `kubectl get --raw` of
the same objects. Both go through the kubectl on PATH (or KUBECTL_PATH) to a local server that has the answer ready. The
plugin runs as installed, from its own folder with compiled modules; `first` is a start without compiled modules.

Prints a table, then one JSON object a line per figure. Run: `python bench/cli.py [NODES]`.
"""

from __future__ import annotations

import compileall
import contextlib
import http.server
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpushare import codec, contract
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import Gpu, GpuNode

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ("-c", "import sys; from kubectl_gpushare.__main__ import main; sys.exit(main())")  # like an installed script
GIB = 2**30
GPUS = 8
ROUNDS = 3
FEW = 100  # nodes, for the comparison with kubectl
ANSWERS = 15  # calls of kubectl and of the plugin, in turn
SHARES = ((10, 4), (20, 16), (25, 20), (25, 16), (50, 40))  # percent of compute, GiB


@dataclass(frozen=True)
class Run:
    seconds: float
    cpu_seconds: float
    memory_mib: float


def nodes(count: int) -> Iterator[GpuNode]:
    """Yield nodes of eight GPUs, most of them shared by two to four pods."""
    draw = random.Random(42)
    for number in range(count):
        name = f"gpu-node-{number:05}.cluster.local"
        gpus = tuple(
            Gpu(
                f"GPU-{draw.getrandbits(64):016x}-{index}",
                index,
                "NVIDIA A100-SXM4-80GB",
                80 * GIB,
                (8, 0),
                numa_node=index // 4,
            )
            for index in range(GPUS)
        )
        held = []
        for gpu in gpus:
            room = 100
            for percent, gib in draw.sample(SHARES, 3):
                if percent <= room:
                    room -= percent
                    identity = f"{draw.getrandbits(64):016x}"
                    pod = PodRef("team-a", f"trainer-{identity}", f"{identity}-uid-of-the-pod")
                    held.append(
                        Allocation(identity, pod, (GivenShare(("main",), (gpu.uuid,), percent, 100, gib * GIB),))
                    )
        yield GpuNode(name, gpus, tuple(held), config="default")


def save(path: Path, count: int) -> None:
    """Write the nodes on one line, as the API server sends them."""
    with path.open("w") as stream:
        stream.write('{"apiVersion":"gpushare.io/v1alpha1","items":[')
        for number, node in enumerate(nodes(count)):
            stream.write("," if number else "")
            json.dump(codec.to_document(node), stream, separators=(",", ":"))
        stream.write('],"kind":"GPUNodeList","metadata":{"resourceVersion":"1"}}')


def install(directory: Path) -> dict[str, str]:
    """Copy the packages without compiled modules, and return the environment that finds them."""
    for package in ("gpushare", "kubectl_gpushare"):
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    return {**os.environ, "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}


def measure(environment: dict[str, str], *arguments: str) -> Run:
    """Return the fastest of a few runs."""
    best = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{' '.join(arguments)} failed")
        best.append(Run(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    return min(best, key=lambda run: run.seconds)


@contextlib.contextmanager
def served(path: Path) -> Iterator[str]:
    """Serve the file for GPUNodes and an empty list for everything else; yield the URL."""
    gpu_nodes = path.read_bytes()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = gpu_nodes if self.path.startswith(contract.GPUNODE_PATH) else b'{"kind":"List","items":[]}'
            if "/configmaps/" in self.path:
                content = b'{"kind":"ConfigMap"}'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def against_kubectl(program: str, directory: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Return the median seconds of `kubectl get --raw` and of `top` for the same nodes, called in turn."""
    path = directory / "few.json"
    save(path, FEW)
    kubeconfig = directory / "kubeconfig"
    with served(path) as url:
        cluster = {"name": "bench", "cluster": {"server": url}}
        context = {"name": "bench", "context": {"cluster": "bench", "user": "bench"}}
        whole = {"clusters": [cluster], "contexts": [context], "current-context": "bench", "users": [{"name": "bench"}]}
        kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **whole}))
        raw = (program, f"--kubeconfig={kubeconfig}", "get", "--raw", contract.GPUNODE_PATH)
        top = (sys.executable, *PLUGIN, "top", f"--kubeconfig={kubeconfig}")
        seconds: dict[tuple[str, ...], list[float]] = {raw: [], top: []}
        for _ in range(ANSWERS):
            for command, taken in seconds.items():
                started = time.perf_counter()
                called = {**environment, "KUBECTL_PATH": program}
                subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=called)
                taken.append(time.perf_counter() - started)
    return sorted(seconds[raw])[ANSWERS // 2], sorted(seconds[top])[ANSWERS // 2]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "nodes.json"
        save(path, count)
        print(f"{count} nodes × {GPUS} GPUs, {path.stat().st_size / 1e6:.0f} MB; best of {ROUNDS}\n")
        environment = install(Path(directory))
        first = measure(environment, *PLUGIN, "top", "--help")
        compileall.compile_dir(directory, quiet=1)

        def plugin(*words: str) -> Run:
            return measure(environment, *PLUGIN, *words)

        runs = {
            "interpreter": measure(environment, "-c", "pass"),
            "version": plugin("version"),
            "first": first,
            "top.help": plugin("top", "--help"),
            "top.gpus": plugin("top", "--from", str(path)),
            "top.nodes": plugin("top", "nodes", "--from", str(path)),
            "top.gpus.json": plugin("top", "-o", "json", "--from", str(path)),
            "describe.node": plugin("describe", "node", "gpu-node-00000.cluster.local", "--from", str(path)),
        }
        program = os.environ.get("KUBECTL_PATH") or shutil.which("kubectl")
        compared = against_kubectl(program, Path(directory), environment) if program else None
    print(f"{'':<16}{'seconds':>9}{'CPU s':>8}{'MiB':>8}")
    for name, run in runs.items():
        print(f"{name:<16}{run.seconds:>9.2f}{run.cpu_seconds:>8.2f}{run.memory_mib:>8.0f}")
    if compared:
        print(f"\n{FEW} nodes × {GPUS} GPUs: kubectl get --raw {compared[0]:.3f} s, top {compared[1]:.3f} s")
    else:
        print("\nno kubectl on PATH: skipped the comparison")
    print()
    bare = runs["interpreter"].seconds
    for name, run in runs.items():
        limit = 2.0 if name in {"top.gpus", "top.nodes"} else None
        against, ratio = ("goal", run.seconds / limit) if limit else ("bare interpreter", run.seconds / bare)
        figure = {"figure": f"cli.{name}", "value": round(run.seconds, 3), "unit": "s", "against": against}
        print(json.dumps({**figure, "ratio": round(ratio, 2)}))
        memory = {"figure": f"cli.{name}.memory", "value": round(run.memory_mib), "unit": "MiB", "against": "goal"}
        print(json.dumps({**memory, "ratio": round(run.memory_mib / 300, 2)}))
    if compared:
        raw, top = compared
        figure = {"figure": "cli.top.few", "value": round(top, 3), "unit": "s", "against": "kubectl get --raw"}
        print(json.dumps({**figure, "ratio": round(top / raw, 2)}))


if __name__ == "__main__":
    main()
