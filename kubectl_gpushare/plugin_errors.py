"""The errors of the plugin; each message is a sentence that says what to do.

PluginError
├── KubectlError            kubectl or the API server refused
│   ├── NotInstalled        the cluster has no GPUNodes at all
│   ├── KubectlForbidden    a right is missing
│   ├── KubectlNotFound     the requested object does not exist
│   └── KubectlConflict     the object has changed since it was read
└── FileError               a file of --from that cannot be read
"""

from __future__ import annotations


class PluginError(Exception):
    """Anything that ends a command with `error: …` and exit code 1."""


class KubectlError(PluginError):
    """kubectl is missing, or it or the API server refused."""


class NotInstalled(KubectlError):  # noqa: N818 - reads as what it is
    """The API server knows no GPUNodes."""


class KubectlForbidden(KubectlError):  # noqa: N818
    """The user lacks a right; the message says which."""


class KubectlNotFound(KubectlError):  # noqa: N818
    """The named object does not exist."""


class KubectlConflict(KubectlError):  # noqa: N818
    """The object has changed since it was read."""


class FileError(PluginError):
    """A file of `--from` that cannot be read or holds no GPUNode and no pod."""
