"""The software bill of materials of an image, as CycloneDX: every package and wheel in it.

It lies in the image at PATH. Scanners need it not: what tells them of the packages lies beside them.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from typing import Final

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

import gpushare
from config.images import contents, layers

PATH: Final = "usr/share/sbom/gpushare.cdx.json"


def write(image: contents.Image, architecture: str, parts: Sequence[layers.Component]) -> bytes:
    """The document: the same for the same parts."""
    version = gpushare.__version__
    subject = Component(
        name=f"gpushare-{image.name}",
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref=f"gpushare-{image.name}",
        licenses=[LicenseExpression("Apache-2.0")],
        description=f"{image.title}, for {architecture}",
    )
    components = [_component(part, architecture) for part in parts]
    bom = Bom(
        components=components,
        metadata=BomMetaData(
            component=subject, timestamp=datetime.datetime.fromtimestamp(layers.timestamp(), tz=datetime.UTC)
        ),
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, "\n".join([image.name, version, architecture, *map(str, parts)])),
    )
    bom.register_dependency(subject, components)
    return JsonV1Dot6(bom).output_as_string(indent=1).encode()


def _component(part: layers.Component, architecture: str) -> Component:
    url = PackageURL("pypi", name=part.name, version=part.version)
    if part.kind == "deb":
        about = {"arch": architecture, "distro": "debian-12"}
        url = PackageURL("deb", "debian", part.name, part.version, qualifiers=about)
    return Component(
        name=part.name,
        version=part.version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=url.to_string(),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=part.sha256)] if part.sha256 else [],
    )
