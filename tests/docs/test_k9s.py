"""The files for k9s have the fields that k9s knows, commands that the plugin has, and columns that GPUNodes have.

The rules are those of k9s 0.50: https://k9scli.io/topics/plugins/ and https://k9scli.io/topics/columns/.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import yaml

from gpushare import contract
from tests.docs import commands, pages

FOLDER = pages.ROOT / "docs" / "k9s"
PLUGINS: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "plugins.yaml").read_text())["plugins"]
VIEWS: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "views.yaml").read_text())["views"]
CRD = yaml.safe_load((pages.ROOT / "config" / "base" / "crd" / "gpunodes.yaml").read_text())["spec"]["versions"][0]
REQUIRED = {"shortCut": str, "description": str, "scopes": list, "command": str}
OPTIONAL = {"background": bool, "args": list, "confirm": bool, "dangerous": bool, "override": bool}
VARIABLES = {"NAME": "gpu-1", "NAMESPACE": "ml", "CONTEXT": "lab"}
# Keys that k9s 0.50 has in its view of pods, and in every view.
TAKEN = {f"Shift-{letter}" for letter in "ACFIJKMNORSTVXZ"}


def command(plugin: dict[str, Any]) -> list[str]:
    """Return the words of the plugin's first command, with k9s's variables filled in."""
    words = plugin["args"]
    text = words[1].partition(" 2>&1 |")[0] if plugin["command"] == "sh" else shlex.join([plugin["command"], *words])
    filled = re.sub(r"\$([A-Z]+)", lambda match: VARIABLES[match[1]], text.replace("'$CONTEXT'", "$CONTEXT"))
    return shlex.split(filled)


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_has_the_fields_of_k9s_and_a_free_key(name: str) -> None:
    plugin = PLUGINS[name]
    assert {key for key in REQUIRED if isinstance(plugin.get(key), REQUIRED[key])} == {*REQUIRED}
    assert all(isinstance(plugin[key], OPTIONAL[key]) for key in plugin.keys() - REQUIRED.keys())
    assert re.fullmatch(r"Shift-[A-Z]", plugin["shortCut"])
    assert plugin["shortCut"] not in TAKEN
    assert set(plugin["scopes"]) <= {"pods", contract.GPUNODE_PLURAL}


def test_no_view_has_a_key_twice() -> None:
    keys = [(scope, plugin["shortCut"]) for plugin in PLUGINS.values() for scope in plugin["scopes"]]
    assert len(keys) == len({*keys})


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_runs_a_command_that_exists(name: str) -> None:
    words = command(PLUGINS[name])
    assert words[:2] == ["kubectl", "gpushare"]
    assert commands.wrong(words) == ""


def test_every_key_is_on_the_page() -> None:
    text = (pages.ROOT / "docs" / "plugin.md").read_text()
    assert {f"`{plugin['shortCut']}`" for plugin in PLUGINS.values()} == set(re.findall(r"`Shift-.`", text))


def test_columns_are_printer_columns_or_fields_of_gpunodes() -> None:
    assert [*VIEWS] == [f"{contract.GROUP_NAME}/{contract.VERSION}/{contract.GPUNODE_PLURAL}"]
    printed = {"NAME", *(column["name"].upper() for column in CRD["additionalPrinterColumns"])}
    (view,) = VIEWS.values()
    assert set(view) <= {"columns", "sortColumn"}
    for column in view["columns"]:
        match = re.fullmatch(r"([A-Z]+)(?::([^|]+))?(?:\|([NTWSLRH]{1,3}))?", column)
        assert match, column
        if match[2] is None:
            assert match[1] in printed, column
        else:
            assert has_field(CRD["schema"]["openAPIV3Schema"], match[2]), column


def has_field(schema: dict[str, Any], path: str) -> bool:
    """Whether a JSONPath such as `.status.gpus[*].mode` leads to a field of the schema."""
    for name in path.removeprefix(".").split("."):
        found = schema.get("properties", {}).get(name.removesuffix("[*]"))
        if found is None:
            return False
        schema = found["items"] if name.endswith("[*]") else found
    return True


def test_a_field_that_is_missing_is_detected() -> None:
    assert has_field(CRD["schema"]["openAPIV3Schema"], ".status.gpus[*].mode")
    assert not has_field(CRD["schema"]["openAPIV3Schema"], ".status.gpus[*].speed")
