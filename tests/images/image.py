"""An image under test: its documents, its unpacked files, and a container of it as a runtime would run it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from config.images import bytecode, contents, layers
from lab import prerequisites

STOP_SECONDS = 20


@dataclass(frozen=True)
class Image:
    """The only image of an archive; `root` has its files."""

    archive: Path
    root: Path
    config: dict[str, Any]
    members: tuple[tarfile.TarInfo, ...]

    def python(self, *words: str) -> str:
        """Run code in the image's interpreter, by the image's loader and libraries; return its output."""
        command = bytecode.command(self.root, layers.native())
        environment = {"PYTHONHOME": str(self.root / "usr"), "PYTHONPATH": str(self.root / contents.SITE)}
        result = subprocess.run(
            [*command, "-S", *words], env=environment, cwd="/", capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    @contextlib.contextmanager
    def container(
        self,
        *arguments: str,
        directory: Path,
        binds: Mapping[Path, str],
        environment: Mapping[str, str] | None = None,
        capabilities: Sequence[str] = (),
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run the image's entry point on this machine's network, as the image's user, with a read-only root."""
        settings = self.config["config"]
        user, group = map(int, settings["User"].split(":"))
        variables = [f"{key}={value}" for key, value in (environment or {}).items()]
        sets = ("bounding", "effective", "permitted", "inheritable")
        spec = {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": user, "gid": group},
                "args": [*settings["Entrypoint"], *arguments],
                "env": [*settings["Env"], *variables],
                "cwd": settings["WorkingDir"],
                "capabilities": {name: list(capabilities) for name in sets},
                "noNewPrivileges": True,
            },
            "root": {"path": str(self.root), "readonly": True},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                *(
                    {"destination": inside, "type": "bind", "source": str(outside), "options": ["rbind", "rw"]}
                    for outside, inside in binds.items()
                ),
            ],
            "linux": {
                "namespaces": [{"type": "mount"}, {"type": "pid"}],
                "cgroupsPath": f"/gpushare-test/{os.getpid()}-{directory.name}",
            },
        }
        (directory / "config.json").write_text(json.dumps(spec))
        runc = [prerequisites.program("runc"), "--root", str(directory / "runc")]
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [*runc, "run", "--bundle", str(directory), directory.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    subprocess.run([*runc, "kill", directory.name, "KILL"], check=False)
                    process.wait(STOP_SECONDS)


def unpacked(archive: Path, root: Path) -> Image:
    """Unpack an image below `root`."""
    members: list[tarfile.TarInfo] = []
    with tarfile.open(archive) as outer:

        def document(path: str) -> Any:
            return json.load(cast("Any", outer.extractfile(path)))

        (about,) = document("manifest.json")
        for layer in about["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(layer), mode="r:gz") as inner:
                members += inner
                inner.extraction_filter = lambda member, _: member  # `filter=` exists from Python 3.11.4
                inner.extractall(root)  # noqa: S202 - our own image
        config = document(about["Config"])
    return Image(archive, root, config, tuple(members))
