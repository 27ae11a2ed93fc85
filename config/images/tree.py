"""A tree of files in memory, and the tar archive made from it. The same tree gives the same bytes.

Every file belongs to root and dates from 1970, so no property of the build machine gets into an image.
"""

from __future__ import annotations

import dataclasses
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

# Debian 12 merges /bin into /usr/bin and /lib into /usr/lib; its packages still use both paths.
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """The entry at a path: a directory, a link if it has a target, else a file."""

    mode: int = 0o644
    content: bytes = b""
    target: str = ""
    is_directory: bool = False


def directory(mode: int = 0o755) -> Node:
    """Return a directory node."""
    return Node(mode, is_directory=True)


def link(target: str) -> Node:
    """Return a symbolic link to `target`."""
    return Node(0o777, target=target)


class Tree:
    """Nodes by path, relative to the root. Adding a node adds its parent directories."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def put(self, path: str, node: Node) -> None:
        """Put a node at a path; replace an existing one."""
        merged = _merged(path)
        for parent in PurePosixPath(merged).parents:
            if (name := str(parent)) != ".":
                self._nodes.setdefault(name, directory())
        self._nodes[merged] = node

    def add_tar(self, archive: bytes, keep: Callable[[str], bool] = lambda _: True) -> None:
        """Add the members of an archive that `keep` accepts. A hard link becomes a separate file."""
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                path = member.name.removeprefix("./")
                if path in ("", ".", *MERGED) or not keep(_merged(path)):
                    continue
                # Our programs run as the user who started them, so no file is setuid.
                mode = member.mode & 0o1777
                if member.isdir():
                    self.put(path, directory(mode))
                elif member.issym():
                    self.put(path, link(member.linkname))
                else:
                    content = tar.extractfile(member)
                    self.put(path, Node(mode, content.read() if content else b""))

    def __iter__(self) -> Iterator[tuple[str, Node]]:
        return iter(sorted(self._nodes.items()))

    def __contains__(self, path: str) -> bool:
        return path in self._nodes

    def get(self, path: str) -> Node | None:
        """Return the node at a path, or None."""
        return self._nodes.get(path)

    def size(self) -> int:
        """The total size of all files, in bytes."""
        return sum(len(node.content) for node in self._nodes.values())

    def tar(self, *, timestamp: int = 0) -> bytes:
        """Return the tree as a tar archive, sorted by path."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path, node in self:
                member = tarfile.TarInfo(path)
                member.mode, member.mtime = node.mode, timestamp
                member.type = _type(node)
                member.linkname, member.size = node.target, len(node.content)
                tar.addfile(member, io.BytesIO(node.content))
        return buffer.getvalue()

    def write(self, root: Path) -> None:
        """Write the tree below a directory, readable by its owner only."""
        for path, node in self:
            at = root / path
            if node.is_directory:
                at.mkdir(parents=True, exist_ok=True)
            elif node.target:
                at.symlink_to(node.target)
            else:
                at.write_bytes(node.content)
                at.chmod(node.mode | 0o600)


def _merged(path: str) -> str:
    first, _, _ = path.partition("/")
    return f"usr/{path}" if first in MERGED and path != first else path


def _type(node: Node) -> bytes:
    if node.is_directory:
        return tarfile.DIRTYPE
    return tarfile.SYMTYPE if node.target else tarfile.REGTYPE
