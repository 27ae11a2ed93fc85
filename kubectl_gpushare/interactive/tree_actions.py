"""The actions behind the keys of `top -i`: each calls the functions of a verb, and prints its sentences.

An action is a command of the plugin, whose last flags may be edited. It is planned first, and done when confirmed.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final

import click
from click.core import ParameterSource

from gpushare import pod, printable, quantity, resizing
from kubectl_gpushare import cli, cordoning, options, plugin_errors
from kubectl_gpushare.commands import describe, resize, why
from kubectl_gpushare.output.values import Page, section
from kubectl_gpushare.source import chosen_source, live_cluster
from kubectl_gpushare.views import resize as resize_view
from kubectl_gpushare.views.gpu_summary import GpuSummary
from kubectl_gpushare.views.gpu_tree import HeldShare, TreeRow
from kubectl_gpushare.views.node_table import NodeRow

Params = Mapping[str, Any]
_OFF: Final = "{verb} is off: files of --from are only read"


@dataclasses.dataclass(frozen=True, slots=True)
class PageRequest:
    """A page to show: the command that prints it, and a function that makes it."""

    command: str
    make: Callable[[], Page]


@dataclasses.dataclass(frozen=True, slots=True)
class TreeAction:
    """A change: its command, the flags as first proposed, and the parameters that may be written."""

    words: tuple[str, ...]  # of the command, from the verb on
    flags: str
    allowed: frozenset[str]
    plan: Callable[[Params], Page]
    do: Callable[[Params], list[str]]  # returns what was done
    plans_at_once: bool = False

    def params(self, flags: str) -> Params:
        """Return the command's parameters. Raises `PluginError`."""
        verb, *words = self.words
        command = cli.group.get_command(click.Context(cli.group), verb)
        assert isinstance(command, click.Command)  # noqa: S101 - it is in the table of verbs
        try:
            context = command.make_context(verb, [*words, *shlex.split(flags)])
        except click.ClickException as error:
            raise plugin_errors.PluginError(cli.sentence_of(error)) from error
        except (ValueError, click.exceptions.Exit) as error:  # an open quotation mark; --help
            raise plugin_errors.PluginError(f"{flags} cannot be read: {error}") from error
        written = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
        if written - self.allowed - {"name", "arguments", "namespace"}:
            known = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(self.allowed))
            raise plugin_errors.PluginError(f"only these flags can be used here: {known}")
        return context.params


@dataclasses.dataclass(frozen=True, slots=True)
class TreeActions:
    """Makes pages and actions for a row. `chosen`: the flags of the command line."""

    origin: chosen_source.Source
    chosen: options.Options

    def why(self, row: TreeRow) -> PageRequest:
        kind, name = row.subject
        if kind != "pod":
            raise plugin_errors.PluginError("why explains a pod: select one")
        return PageRequest(
            self.typed("why", *_pod_words(name)), lambda: why.explained(self._source(), self.chosen, f"pod/{name}")[0]()
        )

    def describe(self, row: TreeRow) -> PageRequest:
        kind, name = row.subject
        if not kind:
            raise plugin_errors.PluginError("select a node, a GPU or a pod to describe it")
        words = (kind, *_pod_words(name)) if kind == "pod" else (kind, name)
        meant = f"pod/{name}" if kind == "pod" else name

        def make() -> Page:
            described = describe.FINDERS[kind](self._source(), meant, self.chosen)
            return next(iter(described))[0]()

        return PageRequest(self.typed("describe", *words), make)

    def cordon(self, row: TreeRow) -> TreeAction:
        """Return the cordon of a GPU or of a node's GPUs; the uncordon if all of them are cordoned."""
        kind, name = row.subject
        match row.item:
            case NodeRow():
                gpus = [gpu for gpu in row.item.gpus if not gpu.gone]
            case GpuSummary():
                gpus = [row.item] if not row.item.gone else []
            case _:
                raise plugin_errors.PluginError("cordon is for a node or a GPU: select one")
        is_cordoned = bool(gpus) and all(gpu.gpu.cordoned for gpu in gpus)
        verb = "uncordon" if is_cordoned else "cordon"
        origin = self._cluster(verb)

        def change(params: Params, *, dry_run: bool) -> list[str]:
            return list(
                cordoning.change(
                    origin,
                    [name],
                    is_node=kind == "node",
                    cordoned=not is_cordoned,
                    reason=params.get("reason"),
                    dry_run=dry_run,
                )
            )

        return TreeAction(
            (verb, kind, name),
            "" if is_cordoned else '--reason ""',
            frozenset() if is_cordoned else frozenset({"reason"}),
            lambda params: section("The API server would accept this", change(params, dry_run=True)),
            lambda params: change(params, dry_run=False),
            plans_at_once=True,
        )

    def resize(self, row: TreeRow) -> TreeAction:
        """Return the resize of the selected share, with its amounts of now to be edited."""
        if not isinstance(row.item, HeldShare):
            raise plugin_errors.PluginError("resize changes what a pod holds of a GPU: select a pod below a GPU")
        origin = self._cluster("resize")
        entry, uuid = row.item.entry, row.item.gpu.gpu.uuid
        share = next(share for share in entry.shares if uuid in share.gpu_uuids)
        flags = [f"--request {quantity.format_compute(share.request_percent)}"]
        flags += [f"--limit {quantity.format_compute(share.limit_percent)}"]
        flags += [f"--memory {quantity.format_exactly(share.memory_bytes)}"]
        if share.memory_limit_bytes:
            flags += [f"--memory-limit {quantity.format_exactly(share.memory_limit_bytes)}"]
        if len(entry.shares) > 1:
            flags.insert(0, f"--container {printable.replaced(shlex.quote(share.containers[0]))}")
        name = row.subject[1]

        def planned(params: Params, notes: list[str]) -> tuple[pod.PodJson, resize_view.ResizePlan]:
            given = [params[key] for key in ("request", "limit", "memory", "memory_limit")]
            asked = resize.amounts(*given)
            manifest = chosen_source.pod_named(origin, self.chosen, f"pod/{name}")
            return manifest, resize.planned(origin, manifest, asked, params["container"] or "", notes)

        def plan(params: Params) -> Page:
            notes: list[str] = []
            manifest, plan = planned(params, notes)
            also = [*filter(None, [resize_view.beside(plan)]), *notes]
            return (*resize_view.page(manifest, plan), *section("Warnings", also, "warn"))

        def do(params: Params) -> list[str]:
            manifest, plan = planned(params, [])
            if plan.cause is resizing.ResizeCause.ROOM and not params["keep"]:
                return [f"nothing was changed: {plan.waits_for}; --keep requests it anyway"]
            resize.annotate(manifest, plan.changes, origin, dry_run=False)
            return [f"pod/{pod.namespaced_name(manifest)[1]} asks for {resizing.amounts(plan.desired)}"]

        allowed = frozenset({"request", "limit", "memory", "memory_limit", "container", "keep"})
        return TreeAction(("resize", *_pod_words(name)), " ".join(flags), allowed, plan, do)

    def typed(self, *words: str) -> str:
        """Return the same command as a command line."""
        files = [word for path in self.chosen.files for word in ("--from", path)]
        return shlex.join(["kubectl", "gpushare", *words, *files, *self.chosen.connection])

    def _cluster(self, verb: str) -> live_cluster.LiveCluster:
        if not isinstance(self.origin, live_cluster.LiveCluster):
            raise plugin_errors.PluginError(_OFF.format(verb=verb))
        return live_cluster.LiveCluster(self.origin.kubectl)

    def _source(self) -> chosen_source.Source:
        """Return the files, or the cluster with nothing begun: the reader's thread uses the other one."""
        if isinstance(self.origin, live_cluster.LiveCluster):
            return live_cluster.LiveCluster(self.origin.kubectl)
        return self.origin


def _pod_words(name: str) -> tuple[str, ...]:
    namespace, _, pod_name = name.partition("/")
    return pod_name, "-n", namespace
