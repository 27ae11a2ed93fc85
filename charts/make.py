"""Makes what of the chart is made: copies of config/, the table of its values, the policies in their schema; and in
config/ the list of the annotations that a pod template may have, and the manifests of other sharers' syntaxes. `make
chart` runs it.

Helm reads nothing outside a chart, so the manifests that kustomize builds are copied into files/ as they are.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from charts import syntax_manifests
from gpushare import contract
from gpushare.policies import POLICIES
from gpushare.request import DEFAULT_ISOLATIONS

REPOSITORY: Final = Path(__file__).resolve().parents[1]
CONFIG: Final = REPOSITORY / "config"
CHART: Final = REPOSITORY / "charts" / "gpushare"

# Those that a value switches on; the others are values themselves.
COMPONENTS: Final = (
    "borrow",
    "cdi",
    "cert-manager",
    "client-ca",
    "defrag",
    "demand",
    "demand-gangs",
    "deny-unregistered",
    "driver-memory",
    "end-unlimited",
    "mig",
    "monitoring",
    "mps",
    "openshift",
    "preemption",
)
KUSTOMIZATION: Final = "kustomization.yaml"
SCHEMA: Final = "values.schema.json"
TEMPLATES: Final = CONFIG / "base" / "policy" / "templates.yaml"
WEBHOOKS: Final = CONFIG / "base" / "admission" / "configuration.yaml"
SYNTAXES: Final = CONFIG / "base" / "policy" / "syntaxes.yaml"
MAX_LINE: Final = 120


def made() -> dict[Path, str]:
    """Every made file, and what is in it."""
    ours = {
        TEMPLATES: with_keys(TEMPLATES.read_text()),
        WEBHOOKS: syntax_manifests.webhooks(WEBHOOKS.read_text()),
        SYNTAXES: syntax_manifests.policies(),
    }
    texts = {CHART / "files" / path.relative_to(CONFIG): path.read_text() for path in sorted(_copied())}
    texts |= ours | {CHART / "files" / path.relative_to(CONFIG): text for path, text in ours.items()}
    schema = with_policies((CHART / SCHEMA).read_text())
    return {**texts, CHART / "README.md": readme((CHART / "values.yaml").read_text()), CHART / SCHEMA: schema}


def write() -> None:
    """Bring the chart up to date."""
    wanted = made()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in there() - set(wanted):
        path.unlink()


def there() -> set[Path]:
    """The made files that there are now."""
    copies = {path for path in (CHART / "files").rglob("*") if path.is_file()}
    return copies | {CHART / "README.md", CHART / SCHEMA, TEMPLATES, WEBHOOKS, SYNTAXES}


def _copied() -> Iterator[Path]:
    # A component's kustomization has its patches; that of the base only lists files.
    yield from (path for path in (CONFIG / "base").rglob("*.yaml") if path.name != KUSTOMIZATION)
    for component in COMPONENTS:
        directory = CONFIG / "components" / component
        kustomization = yaml.safe_load((directory / KUSTOMIZATION).read_text())
        listed = [*kustomization.get("resources", ()), *_generated_from(kustomization)]
        yield from (directory / name for name in (KUSTOMIZATION, *listed))


def _generated_from(kustomization: Mapping[str, Any]) -> Iterator[str]:
    for generator in kustomization.get("configMapGenerator", ()):
        yield from generator["files"]


def with_policies(schema: str) -> str:
    """The schema of the values, with the policies and the default isolations that there are."""
    known = json.dumps(["", *POLICIES])
    kinds = json.dumps(["", *DEFAULT_ISOLATIONS])
    schema = re.sub(r'("defaultIsolation": {"enum": )\[.*?\]', lambda found: found[1] + kinds, schema)
    return re.sub(r'("policy": {"enum": )\[.*?\]', lambda found: found[1] + known, schema)


def with_keys(policy: str) -> str:
    """The policy of pod templates, with the annotations that a share may have beside those that ask for it."""
    keys = ", ".join(f"'{key}'" for key in contract.REQUEST_KEYS if key not in contract.SHARE_KEYS)
    first, further = "        !(key in [", " " * 10
    lines = textwrap.wrap(f"{keys}]))", MAX_LINE - len(first), break_on_hyphens=False)
    made = f"\n{further}".join(lines)
    return re.sub(r"(?m)^        !\(key in \[[^\]]*\]\)\)$", lambda _: first + made, policy)


def readme(values: str) -> str:
    """Return the chart's page: the comment at the top of values.yaml, and a table of all values with their comments."""
    lines = values.splitlines()
    intro = "\n".join(line.removeprefix("# ") for line in lines[: lines.index("")])
    rows = [f"| `{key}` | {meaning} | {default} |" for key, meaning, default in rows_of(values)]
    return "\n".join(
        [
            "<!-- Made by `make chart` from values.yaml. -->",
            "# gpushare",
            "",
            "How to install it: [docs/install-with-helm.md](../../docs/install-with-helm.md).",
            "",
            intro,
            "",
            "| value | meaning | default |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def rows_of(values: str) -> Iterator[tuple[str, str, str]]:
    """Return `(key, meaning, default)` of each value: the comment above it, and the default as written."""
    root = yaml.compose(values, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise TypeError("values.yaml is not a mapping")
    yield from _rows(root, "", values.splitlines())


def _rows(mapping: yaml.MappingNode, above: str, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    for key, value in mapping.value:
        name = f"{above}{key.value}"
        meaning = _comment(lines, key.start_mark.line)
        if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style and not _is_one(name):
            if meaning:
                yield name, meaning, ""
            yield from _rows(value, f"{name}.", lines)
        else:
            yield name, meaning, _default(value)


def _is_one(name: str) -> bool:
    """Whether a mapping is one value, and its keys are Kubernetes' or the user's and not the chart's."""
    last = name.rpartition(".")[2]
    whole = {"resources", "nodeSelector", "affinity", "updateStrategy", "labels", "annotations", "data"}
    return last in whole or name == "networkPolicy.prometheusNamespace"


def _comment(lines: list[str], line: int) -> str:
    words: list[str] = []
    while line > 0 and lines[line - 1].strip().startswith("#"):
        line -= 1
        words.insert(0, lines[line].strip().removeprefix("#").strip())
    return " ".join(words)


def _default(value: yaml.Node) -> str:
    found = yaml.SafeLoader("").construct_object(value, deep=True)
    text = yaml.safe_dump(found, default_flow_style=True, sort_keys=False, width=10_000).removesuffix("...\n").strip()
    if found == "":
        return ""
    return "see values.yaml" if len(text) > 80 else f"`{text}`"


if __name__ == "__main__":
    write()
    sys.stdout.write(f"{CHART.relative_to(REPOSITORY)} is up to date\n")
