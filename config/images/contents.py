"""Tables of the images' contents, and of the files that are left out."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Iterable

NAMESPACE = "localhost/gpushare"  # images that belong to no registry
PYTHON = "3.11"  # Debian 12's
SITE = f"usr/local/lib/python{PYTHON}/dist-packages"  # on the default search path of Debian's interpreter
LIBRARIES = "opt/gpushare"

# Debian's name of each architecture, and the kernel's.
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}

# Dependencies are not resolved: the interpreter's would bring a shell and perl. tests/images checks that every program
# and library finds its shared libraries.
PACKAGES = (
    "base-files",  # Debian's directory layout, its release files, and the texts of common licences
    "gcc-12-base",  # the copyright file of both gcc libraries
    "libbz2-1.0",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libssl3",
    "libstdc++6",  # for numpy and grpc
    "libuuid1",
    "python3.11-minimal",
    "zlib1g",
)

PACKAGE_FILES_KEPT = ("usr/share/doc/*/copyright",)
PACKAGE_FILES_LEFT_OUT = (
    # Files that no program in the image reads. Copyright notices stay.
    "usr/share/doc/*/*",
    "usr/share/lintian*",
    "usr/share/man*",
    "usr/share/info*",
    "usr/share/locale*",
    "usr/share/binfmts*",
    "usr/share/bug*",
    "usr/share/gcc*",
    "usr/share/gdb*",
    "usr/share/pixmaps*",
    "usr/share/applications*",
    "usr/share/base-files*",
    "usr/share/dict*",
    "usr/share/misc*",
    "usr/games*",
    "home*",
    "usr/lib/valgrind*",
    # glibc's files for other encodings, profiling and name services.
    "usr/lib/*/gconv*",
    "usr/lib/*/audit*",
    "usr/lib/*/libmemusage.so",
    "usr/lib/*/libpcprofile.so",
    "usr/lib/*/libc_malloc_debug.so*",
    "usr/lib/*/libnss_compat*",
    "usr/lib/*/libnss_hesiod*",
    "usr/lib/*/libthread_db*",
    "usr/lib/*/libnsl*",
    "usr/lib/*/libmvec*",
    "usr/lib/*/libanl*",
    "usr/lib/*/libBrokenLocale*",
    "usr/lib/*/libexpatw*",
    "usr/lib/*/ossl-modules*",
    "usr/lib/*/engines-3*",
    "etc/ld.so.conf.d*",
    # Modules that are not needed: for development, for terminals, without their C library, or with a faster C version.
    *(
        f"usr/lib/python{PYTHON}/{name}{end}"
        for name in (
            *("crypt", "curses", "dbm", "distutils", "doctest", "ensurepip", "idlelib", "lib2to3", "pydoc"),
            *(
                "pydoc_data",
                "_pydecimal",
                "_pyio",
                "sqlite3",
                "test",
                "tkinter",
                "turtle",
                "turtledemo",
                "unittest",
                "xmlrpc",
            ),
        )
        for end in ("", ".py", "/*")
    ),
    *(
        f"usr/lib/python{PYTHON}/lib-dynload/{name}.cpython-*"
        for name in ("_codecs_??", "_crypt", "_curses*", "_dbm", "_multibytecodec", "_sqlite3", "nis", "readline")
    ),
    f"usr/lib/python{PYTHON}/lib-dynload/*test*",
    "etc/python*",
    "usr/bin/pdb*",
    "usr/bin/py3*",
    "usr/bin/pydoc*",
)

WHEEL_FILES_LEFT_OUT = (
    # Files for compiling extensions, for type checkers, and for pip, which is not in the image.
    *(f"*.{suffix}" for suffix in ("pyi", "pyx", "pxd", "pxi", "c", "cc", "cpp", "h", "hpp", "a", "hash", "typed")),
    *(f"*.dist-info/{name}" for name in ("RECORD", "REQUESTED", "INSTALLER", "direct_url.json", "uv_cache.json")),
    "bin/*",
    ".lock",
    # Test suites and build tools.
    "*/tests/*",
    # Parts of numpy that are loaded only if a program imports them. Ours import none of them (checked in tests/images).
    "numpy/f2py/*",
    "numpy/fft/*",
    "numpy/ma/*",
    "numpy/polynomial/*",
    "numpy/random/*",
    "numpy/testing/*",
    "numpy/_core/_simd.*",
    "numpy/_core/_*_tests.*",
    "numpy/_core/include/*",
    "numpy/_core/lib/*",
    "numpy/_pyinstaller/*",
    "numpy/conftest.py",
)

# No user has a password or a shell.
USERS = b"root:x:0:0:root:/:/nonexistent\ngpushare:x:65532:65532:gpushare:/:/nonexistent\n"
GROUPS = b"root:x:0:\ngpushare:x:65532:\n"
NAME_SERVICES = b"passwd: files\ngroup: files\nhosts: files dns\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """An image: its command and user, and the wheels and packages that these need."""

    name: str
    module: str
    title: str
    user: str
    wheels: tuple[str, ...]
    has_library: bool = False
    has_kubectl: bool = False

    @property
    def packages(self) -> tuple[str, ...]:
        """The folders of this repository that the image contains."""
        return ("gpushare", self.module)


# The dependencies of the extra in pyproject.toml, and the common ones that are used; tests/images compares them.
SERVING = (
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "attrs", "frozenlist", "idna", "multidict", "prometheus-client"),
    *("propcache", "pyyaml", "typing-extensions", "yarl"),
)
IMAGES = (
    Image(
        name="webhook",
        module="webhook",
        title="gpushare webhook and placer",
        user="65532:65532",
        wheels=(*SERVING, "cffi", "cryptography", "jsonpatch", "jsonpointer", "numpy"),
    ),
    Image(
        name="agent",
        module="deviceplugin",
        title="gpushare agent of a node",
        user="0:0",
        wheels=(*SERVING, "grpcio", "nvidia-ml-py", "protobuf"),
        has_library=True,
    ),
    Image(
        name="plugin",
        module="kubectl_gpushare",
        title="gpushare plugin and kubectl",
        user="65532:65532",
        wheels=("click", "numpy", "pyyaml", "tabulate"),
        has_kubectl=True,
    ),
)

WHEELS_LEFT_OUT = {
    "kubernetes-asyncio": "reads kubeconfigs, with a thousand modules; a pod has its ServiceAccount",
    "pycparser": "reads C for cffi, when something is built",
}


def pattern(globs: Iterable[str]) -> re.Pattern[str]:
    """Return one expression for many globs, in which `*` also matches slashes."""
    return re.compile("|".join(f"(?:{fnmatch.translate(glob)})" for glob in globs))
