"""`ui`: one page with a tile per GPU, served on this machine for a browser, or written to a file."""

from __future__ import annotations

import contextlib
import gc
import html
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kubectl_gpushare import candidates, options
from kubectl_gpushare.source import chosen_source, live_cluster

if TYPE_CHECKING:
    from kubectl_gpushare.ui.page_model import Json

_MAX_PORT = 65535


@click.command(short_help="Show every GPU, the queue and what fits on one page in your browser")
@click.option("--port", type=click.IntRange(0, _MAX_PORT), default=0, metavar="N", help="Port (default: a free one)")
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser")
@options.file("--export", help="Write the page to this file, with the cluster inside, and serve nothing")
@click.option(
    "--usage/--no-usage", default=None, help="Ask the agent of each node for the actual usage (default: on few nodes)"
)
@options.namespaced(candidates.namespaces, all_namespaces=False)
@options.connection(candidates.contexts)
def command(port: int, no_browser: bool, export: str | None, usage: bool | None, **params: Any) -> None:
    """Show every GPU, the queue and what fits on one page in your browser.

    Each GPU is a tile with its shares as wide as their request, the used part filled, and the largest hole labelled
    with what would fit. Next to it wait the gated pods, with the reason and the nearest miss. The page follows the
    cluster until Ctrl-C.

    The page is served on this machine alone, at an address with a secret token. -n chooses the namespace that it shows
    first, and whose pods it reads if you may not read those of all namespaces. It reads with your permissions, through
    kubectl, and changes nothing: it shows the commands to copy.

    With --export, the file has everything inside, and needs no server and no network. With --from, the page shows saved
    objects.

    \b
    Examples:
      # Open the page of the current cluster
      kubectl gpushare ui
    \b
      # On a remote machine: print the address, and reach it with `ssh -L 8123:127.0.0.1:8123`
      kubectl gpushare ui --no-browser --port 8123
    \b
      # Look at a saved cluster
      kubectl get gpunodes,nodes,pods,events -A -o yaml > cluster.yaml
      kubectl gpushare ui --from cluster.yaml
    \b
      # Send a colleague the page
      kubectl gpushare ui --export cluster.html
    """
    chosen = options.collect(params)
    origin = chosen_source.from_options(chosen)
    if usage and not isinstance(origin, live_cluster.LiveCluster):
        raise click.UsageError("--usage needs a cluster: files of --from do not tell what is used")
    from kubectl_gpushare import cli
    from kubectl_gpushare.ui import cluster_follower, page_answers, page_history, page_server, page_state, saved_page

    gc.enable()  # `__main__` has turned it off, and this may run for days
    cli.interrupt_on_any_signal()
    follower = None
    if isinstance(origin, live_cluster.LiveCluster):
        follower = cluster_follower.ClusterFollower(origin, chosen, usage)
        scene, events = follower.scene, follower.events()
    else:
        scene, events = cluster_follower.saved_scene(origin, chosen, time.time()), origin.all_events()
    points = page_history.before(scene.snapshot, events, scene.at)
    state = page_state.PageState(points, page_history.told(events or (), scene.at))
    state.publish(scene)
    answers = page_answers.PageAnswers(origin, chosen, lambda: scene if follower is None else follower.scene)
    if export:
        model: Json = state.document()
        saved_page.write(export, saved_page.with_cluster(model, saved_page.answers_of(model, answers)))
        return
    server = page_server.PageServer(state, answers, port=port)
    stopped = threading.Event()
    with contextlib.ExitStack() as at_the_end:
        at_the_end.callback(server.close)
        at_the_end.callback(state.close)
        print(
            f"The page of {scene.cluster or 'the cluster'} is at\n\n  {server.address}\n\nCtrl-C ends it.", flush=True
        )
        if not no_browser:
            _open(at_the_end.enter_context(_redirect(server.address)), server.port)
        if follower is None:
            stopped.wait()
        else:
            follower.run(state.publish, stopped)


@contextlib.contextmanager
def _redirect(address: str) -> Iterator[str]:
    """Yield the address of a file that leads to `address`: all users see a browser's command line, and so the token."""
    with tempfile.TemporaryDirectory(prefix="gpushare-ui-") as folder:
        path = Path(folder) / "open.html"
        path.touch(mode=0o600)
        leads = f'<meta http-equiv="refresh" content="0;url={html.escape(address)}">'
        path.write_text(f"<!doctype html>{leads}<title>gpushare</title>\n")
        yield path.as_uri()


def _open(address: str, port: int) -> None:
    """Open the address in a graphical browser; without one, say how to get there."""
    has_display = sys.platform in {"darwin", "win32"} or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if has_display:
        import webbrowser

        if webbrowser.open(address):
            return
    print(
        "No browser could be opened here: open the address in one; from another machine, first run "
        f"`ssh -L {port}:127.0.0.1:{port}` with the name of this one.",
        file=sys.stderr,
        flush=True,
    )
