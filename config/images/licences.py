"""The licences of the images' parts, as SPDX expressions that a person has reviewed.

A part that is missing in these tables is not shipped. tests/images compares the tables with the parts' own licence
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lab import lab_errors

# Licences under which anyone may redistribute the images as they are: permissive ones, and the GNU ones of Debian's
# system libraries, whose sources Debian keeps, with their exceptions.
ALLOWED: Final = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSD-3-Clause-Open-MPI", "CC0-1.0", "MIT", "MIT-0"),
        *("PSF-2.0", "Zlib", "bzip2-1.0.6"),
        *("GPL-2.0-or-later", "GPL-3.0-or-later", "GCC-exception-3.1", "LGPL-2.1-or-later"),
    }
)

# Debian packages: from their copyright files, for the parts that the images contain.
DEBIAN: Final[Mapping[str, str]] = {
    "base-files": "GPL-2.0-or-later",
    "gcc-12-base": "GPL-3.0-or-later",
    "libbz2-1.0": "bzip2-1.0.6",
    "libc6": "LGPL-2.1-or-later",
    "libexpat1": "MIT",
    "libffi8": "MIT",
    "libgcc-s1": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "liblzma5": "0BSD",
    "libpython3.11-minimal": "PSF-2.0",
    "libpython3.11-stdlib": "PSF-2.0",
    "libssl3": "Apache-2.0",
    "libstdc++6": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libuuid1": "BSD-3-Clause",
    "python3.11-minimal": "PSF-2.0",
    "zlib1g": "Zlib",
}

# Wheels: from their metadata, followed by the licences of bundled third-party parts.
_RUNTIME: Final = "GPL-3.0-or-later WITH GCC-exception-3.1 AND LGPL-2.1-or-later"
WHEELS: Final[Mapping[str, str]] = {
    "aiohappyeyeballs": "PSF-2.0",
    "aiohttp": "Apache-2.0 AND MIT",
    "aiosignal": "Apache-2.0",
    "attrs": "MIT",
    "cffi": "MIT-0",
    "click": "BSD-3-Clause",
    "cryptography": "Apache-2.0 OR BSD-3-Clause",
    "frozenlist": "Apache-2.0",
    "grpcio": "Apache-2.0",
    "idna": "BSD-3-Clause",
    "jsonpatch": "BSD-3-Clause",
    "jsonpointer": "BSD-3-Clause",
    "multidict": "Apache-2.0",
    "numpy": f"BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0 AND BSD-3-Clause-Open-MPI AND {_RUNTIME}",
    "nvidia-ml-py": "BSD-3-Clause",
    "prometheus-client": "Apache-2.0 AND BSD-2-Clause",
    "propcache": "Apache-2.0",
    "protobuf": "BSD-3-Clause",
    "pyyaml": "MIT",
    "tabulate": "MIT",
    "typing-extensions": "PSF-2.0",
    "yarl": "Apache-2.0",
}

PROGRAMS: Final[Mapping[str, str]] = {"kubectl": "Apache-2.0"}

OWN: Final = "Apache-2.0"
_TABLES: Final[Mapping[str, Mapping[str, str]]] = {"deb": DEBIAN, "pypi": WHEELS, "generic": PROGRAMS}


def of(kind: str, name: str) -> str:
    """Return the licence of a part; `kind` as in `layers.ImageComponent`.

    Raises:
        LabError: the licence has not been reviewed.
    """
    known = _TABLES[kind].get(name)
    if known is None:
        raise lab_errors.LabError(
            f"the licence of {name} is unknown: read it, and write it into config/images/licences.py"
        )
    return known
