"""The built page, and a copy of it with the cluster inside, as one file that needs no server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kubectl_gpushare import plugin_errors
from kubectl_gpushare.ui import page_state
from kubectl_gpushare.ui.page_answers import PageAnswers
from kubectl_gpushare.ui.page_model import Json

_PAGE: Final = Path(__file__).with_name("page.html")
_SLOT: Final = '<script type="application/json" id="saved">null</script>'
_MAX_GPUS, _MAX_PODS = 256, 200  # described in a saved page; beyond, it names the command
_REQUESTS: Final = ("0.1", "0.25", "0.5", "0.75", "1")  # whose fit a saved page has


def page() -> str:
    """Return the built page."""
    return _PAGE.read_text(encoding="utf-8")


def policy(html: str) -> str:
    """Return the Content-Security-Policy that the page has for itself."""
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert found is not None  # noqa: S101 - ui/build.mjs writes it
    return found[1]


def with_cluster(model: Json, answers: Mapping[str, Json]) -> str:
    """Return the page with this model and these answers inside, by their address."""
    text = page_state.encoded({"model": model, "answers": answers}).decode()
    # Data in a script element ends at the first `</script`, and an HTML comment in it would hide that.
    inert = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    html = page()
    assert _SLOT in html  # noqa: S101 - ui/build.mjs writes it
    return html.replace(_SLOT, _SLOT.replace("null", inert), 1)


def answers_of(model: Json, answers: PageAnswers) -> dict[str, Json]:
    """Return the answers that a saved page has, by their address: the sentences of each pod and GPU, if few."""
    gpus = [f"{node['name']}/{gpu['index']}" for node in model["nodes"] for gpu in node["gpus"] if not gpu.get("gone")]
    waiting = [item["pod"] for item in model["queue"]["pods"]]
    held = [share["pod"] for node in model["nodes"] for gpu in node["gpus"] for share in gpu.get("shares", ())]
    asked: list[tuple[str, str, str]] = []
    if len(gpus) <= _MAX_GPUS:
        asked += [("describe", "gpu", name) for name in gpus]
        asked += [("describe", "node", node["name"]) for node in model["nodes"]]
        asked += [("describe", "pod", name) for name in [*waiting, *dict.fromkeys(held)][:_MAX_PODS]]
        asked += [("why", "", name) for name in [*waiting, *dict.fromkeys(held)][:_MAX_PODS]]
        asked += [("fit", "", request) for request in _REQUESTS]
        asked += [("defrag", "", "")] + [("defrag", "", name) for name in waiting[:20]]
    return {address(*each): answers.answer(each[0], _question(*each)) for each in asked}


def address(name: str, kind: str, what: str) -> str:
    """Return the key of an answer: that of the page's own questions."""
    return "&".join([name, *(f"{key}={value}" for key, value in sorted(_question(name, kind, what).items()))])


def _question(name: str, kind: str, what: str) -> dict[str, str]:
    match name:
        case "describe":
            return {"kind": kind, "name": what}
        case "fit":
            return {"request": what}
        case _:
            return {"pod": what} if what else {}


def write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise plugin_errors.FileError(f"{path} cannot be written: {error.strerror}") from error
