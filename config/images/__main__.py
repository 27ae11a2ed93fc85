"""`python -m config.images`: builds the images, pushes them, or updates their package lock."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from config.images import build, contents, packages, preloaded, push
from lab import lab_errors, prerequisites


def main() -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m config.images", description="Build the images into build/images.")
    parser.add_argument("--architectures", default="", help="amd64, arm64 or both; this machine's by default")
    parser.add_argument("--revision", default="", help="revision of the source, for a label")
    parser.add_argument("--lock", action="store_true", help="regenerate packages.lock without building")
    parser.add_argument("--push", default="", metavar="REGISTRY/PREFIX", help="push the images there")
    parser.add_argument("--push-options", default="", metavar="OPTIONS", help="options of `skopeo copy`")
    parser.add_argument(
        "--kubectl", default="", metavar="PATH", help="kubectl of the image plugin; by default the one on PATH"
    )
    options = parser.parse_args()
    try:
        if options.lock:
            packages.LOCK.write_text(packages.lock(contents.MACHINES))
            return 0
        if options.push:
            push.checked(options.push)
        prerequisites.ensure_programs(*preloaded.COMPILERS.values(), *(["skopeo"] if options.push else []))
        made = build.ensure(
            options.architectures.replace(",", " ").split(),
            revision=options.revision,
            kubectls=[Path(path) for path in options.kubectl.split()],
        )
        pushed = push.push(made, options.push, options=shlex.split(options.push_options)) if options.push else {}
        if pushed:
            push.record(pushed)
    except lab_errors.LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for archive in made.by_name().values():
        print(
            f"{archive.path}  {archive.name}  {archive.digest}  {archive.size / 1e6:.1f} MB, "
            f"unpacked {archive.unpacked_size / 1e6:.1f} MB"
        )
    for place in pushed.values():
        print(f"pushed {place['repository']}:{place['tag']}@{place['digest']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
