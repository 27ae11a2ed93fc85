"""`top`: what is allocated on each GPU or node, what is free, what still fits."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from gpushare import contract
from gpushare.gpunode import GpuNode
from kubectl_gpushare import candidates, cluster, colour, errors, live, options, output, screen, snapshot, terminal
from kubectl_gpushare.views import gpus, nodes, problems

SETTLE_SECONDS = 0.2  # changes that come together are shown together
_LOOK_SECONDS = 0.5  # how often a change of the terminal's size is looked for, and the longest that news is held back
_NO_NODES = (
    "No node has reported GPUs: does the agent run on the GPU nodes? "
    f"Look with `kubectl -n {contract.SYSTEM_NAMESPACE} get pods -o wide`."
)
_BETWEEN = {"yaml": "---"}  # what separates one print from the next in a pipe

KINDS = {"gpus": "gpus", "gpu": "gpus", "nodes": "nodes", "node": "nodes", "no": "nodes"}
_SORT_KEYS = tuple(dict.fromkeys((*gpus.SORT_KEYS, *nodes.SORT_KEYS)))


@click.command(short_help="Show what is allocated and what is free, a line per GPU or node")
@click.argument("arguments", nargs=-1, metavar="[gpus|nodes] [NAME...]", shell_complete=candidates.top)
@options.listed(_SORT_KEYS)
@options.printed(output.FORMATS)
@options.selector
@options.connection(candidates.contexts)
def command(arguments: tuple[str, ...], **given: Any) -> None:
    """Show what is allocated and what is free, a line per GPU or node.

    COMPUTE and MEMORY are allocated/total. FREE is the free part in GPUs, LARGEST the largest single share that still
    fits (compute+memory), FRAG the part of what is free that the typical request cannot use.

    \b
    Examples:
      # All GPUs of the cluster
      kubectl gpushare top
    \b
      # The GPUs of two nodes, with their UUIDs and places
      kubectl gpushare top gpus gpu-1 gpu-2 -o wide
    \b
      # A line per node, the most fragmented first, as it changes
      kubectl gpushare top nodes --sort-by frag -w
    \b
      # From saved objects, without a cluster
      kubectl get gpunodes -o yaml > nodes.yaml
      kubectl gpushare top --from nodes.yaml
    """
    chosen = options.collect(given)
    kind, names = _parse(arguments)
    if chosen.sort_by and chosen.sort_by not in _VIEWS[kind][1]:
        raise click.UsageError(f'{kind} have no column "{chosen.sort_by}" to sort by')
    origin = snapshot.source(chosen)
    if chosen.watch:
        if not isinstance(origin, cluster.Cluster):
            raise click.UsageError("--watch needs a cluster: files of --from do not change")
        _follow(origin, kind, names, chosen)
        return
    found = origin.gpu_nodes(label_selector=chosen.selector)
    wanted, missing = _named(found, names)
    if wanted or not missing:
        listing = _listing(kind, wanted, names, chosen)
        output.show(listing, chosen)
        if not found and not chosen.selector:
            print(_NO_NODES, file=sys.stderr)
        output.warn(listing.problems())
    if missing:
        raise errors.NotFound("; ".join(f'no node or GPU "{name}"' for name in missing))


def _parse(arguments: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    if not arguments:
        return "gpus", ()
    kind = KINDS.get(arguments[0].lower())
    if kind is None:
        raise click.UsageError(f'unknown type "{arguments[0]}": write gpus or nodes')
    if kind == "nodes" and any("/" in name for name in arguments[1:]):
        raise click.UsageError("a node's name has no slash: write `top gpus NODE/INDEX` for one GPU")
    return kind, tuple(arguments[1:])


def _named(found: Sequence[GpuNode], names: Sequence[str]) -> tuple[list[GpuNode], list[str]]:
    """The nodes that are named, themselves or by one of their GPUs, and the names nothing has."""
    if not names:
        return list(found), []
    known = {node.name for node in found} | {f"{node.name}/{gpu.index}" for node in found for gpu in node.gpus}
    wanted = {name.partition("/")[0] for name in names if name in known}
    return [node for node in found if node.name in wanted], [name for name in names if name not in known]


def _gpus(found: Sequence[GpuNode], names: Sequence[str], sort_by: str) -> output.Listing:
    cards = [card for card in gpus.of(found, sort_by) if not names or card.node in names or card.name in names]
    return output.Listing(
        lambda: gpus.table(cards),
        lambda: gpus.document(cards),
        lambda: map(gpus.name, cards),
        lambda: problems.of(found, cards),
    )


def _nodes(found: Sequence[GpuNode], _names: Sequence[str], sort_by: str) -> output.Listing:
    rows = nodes.of(found, sort_by)
    return output.Listing(
        lambda: nodes.table(rows),
        lambda: nodes.document(rows),
        lambda: map(nodes.name, rows),
        lambda: problems.of(found, (card for row in rows for card in row.cards)),
    )


_VIEWS: dict[str, tuple[Callable[[Sequence[GpuNode], Sequence[str], str], output.Listing], Any]] = {
    "gpus": (_gpus, gpus.SORT_KEYS),
    "nodes": (_nodes, nodes.SORT_KEYS),
}


def _listing(kind: str, found: Sequence[GpuNode], names: Sequence[str], chosen: options.Options) -> output.Listing:
    return _VIEWS[kind][0](found, names, chosen.sort_by)


def _follow(origin: cluster.Cluster, kind: str, names: Sequence[str], chosen: options.Options) -> None:
    gc.enable()  # this one may run for days
    # Ended like this too, the terminal is given back, and kubectl does not go on alone.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, signal.default_int_handler)
    feed = live.Feed(origin, label_selector=chosen.selector)
    try:
        if sys.stdout.isatty() and chosen.output in {"", "table", "wide"}:
            with screen.opened(sys.stdout) as page:
                _redraw(feed, page, kind, names, chosen)
        else:
            _reprint(feed, kind, names, chosen)
    finally:
        feed.close()


def _redraw(feed: live.Feed, page: screen.Screen, kind: str, names: Sequence[str], chosen: options.Options) -> None:
    size = None
    changed = True
    while not page.quit_pressed():
        place = terminal.of(sys.stdout, color=chosen.color)
        if changed or place != size:
            size = place
            wanted, _ = _named(feed.nodes, names)
            listing = _listing(kind, wanted, names, chosen)
            sentences = [*([feed.trouble] if feed.trouble else []), *listing.problems()]
            warnings = [
                colour.paint(line, "warn", on=place.colours)
                for sentence in sentences
                for line in terminal.wrapped(f"warning: {sentence}", place)
            ]
            page.draw([*warnings, *output.lines(listing.table(), place, chosen)], place.rows)
        changed = _settled(feed, (page.keys,) if page.keys is not None else ())


def _reprint(feed: live.Feed, kind: str, names: Sequence[str], chosen: options.Options) -> None:
    told = ""
    while True:
        wanted, _ = _named(feed.nodes, names)
        output.show(_listing(kind, wanted, names, chosen), chosen)
        while not _settled(feed, ()) or feed.trouble:
            if feed.trouble != told:
                output.warn([feed.trouble])
            told = feed.trouble
        told = ""
        print(_BETWEEN.get(chosen.output, ""), flush=True)


def _settled(feed: live.Feed, also: tuple[int, ...]) -> bool:
    """Waits a little for a change, and for those that come right after it."""
    changed = feed.wait(_LOOK_SECONDS, also=also)
    until = time.monotonic() + _LOOK_SECONDS
    while changed and time.monotonic() < until and feed.wait(SETTLE_SECONDS, also=also):
        pass
    return changed
