"""`config`: shows what a node's configuration means and changes, and which one a node follows.

`set` and `label` write only what they have shown: the ConfigMap is patched only if it is still the version that was
read, and only the one entry or label changes. Writes have the field manager kubectl-gpushare.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import click

from gpushare import contract, errors, printable
from gpushare import node as node_json
from gpushare.config import config_choice
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import printing, terminal
from kubectl_gpushare.source import chosen_source, inputs, live_cluster
from kubectl_gpushare.views import config_sentences, configuration_change


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


_MANAGER = "kubectl-gpushare"
_LATER = "each GPU changes as soon as no pod uses it: kubectl gpushare config show"

_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask")
_dry_run = click.option("--dry-run", is_flag=True, help="Let the API server check the change, without making it")


@command.command("set", short_help="Write a configuration into the ConfigMap, after showing the changes")
@click.argument("name", metavar="NAME", shell_complete=candidates.entries)
@options.file(
    "-f",
    "--filename",
    required=True,
    help="The configuration, or a manifest of a ConfigMap with an entry NAME; - is standard input",
)
@_yes
@_dry_run
@options.connection(candidates.contexts)
def set_entry(name: str, filename: str, yes: bool, dry_run: bool, **params: Any) -> None:
    """Write a configuration into the ConfigMap, after showing the changes.

    NAME is the entry that nodes choose by their label; nodes without a label follow the entry default. Prints how the
    GPUs of each node that follows the entry will change, and asks for confirmation. GPUs change while they are unused,
    one by one. An invalid configuration is refused. Needs permission to get, create and patch the ConfigMap and to list
    Nodes.

    \b
    Examples:
      # A configuration for nodes whose GPUs are partitioned with MIG
      kubectl gpushare config set mig -f node.yaml
    \b
      # Change what nodes without a label follow, without asking
      kubectl gpushare config set default -f node.yaml --yes
    \b
      # Only show what it would change
      kubectl gpushare config set default -f node.yaml --dry-run
    """
    origin = _cluster(params)
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", name):
        raise click.UsageError(f'NAME "{name}" cannot be the value of a label, by which nodes choose it')
    text = _text(filename, name)
    location, config_map = origin.config_map()
    before = dict((config_map or {}).get("data") or {})
    if before.get(name) == text:
        printing.write_words([f"configmap/{location[1]} unchanged: {name} is that already"], sys.stdout)
        return
    after = {**before, name: text}
    if not before:
        # The only entry would be followed by all nodes without a label.
        after = {config_choice.BUILT_IN.name: config_choice.BUILT_IN.text, **after}
    labels = {node_json.name(node_object): node_json.labels(node_object) for node_object in origin.node_objects()}
    effects = configuration_change.of_entries(origin.gpu_nodes(), labels, before, after)
    _show(line for effect in effects for line in effect.lines)
    if not effects:
        printing.write_words([f"no node follows {name}, so no GPU changes"], sys.stdout)
    declared = (((config_map or {}).get("metadata") or {}).get("annotations") or {}).get(contract.WRITTEN_BY_HELM, "")
    if f'"{name}":' in declared:
        printing.warn([f"Helm declares {name}: helm upgrade fails until config.data.{name} is the same text"])
    _ask(f"write the entry {name} of the ConfigMap {'/'.join(location)}", filename, yes=yes or dry_run)
    _write(origin, location, config_map, {key: after[key] for key in after if after[key] != before.get(key)}, dry_run)
    if any(not effect.problem for effect in effects):
        then = _LATER
    elif effects:
        then = "nodes that follow it stay as they are: kubectl gpushare config show"
    else:
        then = f"a node follows it once it is labelled: kubectl gpushare config label NODE {name}"
    done = "created" if name not in before else "changed"
    ending = " (dry run)" if dry_run else f"; {then}"
    printing.write_words([f"configmap/{location[1]}: entry {name} {done}{ending}"], sys.stdout)


@command.command("label", short_help="Make a node follow a configuration, after showing the changes")
@click.argument("node", metavar="NODE", shell_complete=candidates.nodes)
@click.argument("name", metavar="NAME", required=False, shell_complete=candidates.entries)
@click.option("--remove", is_flag=True, help="Remove the label, so that the node follows the entry default")
@_yes
@_dry_run
@options.connection(candidates.contexts)
def label_node(node: str, name: str | None, remove: bool, yes: bool, dry_run: bool, **params: Any) -> None:
    """Make a node follow a configuration, after showing the changes.

    Prints how the node's GPUs will change and which pods they wait for, asks for confirmation, and sets the node's
    label gpushare.io/config. Needs permission to get and patch Nodes.

    \b
    Examples:
      # Partition the GPUs of a node as the entry mig says
      kubectl gpushare config label gpu-1 mig
    \b
      # Have the node follow the entry default again
      kubectl gpushare config label gpu-1 --remove
    """
    origin = _cluster(params)
    if bool(name) is remove:
        raise click.UsageError("give the NAME of a configuration, or --remove")
    node_object = origin.node_object(node)
    if node_object is None:
        raise plugin_errors.KubectlNotFound(f'nodes "{node}" not found')
    entries = origin.configurations()
    if name and name not in config_choice.BUILT_INS:
        try:
            config_choice.select(entries, label=name)
        except errors.ConfigError as error:
            raise plugin_errors.PluginError(f"{error}; nothing was changed") from error
    key = contract.NODE_CONFIG_LABEL
    before = node_json.labels(node_object)
    after = {**before, key: name or ""}
    if before.get(key, "") == after[key]:
        has = f"the label {key}={name}" if name else f"no label {key}"
        printing.write_words([f"node/{node} unchanged: it has {has}"], sys.stdout)
        return
    if gpu_nodes := origin.gpu_nodes(name=node):
        _show(configuration_change.of_labels(gpu_nodes[0], after, entries).lines)
    else:
        _show([f"{node} has no GPUNode: the effect on its GPUs is unknown until its agent runs"])
    what = f"set the label {key}={name} of the node {node}" if name else f"remove the label {key} of the node {node}"
    _ask(what, "", yes=yes or dry_run)
    patch = json.dumps({"metadata": {"labels": {key: name}}})
    origin.kubectl.patch("node", node, patch, dry_run, manager=_MANAGER)
    done = "labelled" if name else "unlabelled"
    printing.write_words([f"node/{node} {done}{' (dry run)' if dry_run else f'; {_LATER} {node}'}"], sys.stdout)


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
    refused = 0
    for file in files:
        text = inputs.text(file)
        for checked in config_sentences.checked(file, text, strict=strict_compatibility, is_for_known_gpus=True):
            printing.write_words([f"warning: {checked.name}: {warning}" for warning in checked.warnings], sys.stderr)
            if checked.problem:
                printing.write_words([f"error: {checked.name}: {checked.problem}"], sys.stderr)
                refused += 1
            elif checked.summary:
                printing.write_words([f"{checked.name}: {checked.summary}"], sys.stdout)
    return min(refused, 1)


@command.command("diff", short_help="Say what a configuration would change on a node")
@click.option("--node", required=True, metavar="NODE", help="The node", shell_complete=candidates.nodes)
@options.file(
    "-f", "--filename", required=True, help="The configuration, or a manifest of the ConfigMap; - is standard input"
)
@click.option("--entry", default="default", metavar="NAME", help="Entry of the ConfigMap (default: default)")
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
    nodes = chosen_source.from_options(options.collect(params)).gpu_nodes(name=node)
    if not nodes:
        raise plugin_errors.KubectlNotFound(f'gpunodes.{contract.GROUP_NAME} "{node}" not found')
    try:
        text = configuration_change.text_of(inputs.text(filename), entry)
        for line in configuration_change.lines(nodes[0], text, strict=strict_compatibility):
            printing.write_words([line], sys.stderr if line.startswith("warning: ") else sys.stdout)
    except errors.ConfigError as error:
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
    from kubectl_gpushare.output import layout
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
        labels = None if node_object is None else node_json.labels(node_object)
        state = view.for_node(node, labels, entries)
        text = state.in_force.text if state.in_force is not None else None
        page = view.page(state, unread)
    elif entries is not None and name in (known := view.with_built_ins(entries)):
        text, page = known[name], view.entry_page(name, known[name], nodes)
    else:
        has = f": it has {', '.join(sorted(entries))}" if entries else f" ({'; '.join(notes)})" if notes else ""
        raise plugin_errors.KubectlNotFound(f'no GPUNode "{name}", and no such entry of the ConfigMap{has}')
    if chosen.output not in printing.DOCUMENTS:
        printing.write_lines(layout.page_lines(page, place), sys.stdout)
        return
    if text is None:
        why = "; ".join(notes) or "its agent does not follow the ConfigMap as that is now"
        raise plugin_errors.PluginError(f"the text of the configuration that is in force on {name} is unknown: {why}")
    try:
        printing.write_document(view.effective(text), chosen)
    except errors.ConfigError as error:
        raise plugin_errors.PluginError(f"{name}: {error}") from error


def _cluster(params: dict[str, Any]) -> live_cluster.LiveCluster:
    origin = chosen_source.from_options(options.collect(params))
    if not isinstance(origin, live_cluster.LiveCluster):
        raise click.UsageError("this needs a cluster: files of --from are only read")
    return origin


def _text(filename: str, name: str) -> str:
    try:
        text = configuration_change.text_of(inputs.text(filename), name)
    except errors.ConfigError as error:
        raise plugin_errors.PluginError(f"{filename}: {error}") from error
    (checked,) = config_sentences.checked(name, text)
    printing.write_words([f"warning: {name}: {warning}" for warning in checked.warnings], sys.stderr)
    if checked.problem:
        raise plugin_errors.PluginError(f"{filename}: {checked.problem}; nothing was changed")
    printing.write_words([f"{name}: {checked.summary}"], sys.stdout)
    return text


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        printing.write_words([line], sys.stderr if line.lstrip().startswith("warning: ") else sys.stdout)


def _ask(what: str, filename: str, *, yes: bool) -> None:
    if yes:
        return
    if filename == "-" or not sys.stdin.isatty():
        raise plugin_errors.PluginError(f"nothing was changed: add --yes to {what}, as there is no terminal to ask on")
    if not click.confirm(printable.replaced(f"{what[0].upper()}{what[1:]}?"), err=True):
        raise plugin_errors.PluginError("nothing was changed")


def _write(
    origin: live_cluster.LiveCluster,
    location: tuple[str, str],
    config_map: Mapping[str, Any] | None,
    data: Mapping[str, str],
    dry_run: bool,
) -> None:
    namespace, name = location
    if config_map is not None:
        version = config_map["metadata"]["resourceVersion"]  # what was shown
        patch = json.dumps({"metadata": {"resourceVersion": version}, "data": data})
        origin.kubectl.patch("configmap", name, patch, dry_run, namespace=namespace, manager=_MANAGER)
        return
    metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": "gpushare"}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    query = f"fieldManager={_MANAGER}{'&dryRun=All' if dry_run else ''}"
    origin.kubectl.create(f"/api/v1/namespaces/{namespace}/configmaps?{query}", json.dumps(body))
