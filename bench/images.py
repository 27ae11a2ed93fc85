"""The container images: size, build time, whether two builds are identical, and how fast the webhook starts.

The webhook runs from its image in a runc container (own user, read-only root, a cluster of 12 GPUs in memory), and in
turn from the checkout. The time counts from the call of runc, or of Python, until the webhook serves. Builds are timed
with nothing to do, after a change of the webhook's code, and twice from an empty cache, each in a copy of the checkout;
that downloads some 50 MB twice. Prints a table, then one JSON object a line per figure.

Run as root: `python bench/images.py [--rounds N] [--without-builds]`; it takes two minutes on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from config.images import build
from lab import demo
from tests.images.image import Image, unpacked

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("config", "lab", "gpushare", "webhook", "deviceplugin", "interposer", "LICENSE", "requirements.lock")
MAX_MB = 120.0
MAX_SECONDS = 1.5
PATIENCE_SECONDS = 60.0


def start(image: Image | None, scratch: Path) -> float:
    """Return the seconds until a webhook serves: from its image, or from the checkout if `image` is None."""
    directory = Path(tempfile.mkdtemp(dir=scratch))
    shared = directory / "shared"
    shared.mkdir()
    for path, mode in ((directory, 0o755), (shared, 0o777)):
        path.chmod(mode)
    demo.write_cluster(shared / "cluster.json")
    at = "/run" if image else str(shared)
    arguments = (
        f"--from={at}/cluster.json",
        "--port=0",
        f"--port-file={at}/port",
        f"--certificate-directory={at}/keys",
        "--host=127.0.0.1",
        "--probe-host=127.0.0.1",
        "--probe-port=0",
    )
    began = time.monotonic()
    if image is not None:
        with image.container(*arguments, directory=directory, binds={shared: "/run"}) as process:
            return until(shared / "port", process) - began
    with subprocess.Popen(
        [sys.executable, "-m", "webhook", *arguments], cwd=ROOT, stderr=subprocess.DEVNULL
    ) as process:
        try:
            return until(shared / "port", process) - began
        finally:
            process.terminate()


def until(path: Path, process: subprocess.Popen[bytes]) -> float:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        assert process.poll() is None, "the webhook ended"
        assert time.monotonic() < deadline, "the webhook does not serve"
        time.sleep(0.005)
    return time.monotonic()


def copied(scratch: Path) -> Path:
    checkout = Path(tempfile.mkdtemp(dir=scratch))
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "kubernetes"))
        else:
            shutil.copy(ROOT / name, checkout)
    return checkout


def built(checkout: Path, **environment: str) -> tuple[float, dict[str, str]]:
    """Build in a checkout; return the seconds and the digests."""
    began = time.monotonic()
    command = [sys.executable, "-m", "config.images"]
    subprocess.run(command, cwd=checkout, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    facts = {name: json.loads((checkout / f"build/images/{name}.json").read_text()) for name in ("webhook", "agent")}
    return seconds, {name: fact["digest"] for name, fact in facts.items()}


def builds(scratch: Path, report: Callable[..., None]) -> None:
    checkouts = [copied(scratch), copied(scratch)]
    cold = [built(checkout, GPUSHARE_CACHE=str(scratch / f"cache-{index}")) for index, checkout in enumerate(checkouts)]
    report("build.empty_cache", min(seconds for seconds, _ in cold), "s")
    cache = {"GPUSHARE_CACHE": str(scratch / "cache-0")}
    idle, _ = built(checkouts[0], **cache)
    report("build.nothing_to_do", idle, "s", "empty cache", idle / cold[0][0])
    with (checkouts[0] / "webhook" / "server.py").open("a") as file:
        file.write("\n# changed\n")
    changed, digests = built(checkouts[0], **cache)
    report("build.code_changed", changed, "s", "empty cache", changed / cold[0][0])
    assert digests["webhook"] != cold[0][1]["webhook"], "a change changed nothing"
    same = sum(cold[0][1][name] == cold[1][1][name] for name in ("webhook", "agent"))
    report("build.same_digest", same, "of 2 images", "goal", same / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--without-builds", action="store_true")
    arguments = parser.parse_args()
    figures: list[dict[str, object]] = []

    def report(name: str, value: float, unit: str, against: str = "", ratio: float | None = None) -> None:
        print(
            f"{name:<28}{value:>9.2f} {unit}" + (f"   {ratio:.2f} × {against}" if ratio is not None else ""), flush=True
        )
        compared = {} if ratio is None else {"against": against, "ratio": round(ratio, 3)}
        figures.append({"figure": f"images.{name}", "value": round(value, 3), "unit": unit, **compared})

    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    archives = build.ensure()
    for name, made in (("webhook", archives.webhook), ("agent", archives.agent)):
        report(f"{name}.compressed", made.size / 1e6, "MB")
        goal = ("goal", made.unpacked_size / 1e6 / MAX_MB) if name == "webhook" else ()
        report(f"{name}.unpacked", made.unpacked_size / 1e6, "MB", *goal)
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-", dir="/tmp") as directory:
        scratch = Path(directory)
        scratch.chmod(0o755)
        image = unpacked(archives.webhook.path, scratch / "root")
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(arguments.rounds):
            for from_image, seconds in times.items():
                seconds.append(start(image if from_image else None, scratch))
        contained, checkout = statistics.median(times[True]), statistics.median(times[False])
        report("start.image", contained, "s", "goal", contained / MAX_SECONDS)
        report("start.image.best", min(times[True]), "s", "goal", min(times[True]) / MAX_SECONDS)
        report("start.image.against_checkout", contained, "s", "checkout", contained / checkout)
        if not arguments.without_builds:
            builds(scratch, report)
    print()
    for figure in figures:
        print(json.dumps(figure))


if __name__ == "__main__":
    main()
