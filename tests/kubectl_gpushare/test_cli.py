"""The plugin on saved objects: formats, selections, errors and exit codes."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import gpushare
from gpushare import contract
from gpushare.placement_profile import PlacementProfile
from kubectl_gpushare import cli
from tests.kubectl_gpushare.conftest import SECONDS, Plugin, environment

EMPTY = '{"kind": "GPUNode", "metadata": {"name": "new"}}'


def first_column(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()]


def test_top_prints_the_views_table_in_a_pipe(plugin: Plugin, saved: Path) -> None:
    ended = plugin("top", "--from", saved)
    assert ended.code == 0
    assert ended.out == (Path(__file__).parent / "golden" / "top-gpus-pipe.txt").read_text()


def test_ledger_problems_go_to_stderr(plugin: Plugin, saved: Path) -> None:
    lines = plugin("top", "nodes", "--from", saved).err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("warning: ") for line in lines)
    assert "overcommitted" in lines[1]


def test_json_and_yaml_have_the_same_content(plugin: Plugin, saved: Path) -> None:
    from_json = json.loads(plugin("top", "-o", "json", "--from", saved).out)
    assert from_json == yaml.safe_load(plugin("top", "-o", "yaml", "--from", saved).out)
    assert (from_json["apiVersion"], from_json["kind"]) == ("plugin.gpushare.io/v1alpha1", "GPUList")
    assert len(from_json["items"]) == 13


@pytest.mark.parametrize("kind", ["gpus", "nodes"])
def test_csv_has_the_same_columns_in_every_row(plugin: Plugin, saved: Path, kind: str) -> None:
    rows = list(csv.DictReader(io.StringIO(plugin("top", kind, "-o", "csv", "--from", saved).out)))
    assert rows[0]["name"].startswith("gpu-1")
    assert all(None not in row and None not in row.values() for row in rows)
    assert rows[0]["memory.totalBytes"].isdigit()


def test_names_are_printed_one_per_line(plugin: Plugin, saved: Path) -> None:
    out = plugin("top", "nodes", "-o", "name", "--from", saved).out
    assert out == "gpunode.gpushare.io/gpu-1\ngpunode.gpushare.io/gpu-2\ngpunode.gpushare.io/gpu-10\n"


def test_numbers_are_sorted_largest_first(plugin: Plugin, saved: Path) -> None:
    out = plugin("top", "--sort-by", "compute", "--no-headers", "--from", saved).out
    assert first_column(out)[:4] == ["gpu-10/0", "gpu-1/1", "gpu-1/2", "gpu-2/0"]


def test_names_choose_nodes_and_gpus(plugin: Plugin, saved: Path) -> None:
    out = plugin("top", "gpus", "gpu-10", "gpu-1/2", "--no-headers", "--from", saved).out
    assert first_column(out) == ["gpu-1/2", "gpu-10/0", "gpu-10/1", "gpu-10/2", "gpu-10/3"]


def test_pods_are_listed_by_namespace_or_all(plugin: Plugin, saved: Path) -> None:
    out = plugin("top", "pods", "-n", "web", "--no-headers", "--from", saved).out
    assert first_column(out) == ["small"]
    assert plugin("top", "pods", "--from", saved).err == "No pods that share GPUs found in default namespace.\n"
    out = plugin("top", "pods", "-A", "--no-headers", "--sort-by", "memory", "--from", saved).out
    assert out.splitlines()[0].split()[:3] == ["ml", "llm", "gpu-1/1,2"]


def test_pods_can_be_chosen_by_name_and_a_missing_one_is_an_error(plugin: Plugin, saved: Path) -> None:
    ended = plugin("top", "pods", "-n", "ml", "trainer", "nobody", "-o", "name", "--from", saved)
    assert (ended.code, ended.out) == (1, "pod/trainer\n")
    assert ended.err == 'error: no pod that shares GPUs "nobody"\n'


def test_a_namespace_chooses_the_gpus_that_its_pods_share(plugin: Plugin, saved: Path) -> None:
    out = plugin("top", "-n", "web", "--no-headers", "--from", saved).out
    assert first_column(out) == ["gpu-1/3"]
    out = plugin("top", "nodes", "-n", "batch", "--no-headers", "--from", saved).out
    assert first_column(out) == ["gpu-10"]


def test_unknown_name_is_an_error_after_the_known_ones(plugin: Plugin, saved: Path) -> None:
    ended = plugin("top", "gpus", "gpu-1/2", "gpu-9", "--from", saved)
    assert ended.code == 1
    assert "gpu-1/2" in ended.out
    assert ended.err == 'error: no node or GPU "gpu-9"\n'


def test_standard_input_is_read(plugin: Plugin, saved: Path) -> None:
    assert plugin("top", "--from", "-", input=saved.read_text()).out == plugin("top", "--from", saved).out


def test_a_node_without_gpus_is_no_error(plugin: Plugin) -> None:
    ended = plugin("top", "--from", "-", input=EMPTY)
    assert (ended.code, ended.out, ended.err) == (0, "", "No GPUs found.\n")
    assert "NoGPUs" in plugin("top", "nodes", "--from", "-", input=EMPTY).out


def test_empty_list_is_still_a_document(plugin: Plugin) -> None:
    assert json.loads(plugin("top", "-o", "json", "--from", "-", input=EMPTY).out)["items"] == []


@pytest.mark.parametrize(
    "arguments",
    [("node", "gpu-1"), ("nodes/gpu-1",), ("gpu", "gpu-1/0"), ("gpu/gpu-1/0",), ("gpu", "GPU-6770752d31-0000")],
    ids=" ".join,
)
def test_describe_finds_objects_by_name(plugin: Plugin, saved: Path, arguments: tuple[str, ...]) -> None:
    ended = plugin("describe", *arguments, "--from", saved)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Name: ")
    assert "ml/trainer" in ended.out


def test_unambiguous_uuid_prefix_is_accepted(plugin: Plugin, saved: Path) -> None:
    assert "gpu-10/3" in plugin("describe", "gpu", "6770752d3130-0003", "--from", saved).out
    ended = plugin("describe", "gpu", "GPU-6770752d3130", "--from", saved)
    assert ended.code == 1
    assert "is the beginning of 4 UUIDs: gpu-10/0" in ended.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("node", "nope"), 'no GPUNode "nope"'),
        (("gpu", "gpu-1/9"), 'no GPU "gpu-1/9"'),
        (("gpu", "abc"), 'no GPU "abc"'),
        (("pod", "trainer"), "add -n ml"),
    ],
    ids=" ".join,
)
def test_missing_object_is_an_error(plugin: Plugin, saved: Path, arguments: tuple[str, ...], sentence: str) -> None:
    ended = plugin("describe", *arguments, "--from", saved)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: ")
    assert sentence in ended.err


def test_describe_shows_existing_objects_before_the_error(plugin: Plugin, saved: Path) -> None:
    ended = plugin("describe", "node", "gpu-1", "nope", "gpu-10", "--from", saved)
    assert ended.code == 1
    assert [line for line in ended.out.splitlines() if line.startswith("Name:")] == [
        "Name:       gpu-1",
        "Name:       gpu-10",
    ]


def test_describe_without_a_name_shows_all(plugin: Plugin, saved: Path) -> None:
    document = json.loads(plugin("describe", "pods", "-A", "-o", "json", "--from", saved).out)
    assert document["kind"] == "PodDescriptionList"
    assert [item["name"] for item in document["items"]][:2] == ["b", "just-made"]
    assert plugin("describe", "pods", "--from", saved).err == "No pods that share GPUs found in default namespace.\n"


def test_describe_shows_the_objects_events(plugin: Plugin, saved: Path) -> None:
    out = plugin("describe", "pod", "waiting", "-n", "ml", "--from", saved).out
    assert "Gated" in out.partition("Events:")[2]
    document = json.loads(plugin("describe", "node", "gpu-1", "-o", "json", "--from", saved).out)
    assert [event["reason"] for event in document["events"]] == ["ReservationExpired"]
    assert "Events:\n  <none>" in plugin("describe", "pod", "trainer", "-n", "ml", "--from", saved).out


def test_describe_prints_documents(plugin: Plugin, saved: Path) -> None:
    document = json.loads(plugin("describe", "pod", "waiting", "-n", "ml", "-o", "json", "--from", saved).out)
    assert (document["kind"], document["placement"]) == ("PodDescription", "Waiting")
    document = yaml.safe_load(plugin("describe", "gpu", "gpu-1/0", "-o", "yaml", "--from", saved).out)
    assert [tenant["pod"]["name"] for tenant in document["tenants"]] == ["trainer", "notebook"]


def test_why_prints_remedies_in_documents(plugin: Plugin, saved: Path) -> None:
    document = json.loads(plugin("why", "trainer", "-n", "ml", "-o", "json", "--from", saved).out)
    assert (document["kind"], document["choices"][0]["gpus"]) == ("PodReasons", "gpu-1/0")
    assert "Not Looked At" in plugin("why", "ml/trainer", "--from", saved).out


def test_why_of_a_pod_without_share_is_an_error(plugin: Plugin, saved: Path) -> None:
    ended = plugin("why", "web/nginx", "--from", saved)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith('error: pod "nginx" asks for no share')


def test_fit_answers_by_exit_code(plugin: Plugin, saved: Path) -> None:
    assert plugin("fit", "--request", "0.5", "--from", saved).code == 0
    ended = plugin("fit", "--request", "1", "--gpus", "4", "--from", saved)
    assert (ended.code, ended.err) == (2, "")
    assert "Fits:          no" in ended.out
    assert plugin("fit", "--request", "2", "--from", saved).code == 1


def test_simulate_plays_pods_on_made_up_nodes(plugin: Plugin, tmp_path: Path) -> None:
    sample_file = Path(__file__).parents[2] / "config" / "samples" / "half-gpu.yaml"
    plot = tmp_path / "plot.svg"
    words = ("simulate", "-f", sample_file, "--repeat", "10", "--nodes", "1x4")
    ended = plugin(*words, "--plot", plot)
    assert ended.code == 0
    assert "10 pods came, 2 had to wait; 2 wait at the end" in ended.err
    assert ended.out.splitlines()[-1].split()[:4] == ["0s", "10", "8", "2"]
    assert plot.read_text().startswith("<svg ")
    document = json.loads(plugin(*words, "-o", "json").out)
    assert (document["kind"], document["waitingAtTheEnd"], len(document["moments"])) == ("Simulation", 2, 10)


def test_why_uses_the_published_policy(plugin: Plugin, saved: Path, tmp_path: Path) -> None:
    published = {
        "kind": "ConfigMap",
        "metadata": {"name": contract.PLACEMENT_CONFIG_MAP},
        "data": PlacementProfile("pack").data(),
    }
    path = tmp_path / "placement.json"
    path.write_text(json.dumps(published))
    why = ("why", "trainer", "-n", "ml", "--from", saved)
    assert "by the policy fragmentation" in plugin(*why).out
    assert "by the policy pack" in plugin(*why, "--from", path).out
    published["data"] = {"policy": "newest"}
    path.write_text(json.dumps(published))
    ended = " ".join(plugin(*why, "--from", path).out.split())
    assert "by the policy fragmentation" in ended
    assert 'what its pods ask for: unknown policy "newest": this plugin knows' in ended


def test_fit_reads_manifests(plugin: Plugin, saved: Path) -> None:
    sample_file = Path(__file__).parents[2] / "config" / "samples" / "ten-quarters.yaml"
    document = json.loads(plugin("fit", "-f", sample_file, "-o", "json", "--from", saved).out)
    assert document["kind"] == "Fit"
    assert sum(len(pod["gpus"]) + pod["missing"] for pod in document["pods"]) == 10


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("fit",), "error: specify what to fit"),
        (("fit", "--model", "A*"), "error: specify the size of the share"),
        (("fit", "-f", "x", "--request", "1"), "error: specify what to fit: either"),
        (("fit", "-f", "-", "--from", "-"), "error: -f and --from cannot both"),
        (("simulate",), "error: specify the pods"),
        (("simulate", "--trace", "x.csv", "--plot", "x.png"), "error: --plot draws SVG: write x.svg"),
        (("simulate", "--trace", "/nonexistent"), "error: /nonexistent cannot be read"),
        (("why",), "error: missing argument 'POD|TYPE/NAME'"),
        (("nope",), "error: no such command 'nope'\nSee 'kubectl gpushare --help' for usage.\n"),
        (
            ("tpo", "pods"),
            "error: no such command 'tpo': did you mean 'top'?\nSee 'kubectl gpushare --help' for usage.\n",
        ),
        (("top", "--nope"), "error: no such option '--nope'"),
        (("top", "-o", "xml"), 'error: invalid --output "xml": must be table,'),
        (("top", "gpux"), 'error: unknown type "gpux": write gpus, nodes or pods before names, as in `top gpus gpux`'),
        (("top", "nodes", "gpu-1/0"), "error: a node's name has no slash"),
        (("top", "pods", "ml/trainer"), "error: a pod's name has no slash: write `top pods POD -n NAMESPACE`\n"),
        (("rightsize", "ml/trainer"), "error: a pod's name has no slash: write `rightsize POD -n NAMESPACE`\n"),
        (("top", "nodes", "--sort-by", "mode"), 'error: nodes have no column "mode" to sort by'),
        (("top", "-w", "--from", "-"), "error: --watch needs a cluster"),
        (("top", "--usage", "--from", "-"), "error: --usage needs a cluster"),
        (("top", "pods", "--sort-by", "frag"), 'error: pods have no column "frag" to sort by'),
        (("describe",), "error: specify what to describe"),
        (("top", "pods", "-n", "No/Such"), 'error: -n "No/Such" cannot be the name of a namespace\nSee'),
        (("why", "x", "-n", ".."), 'error: -n ".." cannot be the name of a namespace\nSee'),
        (("why", "a/b/c"), 'error: "a/b/c" cannot be the name of a pod: write POD or NAMESPACE/POD\n'),
        (("describe", "pod", ".."), 'error: ".." cannot be the name of a pod: write POD or NAMESPACE/POD\n'),
        (("describe", "service", "x"), 'error: unknown type "service"'),
    ],
    ids=str,
)
def test_usage_error_is_one_sentence_and_code_1(plugin: Plugin, arguments: tuple[str, ...], sentence: str) -> None:
    ended = plugin(*arguments, input=EMPTY)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(sentence)


def test_help_is_printed_without_a_verb(plugin: Plugin) -> None:
    ended = plugin()
    assert (ended.code, ended.err) == (0, "")
    assert all(verb in ended.out for verb in cli.VERBS)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help(plugin: Plugin, verb: str) -> None:
    ended = plugin(verb, "--help")
    assert ended.code == 0
    assert ended.out.startswith(f"Usage: kubectl gpushare {verb}")
    command = cli.group.get_command(None, verb)  # type: ignore[arg-type]
    assert command is not None
    assert command.short_help == cli.VERBS[verb]


def test_version_is_the_packages(plugin: Plugin) -> None:
    assert plugin("version").out == f"kubectl-gpushare v{gpushare.__version__}\n"


def test_plugin_runs_as_a_module(saved: Path) -> None:
    command = [sys.executable, "-m", "kubectl_gpushare", "describe", "node", "nope", "--from", str(saved)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment())
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith('error: no GPUNode "nope"')


def test_colours_only_when_asked_for(plugin: Plugin, saved: Path) -> None:
    assert "\x1b" not in plugin("top", "--from", saved).out
    assert "\x1b[32mReady" in plugin("top", "--color", "always", "--from", saved).out


@pytest.mark.slow
def test_closed_pipe_is_no_error(saved: Path) -> None:
    command = [sys.executable, "-m", "kubectl_gpushare", "top", "-o", "json", "--from", str(saved)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert process.stdout is not None
    process.stdout.close()  # before any output
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert said == b""


def test_unwritable_output_is_an_error(saved: Path) -> None:
    command = [sys.executable, "-m", "kubectl_gpushare", "top", "-o", "json", "--from", str(saved)]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False, env=environment()
        )
    assert ended.returncode == 1
    assert ended.stderr == "error: the output cannot be written: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("output", ["table", "json", "yaml", "csv"])
def test_character_missing_in_the_locale_is_no_error(saved: Path, output: str) -> None:
    saved.write_text(saved.read_text().replace("Tesla T4", "Gerät €"), encoding="utf-8")
    command = [sys.executable, "-m", "kubectl_gpushare", "top", "-o", output, "--from", str(saved)]
    variables = {**environment(PYTHONIOENCODING="ascii:strict"), "PYTHONUTF8": "0"}
    ended = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False, env=variables)
    assert ended.returncode == 0
    assert ended.stdout.isascii()
    assert b"Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("describe pod ml/trainer", "Name:         trainer\n"),
        ("describe pod pod/trainer -n ml", "Name:         trainer\n"),
        ("why ml/waiting", "Name:       waiting\n"),
        ("defrag ml/waiting -n web", "Fits Already:  ml/waiting"),
        ("resize ml/trainer --request 0.6 --memory 1Gi", "Pod:             ml/trainer\n"),
    ],
)
def test_a_pod_may_be_named_with_its_namespace(plugin: Plugin, saved: Path, line: str, said: str) -> None:
    ended = plugin(*line.split(), "--from", saved)
    assert said in ended.out
    assert ended.code == 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ml/trainer", "pod ml/trainer does not wait: it has its share, on gpu-1"),
        ("web/nginx", "pod web/nginx does not wait: it asks for no share of a GPU"),
    ],
)
def test_defrag_rejects_a_pod_that_does_not_wait(plugin: Plugin, saved: Path, name: str, reason: str) -> None:
    ended = plugin("defrag", name, "--from", saved)
    assert (ended.code, ended.out, ended.err) == (1, "", f"error: {reason}\n")


def test_pod_named_twice_counts_once(plugin: Plugin, saved: Path) -> None:
    assert plugin("defrag", "ml/waiting", "pod/waiting", "-n", "ml", "--from", saved).out.count("ml/waiting") == 1


def test_defrag_moves_takes_no_names(plugin: Plugin, saved: Path) -> None:
    for flags in (("--moves", "3"), ("--empty-nodes",)):
        ended = plugin("defrag", *flags, "ml/waiting", "--from", saved)
        assert (ended.code, f"{flags[0]} is for the whole cluster" in ended.err) == (1, True)
        assert plugin("defrag", *flags, "--from", saved).code == 0
    assert plugin("defrag", "--moves", "0", "--from", saved).code == 1
    ended = plugin("defrag", "--moves", "3", "--from", saved, "-o", "json")
    assert (ended.code, json.loads(ended.out)["gainedGpus"] >= 0) == (0, True)


def test_resize_rejects_a_pod_without_share(plugin: Plugin, saved: Path) -> None:
    ended = plugin("resize", "web/nginx", "--request", "1", "--from", saved)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == 'error: pod "nginx" asks for no share of a GPU: only a share that is held is resized\n'


def test_reasons_of_sick_gpus_follow_the_table(plugin: Plugin, saved: Path) -> None:
    said = plugin("top", "--from", saved).err
    assert "gpu-2/1 is unhealthy: XID 79: the GPU has fallen off the bus" in said
    assert "GPU-gone is unhealthy" not in said
    assert "unhealthy" not in plugin("top", "gpus", "gpu-1", "--from", saved).err
