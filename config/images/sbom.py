"""Writes an image's software bill of materials as CycloneDX: every package and wheel in it, and our own parts.

It is in the image at PATH. Scanners do not need it: they read the package metadata that is in the image too.
"""

from __future__ import annotations

import datetime
import hashlib
import uuid
from collections.abc import Iterator, Sequence
from typing import Final

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

import gpushare
from config.images import contents, layers, licences, preloaded

PATH: Final = "usr/share/sbom/gpushare.cdx.json"


def write(image: contents.Image, architecture: str, parts: Sequence[layers.ImageComponent]) -> bytes:
    """Return the document; the same parts give the same document."""
    version = gpushare.__version__
    subject = Component(
        name=f"gpushare-{image.name}",
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref=f"gpushare-{image.name}",
        licenses=[LicenseExpression(licences.OWN)],
        description=f"{image.title}, for {architecture}",
    )
    own = list(_own(image))
    components = [*(_component(part, architecture) for part in parts), *own]
    bom = Bom(
        components=components,
        metadata=BomMetaData(
            component=subject, timestamp=datetime.datetime.fromtimestamp(layers.timestamp(), tz=datetime.UTC)
        ),
        serial_number=uuid.uuid5(
            uuid.NAMESPACE_OID, "\n".join([image.name, version, architecture, *map(str, parts), *_hashes(own)])
        ),
    )
    bom.register_dependency(subject, components)
    return JsonV1Dot6(bom).output_as_string(indent=1).encode()


def _component(part: layers.ImageComponent, architecture: str) -> Component:
    url = PackageURL(part.kind, name=part.name, version=part.version or None)
    if part.kind == "deb":
        about = {"arch": architecture, "distro": "debian-12"}
        url = PackageURL("deb", "debian", part.name, part.version, qualifiers=about)
    return Component(
        name=part.name,
        version=part.version or None,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=url.to_string(),
        licenses=[LicenseExpression(licences.of(part.kind, part.name))],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=part.sha256)] if part.sha256 else [],
    )


def _own(image: contents.Image) -> Iterator[Component]:
    """List our Python code and, for each architecture, the libraries that an agent gives to containers."""
    made = [("gpushare", {"packages": " ".join(image.packages)}, "")]
    if image.has_library:
        for machine in contents.MACHINES.values():
            digest = hashlib.sha256(preloaded.library(machine).read_bytes()).hexdigest()
            made.append(("libgpushare", {"arch": machine}, digest))
    for name, qualifiers, digest in made:
        url = PackageURL("generic", name=name, version=gpushare.__version__, qualifiers=qualifiers)
        yield Component(
            name=name,
            version=gpushare.__version__,
            type=ComponentType.LIBRARY if digest else ComponentType.APPLICATION,
            purl=url,
            bom_ref=url.to_string(),
            licenses=[LicenseExpression(licences.OWN)],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else [],
        )


def _hashes(components: Sequence[Component]) -> list[str]:
    return [checksum.content for component in components for checksum in component.hashes]
