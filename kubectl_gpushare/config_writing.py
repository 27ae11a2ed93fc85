"""`config set` and `config label`: show what a change does to each node, ask, and write it.

Neither writes anything that it has not shown: the ConfigMap is patched only if it is still the version that was read,
and only the one entry or label changes. Writes have the field manager kubectl-gpushare.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import click

from gpushare import contract, errors, printable
from gpushare import node as nodes
from gpushare.config import config_choice
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import printing
from kubectl_gpushare.source import chosen_source, inputs, live_cluster
from kubectl_gpushare.views import config_sentences, configuration_change

MANAGER = "kubectl-gpushare"
_LABEL_VALUE = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LATER = "each GPU changes as soon as no pod uses it: kubectl gpushare config show"

_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask")
_dry_run = click.option("--dry-run", is_flag=True, help="Ask the API server whether it would do it, and change nothing")


@click.command("set", short_help="Write a configuration into the ConfigMap, after showing what it changes")
@click.argument("name", metavar="NAME", shell_complete=candidates.entries)
@click.option(
    "filename",
    "-f",
    "--filename",
    required=True,
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="The configuration, or a manifest of a ConfigMap with an entry NAME; - is standard input",
)
@_yes
@_dry_run
@options.connection(candidates.contexts)
def set_entry(name: str, filename: str, yes: bool, dry_run: bool, **params: Any) -> None:
    """Write a configuration into the ConfigMap, after showing what it changes.

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
    if not re.fullmatch(_LABEL_VALUE, name):
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
    labels = {nodes.name(node_object): nodes.labels(node_object) for node_object in origin.node_objects()}
    effects = configuration_change.of_entries(origin.gpu_nodes(), labels, before, after)
    _show(line for effect in effects for line in effect.lines())
    if not effects:
        printing.write_words([f"no node follows {name}, so no GPU changes"], sys.stdout)
    _warn_of_helm(config_map or {}, name)
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


@click.command("label", short_help="Have a node follow a configuration, after showing what that changes")
@click.argument("node", metavar="NODE", shell_complete=candidates.nodes)
@click.argument("name", metavar="NAME", required=False, shell_complete=candidates.entries)
@click.option("--remove", is_flag=True, help="Remove the label, so that the node follows the entry default")
@_yes
@_dry_run
@options.connection(candidates.contexts)
def label_node(node: str, name: str | None, remove: bool, yes: bool, dry_run: bool, **params: Any) -> None:
    """Have a node follow a configuration, after showing what that changes.

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
        _known(entries, name)
    key = contract.NODE_CONFIG_LABEL
    before = nodes.labels(node_object)
    after = {**before, key: name or ""}
    if before.get(key, "") == after[key]:
        printing.write_words(
            [f"node/{node} unchanged: it has {f'the label {key}={name}' if name else f'no label {key}'}"], sys.stdout
        )
        return
    gpu_nodes = origin.gpu_nodes(name=node)
    if gpu_nodes:
        _show(configuration_change.of_labels(gpu_nodes[0], after, entries).lines())
    else:
        printing.write_words(
            [f"{node} has no GPUNode: the effect on its GPUs is unknown until its agent runs"], sys.stdout
        )
    what = f"set the label {key}={name} of the node {node}" if name else f"remove the label {key} of the node {node}"
    _ask(what, "", yes=yes or dry_run)
    patch = json.dumps({"metadata": {"labels": {key: name}}})
    origin.kubectl.patch("node", node, patch, dry_run, manager=MANAGER)
    done = "labelled" if name else "unlabelled"
    printing.write_words([f"node/{node} {done}{' (dry run)' if dry_run else f'; {_LATER} {node}'}"], sys.stdout)


def _cluster(params: dict[str, Any]) -> live_cluster.LiveCluster:
    origin = chosen_source.from_options(options.collect(params))
    if not isinstance(origin, live_cluster.LiveCluster):
        raise click.UsageError("this needs a cluster: files of --from are only read")
    return origin


def _text(filename: str, name: str) -> str:
    """Return the valid configuration in a file; prints its warnings."""
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


def _known(entries: Mapping[str, str], name: str) -> None:
    try:
        config_choice.select(entries, label=name)
    except errors.ConfigError as error:
        raise plugin_errors.PluginError(f"{error}; nothing was changed") from error


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        printing.write_words([line], sys.stderr if line.lstrip().startswith("warning: ") else sys.stdout)


def _warn_of_helm(config_map: Mapping[str, Any], name: str) -> None:
    declared = ((config_map.get("metadata") or {}).get("annotations") or {}).get(contract.WRITTEN_BY_HELM, "{}")
    if f'"{name}":' in declared:
        printing.warn([f"Helm declares {name}: helm upgrade fails until config.data.{name} is the same text"])


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
        origin.kubectl.patch("configmap", name, patch, dry_run, namespace=namespace, manager=MANAGER)
        return
    metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": "gpushare"}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    query = f"fieldManager={MANAGER}{'&dryRun=All' if dry_run else ''}"
    origin.kubectl.create(f"/api/v1/namespaces/{namespace}/configmaps?{query}", json.dumps(body))
