"""`migrate`: manifests in another sharer's syntax, rewritten for gpushare and shown as a diff."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from gpushare import pod, printable
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.options import Options
from kubectl_gpushare.output import printing, terminal
from kubectl_gpushare.planning import migration
from kubectl_gpushare.planning.migration import Json, Migrated
from kubectl_gpushare.source import inputs, live_cluster

NO_EQUIVALENT = 2  # exit code


@click.command(short_help="Rewrite requests of HAMi, KAI and other sharers in gpushare's syntax")
@options.file(
    "filenames",
    "-f",
    "--filename",
    multiple=True,
    help="Manifests in JSON or YAML: a file, a directory, or -; may be repeated",
)
@options.printed(("json", "yaml"))
@options.namespaced(candidates.namespaces, all_namespaces=False)
@options.connection(candidates.contexts)
def command(filenames: tuple[str, ...], **params: Any) -> int:
    """Rewrite requests of HAMi, KAI and other sharers in gpushare's syntax.

    Prints a diff of the manifests, and changes nothing. Pod templates are found in every kind of object, and SharePods
    become pods. With -n it reads the workloads of a namespace, and its pods without an owner. -o yaml prints the new
    manifests; of files all, of a namespace only those that change. Requests without an equivalent are named on standard
    error. The exit code is then 2, and 1 for any error.

    \b
    Examples:
      # What would change in these manifests?
      kubectl gpushare migrate -f deployment.yaml
    \b
      # Rewrite them
      kubectl gpushare migrate -f deployment.yaml -o yaml > migrated.yaml
    \b
      # The workloads of a namespace
      kubectl gpushare migrate -n team-a
    """
    chosen = options.collect(params)
    paths = (*filenames, *chosen.files)
    if bool(paths) is bool(chosen.namespace):
        raise click.UsageError("specify what to migrate: either -f FILE, or -n NAMESPACE for what runs there")
    if paths.count("-") > 1:
        raise click.UsageError("standard input can be read only once")
    running = [] if paths else [*live_cluster.LiveCluster(chosen.kubectl()).with_pod_templates(chosen.namespace)]
    documents = [*_in_files(paths)] or [migration.as_applied(item) for item in running if pod.controller(item) is None]
    unread = migration.unread_owners(running)
    migrated = [(document, migration.migrate(document)) for document in documents]
    found = [each for _, each in migrated if each is not None]
    if chosen.output:
        kept = [each.after if each else document for document, each in migrated if each or paths]
        _write(kept, chosen)
    else:
        _show(found, chosen)
    printing.warn(f"{each.name}: {note}" for each in found for note in each.notes)
    printing.warn(f"{name} is of a kind that is not read here: rewrite its manifest with -f" for name in unread)
    if not found and not unread:
        printing.write_words(["nothing to migrate: no pod asks for a GPU in another sharer's syntax"], sys.stderr)
    refused = [f"{each.name} stays as it is: {sentence}" for each in found for sentence in each.refused]
    printing.warn(refused)
    return NO_EQUIVALENT if refused else 0


def _in_files(paths: Sequence[str]) -> Iterator[Json]:
    for path in paths:
        for file in inputs.manifest_files(path):
            for document in inputs.documents(inputs.text(file), inputs.name(file)):
                for item in migration.listed(document):
                    for template in migration.templates(item):
                        if wrong := inputs.not_text(template):
                            raise plugin_errors.FileError(
                                f"{inputs.name(file)} has in {migration.name_of(item)} a pod that is invalid: {wrong}"
                            )
                    yield item


def _show(found: Sequence[Migrated], chosen: Options) -> None:
    place = terminal.detect(sys.stdout, color=chosen.color)
    styles = {"+": "good", "-": "bad", "@": "dim"}
    for each in found:
        before, after = ("".join(printing.yaml_parts(side)).splitlines() for side in (each.before, each.after))
        old, new = (printable.replaced(migration.name_of(side)) for side in (each.before, each.after))
        lines = difflib.unified_diff(before, after, old, new, lineterm="")
        printing.write_lines(
            (terminal.paint(line, styles.get(line[:1], ""), on=place.colours) for line in lines), sys.stdout
        )


def _write(documents: Sequence[Mapping[str, Any]], chosen: Options) -> None:
    if chosen.output == "json":
        printing.write_json({"apiVersion": "v1", "kind": "List", "items": documents}, sys.stdout)
        return
    for position, document in enumerate(documents):
        printing.write_lines(["---"] if position else [], sys.stdout)
        printing.write_yaml(document, sys.stdout)
