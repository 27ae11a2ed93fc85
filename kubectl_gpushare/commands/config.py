"""`config`: shows what a node's configuration means and changes, and which one a node follows."""

from __future__ import annotations

import functools
import sys
from typing import Any

import click

from gpushare import contract
from gpushare import errors as domain
from gpushare import node as node_objects
from kubectl_gpushare import candidates, config_writing, options, plugin_errors
from kubectl_gpushare.source import chosen_source, inputs


@click.group(short_help="Check node configurations, and change which one a node follows")
def command() -> None:
    """Check node configurations, and change which one a node follows.

    \b
    Examples:
      # Check a file, or a manifest with the ConfigMap
      kubectl gpushare config validate node.yaml
    \b
      # The configuration of each node, and what it waits for
      kubectl gpushare config show
    \b
      # Write a configuration, and have a node follow it
      kubectl gpushare config set mig -f node.yaml
      kubectl gpushare config label gpu-1 mig
    """


command.add_command(config_writing.set_entry)
command.add_command(config_writing.label_node)


@command.command("validate", short_help="Check configuration files, or the entries of a ConfigMap")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(allow_dash=True))
@click.option(
    "--strict-compatibility",
    is_flag=True,
    help="Check for an agent with --strict-compatibility, which ignores names and lists of devices",
)
def validate(files: tuple[str, ...], strict_compatibility: bool) -> int:
    """Check configuration files, or the entries of a ConfigMap.

    A FILE is a configuration of NVIDIA's device plugin, or a manifest with ConfigMaps of such files; - reads standard
    input. It prints what each configuration does with which devices, with warnings for entries without effect. A
    configuration that an agent would reject is an error, and the exit code is 1. Facts that depend on a node's GPUs are
    unknown here.

    \b
    Examples:
      # A file
      kubectl gpushare config validate node.yaml
    \b
      # All entries of the ConfigMap in the cluster
      kubectl -n gpushare-system get configmap gpushare-config -o yaml | kubectl gpushare config validate -
    """
    from kubectl_gpushare.output import printing
    from kubectl_gpushare.views import config_sentences

    refused = 0
    for file in files:
        for checked in config_sentences.checked(
            file, inputs.text(file), strict=strict_compatibility, is_for_known_gpus=True
        ):
            for warning in checked.warnings:
                printing.write_words([f"warning: {checked.name}: {warning}"], sys.stderr)
            if checked.problem:
                printing.write_words([f"error: {checked.name}: {checked.problem}"], sys.stderr)
                refused += 1
            elif checked.summary:
                printing.write_words([f"{checked.name}: {checked.summary}"], sys.stdout)
    return min(refused, 1)


@command.command("diff", short_help="Say what a configuration would change on a node")
@click.option("node", "--node", required=True, metavar="NODE", help="The node", shell_complete=candidates.nodes)
@click.option(
    "filename",
    "-f",
    "--filename",
    required=True,
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="The configuration, or a manifest of the ConfigMap; - is standard input",
)
@click.option("entry", "--entry", default="default", metavar="NAME", help="Entry of the ConfigMap (default: default)")
@click.option("--strict-compatibility", is_flag=True, help="Compare for an agent with --strict-compatibility")
@options.connection(candidates.contexts)
def diff(node: str, filename: str, entry: str, strict_compatibility: bool, **params: Any) -> None:
    """Say what a configuration would change on a node, GPU by GPU, and which shares are in the way.

    Compares with the node's GPUNode, which has the modes of its GPUs and their MIG devices. Changes nothing.

    \b
    Examples:
      # What a file would change
      kubectl gpushare config diff --node gpu-1 -f node.yaml
    \b
      # What an entry of the ConfigMap would change
      kubectl gpushare config diff --node gpu-1 -f configmap.yaml --entry mps
    """
    from kubectl_gpushare.output import printing
    from kubectl_gpushare.views import configuration_change

    nodes = chosen_source.from_options(options.collect(params)).gpu_nodes(name=node)
    if not nodes:
        raise plugin_errors.KubectlNotFound(f'gpunodes.{contract.GROUP_NAME} "{node}" not found')
    try:
        text = configuration_change.text_of(inputs.text(filename), entry)
        for line in configuration_change.lines(nodes[0], text, strict=strict_compatibility):
            printing.write_words([line], sys.stderr if line.startswith("warning: ") else sys.stdout)
    except domain.ConfigError as error:
        raise plugin_errors.PluginError(f"{filename}: {error}") from error


@command.command("show", short_help="Show which configuration is in force on each node, and what it waits for")
@click.argument("name", required=False, metavar="[NODE|NAME]", shell_complete=candidates.configurations)
@options.printed(("table", "json", "yaml"))
@options.connection(candidates.contexts)
def show(name: str | None, **params: Any) -> None:
    """Show which configuration is in force on each node, and what it waits for.

    Without a name, prints a line for each node and each entry of the ConfigMap. For a NODE: the active configuration,
    the requested one and its origin, and GPU by GPU the pending changes and the pods in the way. For the NAME of an
    entry: its effect, and the nodes that follow it. With a name, -o yaml and -o json print the configuration with all
    defaults filled in, as a file for `config diff` and for agents; flags of the agent override it.

    \b
    Examples:
      # All nodes and all configurations
      kubectl gpushare config show
    \b
      # The active and the requested configuration of a node
      kubectl gpushare config show gpu-1
    \b
      # The complete configuration, with all defaults
      kubectl gpushare config show gpu-1 -o yaml
    """
    from kubectl_gpushare.output import page_layout, printing, terminal
    from kubectl_gpushare.views import configuration_state as view

    chosen = options.collect(params)
    origin = chosen_source.from_options(chosen)
    nodes = origin.gpu_nodes()
    notes: list[str] = []
    entries = chosen_source.read(
        origin.configurations, chosen_source.CONFIGURATIONS, notes, unsaved=chosen_source.NO_CONFIG_MAP
    )
    place = terminal.detect(sys.stdout, color=chosen.color)
    if name is None:
        states = [view.for_node(node, None, entries) for node in nodes]
        if chosen.output in printing.DOCUMENTS:
            printing.write_document(view.document(states, entries), chosen)
        else:
            if not nodes:
                print("No nodes found.", file=sys.stderr)
            tables = [view.table(states)] if nodes else []
            tables += [view.entries_table(entries, nodes)] if entries is not None else []
            lines = [["", *printing.lines(table, place, chosen)] for table in tables]
            printing.write_lines([line for block in lines for line in block][1:], sys.stdout)
        printing.warn(notes)
        return
    node = next((node for node in nodes if node.name == name), None)
    if node is not None:
        node_object = chosen_source.read(
            functools.partial(origin.node_object, name),
            f"the labels of the node {name}",
            (unread := list(notes)),
            unsaved="there is no such Node object",
        )
        labels = None if node_object is None else node_objects.labels(node_object)
        state = view.for_node(node, labels, entries)
        text = state.in_force.text if state.in_force is not None else None
        page = view.page(state, unread)
    elif entries is not None and name in (known := view.with_built_ins(entries)):
        text, page = known[name], view.entry_page(name, known[name], nodes)
    else:
        has = f": it has {', '.join(sorted(entries))}" if entries else f" ({'; '.join(notes)})" if notes else ""
        raise plugin_errors.KubectlNotFound(f'no GPUNode "{name}", and no such entry of the ConfigMap{has}')
    if chosen.output not in printing.DOCUMENTS:
        printing.write_lines(page_layout.lines(page, place), sys.stdout)
        return
    if text is None:
        why = "; ".join(notes) or "its agent does not follow the ConfigMap as that is now"
        raise plugin_errors.PluginError(f"the text of the configuration that is in force on {name} is unknown: {why}")
    try:
        printing.write_document(view.effective(text), chosen)
    except domain.ConfigError as error:
        raise plugin_errors.PluginError(f"{name}: {error}") from error
