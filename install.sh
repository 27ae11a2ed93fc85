#!/usr/bin/env bash
# Install gpushare into a cluster, or set it up in this checkout and show it: see --help.
set -euo pipefail
readonly called_from="$PWD"
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]:-}")")"

readonly NAMESPACE=gpushare-system
readonly CRD=gpunodes.gpushare.io
readonly OURS=app.kubernetes.io/part-of=gpushare

usage() {
  cat <<'TEXT'
Usage: ./install.sh [OPTION...]
       ./install.sh --uninstall [--dry-run] [--yes] [--delete-ledger]
       ./install.sh --local | --prerequisites | --help

Without --uninstall it installs gpushare into the cluster of the current kubectl context: it checks the preconditions
(docs/preconditions.md), applies the manifests, waits until everything runs, and checks again. Run it again at any time:
to upgrade, or with other options.

  --registry REGISTRY/PREFIX  use the images REGISTRY/PREFIX/webhook, …/agent and …/plugin; by default those that
                              `make images PUSH=REGISTRY/PREFIX` has pushed, by digest
  --component NAME            add config/components/NAME; may be repeated. Those of the last installation stay
  --without-component NAME    remove that component; may be repeated
  --kubelet-root DIRECTORY    the kubelets' directory, if not /var/lib/kubelet
  --dry-run                   print the changes, and let the API server check them, without making any
  --timeout SECONDS           how long to wait for webhook and agents; default 180
  --skip-preflight            install in spite of blocking findings
  --force-conflicts           overwrite fields of gpushare's objects that another client has changed

  --uninstall                 remove gpushare: the webhook and its policies first, then the rest. The ledger stays (the
                              GPUNodes and their CRD), and pods with a share keep running. The configurations of nodes
                              are saved to a file in the current directory. On a terminal it asks first
  --delete-ledger             with --uninstall: also remove the ledger
  --yes                       with --uninstall: do not ask

  --local                     set up everything in this checkout and show gpushare on a cluster in memory; needs no
                              GPU, no cluster
  --prerequisites             only install what this machine lacks: Python 3.11 with venv, gcc, make
  --help                      this text

It writes to .venv/ and build/ in this checkout. The lab of `make lab` and `make test` keeps its Kubernetes in
~/.cache/gpushare (or $GPUSHARE_CACHE).
TEXT
}

say() { printf '%s\n' "$*"; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# --- this machine ----------------------------------------------------------------------------------------------------

# The distribution's Python comes first, if it can create environments: it is compiled with profile-guided optimization,
# and every program starts a quarter faster than with one that pyenv compiled.
find_python() {
  local modules candidate
  for modules in 'sys, ensurepip, venv' sys; do
    for candidate in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do
      if "$candidate" -c "import $modules; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then
        command -v "$candidate"
        return
      fi
    done
  done
  fail "gpushare needs Python 3.11 or newer; this machine has $(python3 --version 2>/dev/null || echo none)"
}

compiles() { printf '#include <stdio.h>\nint main(void) { return 0; }\n' | gcc -x c -o /dev/null - 2>/dev/null; }

missing_packages() {
  local python="$1"
  # An existing virtual environment is enough.
  if [[ ! -x .venv/bin/pip ]] && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    printf '%s\n' "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
  fi
  compiles || printf '%s\n' gcc libc6-dev
  command -v make >/dev/null || printf '%s\n' make
}

prerequisites() {
  local python missing=()
  python="$(find_python)"
  mapfile -t missing < <(missing_packages "$python")
  [[ ${#missing[@]} -gt 0 ]] || return 0
  command -v apt-get >/dev/null ||
    fail "this machine lacks ${missing[*]} (Debian's names) and has no apt-get: install them by hand"
  [[ $EUID -eq 0 ]] || fail "this machine lacks ${missing[*]}: sudo apt-get install ${missing[*]}"
  say "Installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # The package lists of a fresh machine may be missing, or older than the mirror's.
  apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null; } ||
    fail "apt-get could not install ${missing[*]}; see above"
}

# Runs a command, and prints every five seconds how long it has been running.
with_progress() {
  local what="$1" began=$SECONDS ticker code=0
  shift
  say "$what …"
  # Ctrl-C does not reach a background loop, so it checks whether its parent still runs.
  while sleep 5 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do say "  … $((SECONDS - began)) s"; done &
  ticker=$!
  "$@" || code=$?
  { kill "$ticker" && wait "$ticker"; } 2>/dev/null || true
  return "$code"
}

local_demo() {
  say 'The first run takes one to three minutes, later ones a few seconds.'
  prerequisites
  with_progress 'Installing Python packages into .venv/' make --silent env
  with_progress 'Compiling the C library and the simulated driver into build/' make --silent build
  .venv/bin/python -m lab.demo
}

# --- the cluster -----------------------------------------------------------------------------------------------------

context() { kubectl config current-context 2>/dev/null || echo 'in-cluster'; }

# Reads what the cluster has of gpushare: `found` then has a line KIND|CLIENT|COMPONENTS for each object. `is_read` says
# whether that is all of them; if not, the reason is in `complaints`.
read_cluster() {
  command -v kubectl >/dev/null || fail 'kubectl is missing: install it, or try ./install.sh --local without a cluster'
  is_read=yes
  found="$(kubectl get "namespace/$NAMESPACE" deployment/gpushare-webhook daemonset/gpushare-agent configmap/gpushare-config \
    --namespace "$NAMESPACE" --ignore-not-found --output 'jsonpath={range .items[*]}{.kind}|{.metadata.labels.app\.kubernetes\.io/managed-by}|{.metadata.annotations.gpushare\.io/components}{"\n"}{end}' \
    2>"$scratch/complaints")" || is_read=''
  [[ -n $is_read ]] || kubectl version >/dev/null 2>&1 ||
    fail "no cluster answers at the context '$(kubectl config current-context 2>/dev/null || echo none)': choose one with kubectl config use-context"
  [[ $found != *'Deployment|Helm|'* ]] ||
    fail "gpushare was installed into this cluster by Helm: use helm upgrade and helm uninstall"
}

# Whether the cluster has gpushare's object of that kind; also true if that could not be read.
is_there() { [[ $found == *"$1|"* || -z $is_read ]]; }

# A Python that can run the plugin: that of `make env`, or a small environment with the locked versions of its packages.
python_for_checks() {
  local python folder=build/check
  for python in .venv/bin/python $folder/bin/python; do
    # It looks for the packages without importing them, which takes seven times as long.
    if "$python" -c "import importlib.util as i; exit(None in map(i.find_spec, ('click', 'tabulate', 'yaml')))" 2>/dev/null; then
      printf '%s\n' "$python"
      return
    fi
  done
  mkdir -p build
  "$(find_python)" -m venv $folder || fail 'Python has no venv: run ./install.sh --prerequisites'
  awk '/^[a-z]/ { on = /^(click|colorama|pyyaml|tabulate)==/ } on' requirements.lock >$folder/requirements.lock
  "$python" -m pip install --quiet --disable-pip-version-check --require-hashes -r $folder/requirements.lock ||
    fail 'the check needs click, pyyaml and tabulate, and pip cannot install them: add --skip-preflight to install without it'
  printf '%s\n' "$python"
}

# Prints the findings. Fails if any blocks: `blocking` then has the rules.
check() {
  local code=0
  blocking=''
  "$python" -m kubectl_gpushare check --fail-on blocking "$@" | tee "$scratch/findings" || code=$?
  blocking="$(sed -n 's/^Blocking: \([a-z-]*\).*/\1/p' "$scratch/findings" | sort -u | paste -sd ' ')"
  return "$code"
}

preflight() {
  local code=0
  [[ -n $python ]] || return 0
  check --before-install --filename "$scratch/manifests.yaml" || code=$?
  say
  if [[ $code -eq 0 ]]; then return; fi
  if [[ -z $blocking ]]; then
    [[ -n $skip_preflight ]] || fail 'the cluster could not be checked: add --skip-preflight to install without the check'
    say 'Continuing although the cluster could not be checked, because of --skip-preflight.'
  elif [[ -n $dry_run ]]; then
    say "An installation would stop here, because of $blocking. With --skip-preflight it would continue:"
  elif [[ -n $skip_preflight ]]; then
    say "Continuing in spite of $blocking, because of --skip-preflight."
  else
    fail "nothing was changed, because of $blocking: see above, or add --skip-preflight"
  fi
}

# Writes the manifests with these settings to NAME.yaml.
render() {
  mkdir "$scratch/$1"
  "${python:-$(find_python)}" config/overlay.py "$scratch/$1" "${@:2}" || exit 1
  kubectl kustomize "$scratch/$1" >"$scratch/$1.yaml"
}

contents() {
  say "gpushare into the cluster of context '$(context)': namespace $NAMESPACE, CRD $CRD,"
  say "webhook (2 replicas), policies, and an agent on each node with a GPU. Images:" \
    "$(sed -n 's/^ *image: //p' "$scratch/manifests.yaml" | sort -u | paste -sd ' ')"
}

# The other field managers in the API server's message, each once.
others() { sed -n 's/.*conflicts\{0,1\} with "\([^"]*\)".*/\1/p' "$scratch/complaints" | sort -u | paste -sd ' '; }

# Without kubectl's validation, which reads all schemas: the API server rejects unknown fields of a server-side apply.
apply() {
  local code=0
  kubectl apply --server-side --validate=false "$@" 2>"$scratch/complaints" || code=$?
  # An earlier release was applied by client-side apply, so those fields are ours.
  if [[ $code -ne 0 && $(others) == kubectl-client-side-apply ]]; then
    code=0
    kubectl apply --server-side --validate=false --force-conflicts "$@" 2>"$scratch/complaints" || code=$?
  fi
  cat "$scratch/complaints" >&2
  if [[ $code -eq 0 ]]; then return; fi
  if grep -q 'conflict' "$scratch/complaints"; then
    fail "$(others) has changed the fields named above: add --force-conflicts to overwrite them"
  fi
  fail 'the API server rejected some objects: see above'
}

# kubectl writes two files per object, named after it: its current and its future state.
compare() {
  KUBECTL_EXTERNAL_DIFF='diff -rq' kubectl diff --server-side "$@" --filename "$scratch/manifests.yaml" \
    >"$scratch/differences" 2>"$scratch/complaints"
}

# Prints which objects of the manifests an installation would create or change.
differences() {
  local code=0 changed
  compare "${force[@]}" || code=$?
  if [[ $code -gt 1 ]]; then
    # kubectl ended at the first object that the API server rejects: `apply` names all of them, or fails for none.
    apply "${force[@]}" --dry-run=server --filename "$scratch/manifests.yaml" >/dev/null
    code=0
    compare --force-conflicts || code=$?
  fi
  if [[ $code -gt 1 ]]; then
    cat "$scratch/complaints" >&2
    fail 'the API server could not compute the changes: see above'
  fi
  changed="$(sed -nE -e 's#^Files .*/([^/ ]+) differ$#\1#p' -e 's#^Only in [^:]*: (.*)#\1#p' "$scratch/differences" | sort -u)"
  if [[ -z $changed ]]; then
    say 'All objects exist already, as in the manifests.'
  else
    say 'These objects would be created or changed (GROUP.VERSION.KIND.NAMESPACE.NAME):'
    say "$changed" | sed 's/^/  /'
  fi
}

install_into_cluster() {
  read_cluster
  python="$(python_for_checks)" || [[ -n $skip_preflight ]] || exit 1
  keep_components
  if [[ $found == *'ConfigMap|'* ]]; then
    say 'The configurations of nodes, in the ConfigMap gpushare-config, stay as they are.'
  fi
  render manifests "${overlay[@]}"
  list_removed
  preflight
  [[ -z $unread ]] || fail "$unread"
  if [[ -n $dry_run ]]; then
    say "Would install $(contents)"
    if [[ $found == *'Namespace|'* ]]; then
      differences
      remove_components --dry-run=server
    else
      # The API server cannot check objects in a namespace that does not exist yet.
      kubectl apply --dry-run=client --filename "$scratch/manifests.yaml"
    fi
    say 'Nothing was changed.'
    return
  fi
  say "Installing $(contents)"
  # The kind must exist before its objects, and before the policies that name it.
  apply "${force[@]}" --filename config/base/crd/gpunodes.yaml
  # At first the CRD's conditions are null, and a wait for one of them fails at once. The API server accepts the names in
  # the same step as it sets them, and kubectl can wait for the names.
  kubectl wait --for=condition=Established --timeout=60s "crd/$CRD" 2>/dev/null || {
    kubectl wait --for=jsonpath='{.status.acceptedNames.plural}'="${CRD%%.*}" --timeout=60s "crd/$CRD" >/dev/null
    kubectl wait --for=condition=Established --timeout=60s "crd/$CRD"
  }
  apply "${force[@]}" --filename "$scratch/manifests.yaml"
  remove_components
  # A DaemonSet without a matching node is ready at once; the check reports that.
  local attempts=5
  await deployment/gpushare-webhook webhook || attempts=1 late='gpushare-webhook'
  await daemonset/gpushare-agent agent || attempts=1 late="${late:+$late and }gpushare-agent"
  verify $attempts
}

# Waits for a workload. If it is not ready in time, prints the end of its logs; the check explains why.
await() {
  kubectl rollout status --namespace "$NAMESPACE" --timeout="${timeout_seconds}s" "$1" && return
  say "$1 is not ready after $timeout_seconds seconds. The last lines of its pods' logs:"
  kubectl logs --namespace "$NAMESPACE" --selector "app.kubernetes.io/component=$2" --tail=5 --prefix 2>&1 | sed 's/^/  /'
  return 1
}

verify() {
  local attempt
  # The API server learns a moment later that a pod is ready.
  for ((attempt = 1; attempt <= $1; attempt++)); do
    [[ -n $python ]] || break
    check >"$scratch/said" && break
    [[ $attempt -eq $1 ]] || sleep 2
  done
  say
  [[ -z $python ]] || cat "$scratch/said"
  say
  # Without the check this is the only report.
  [[ -n $python || -z $late ]] || fail "gpushare is installed, but $late is not ready: see above; until the webhook is ready, pods that request a share are rejected"
  [[ -z $blocking ]] || fail "gpushare is installed, but does not work yet, because of $blocking: see above; run kubectl gpushare check to check again"
  say 'Installed. Next:'
  say '  kubectl get gpunodes'
  say '  a first pod: docs/first-pod.md (the images of config/samples exist only in the lab)'
  say '  kubectl gpushare top    # to install the plugin: docs/plugin.md'
}

# --- command line ----------------------------------------------------------------------------------------------------

timeout_seconds=180 mode='' dry_run='' skip_preflight='' delete_ledger='' yes='' timeout_given='' python='' blocking='' late='' unread='' found='' is_read=''
overlay=() without=() removed=() force=()

choose() {
  [[ -z $mode ]] || fail "$mode and $1 cannot be combined: choose one"
  mode="$1"
}

# Reads the value of a flag from `--flag value` or `--flag=value`.
with_value() {
  [[ $# -ge 2 && -n $2 && $2 != --* ]] || fail "$1 needs a value: see ./install.sh --help"
  if [[ $1 == --without-component ]]; then
    without+=("$2")
  elif [[ $1 != --timeout ]]; then
    overlay+=("$1" "$2")
  elif [[ $2 =~ ^[1-9][0-9]{0,4}$ ]]; then
    timeout_seconds="$2" timeout_given=yes
  else
    fail "--timeout $2: write a number of seconds, such as 180"
  fi
}

only_for() {
  local wanted="$1" flag="$2" given="$3"
  [[ -z $given || $mode == "$wanted" ]] || fail "$flag has no effect ${mode:+with }${mode:-without $wanted}: leave it out"
}

parse() {
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --registry=* | --component=* | --without-component=* | --kubelet-root=* | --timeout=*)
        with_value "${1%%=*}" "${1#*=}"
        ;;
      --registry | --component | --without-component | --kubelet-root | --timeout)
        with_value "$@"
        shift
        ;;
      --dry-run) dry_run=yes ;;
      --skip-preflight) skip_preflight=yes ;;
      --force-conflicts) force=("$1") ;;
      --delete-ledger) delete_ledger=yes ;;
      --yes) yes=yes ;;
      --uninstall | --local | --prerequisites | --python) choose "$1" ;; # --python is for the Makefile
      --help | -h) choose --help ;;
      *)
        usage >&2
        fail "unknown flag $1: see ./install.sh --help"
        ;;
    esac
    shift
  done
}

[[ -f config/overlay.py ]] || fail "install.sh needs the files next to it, and ${PWD} has no config/: run it in a checkout of gpushare"
parse "$@"
for name in "${without[@]}"; do
  [[ " ${overlay[*]} " != *" --component $name "* ]] ||
    fail "--component $name and --without-component $name cannot be combined: choose one"
done
only_for '' "${overlay[0]-}" "${overlay[*]}"
only_for '' --without-component "${without[*]}"
only_for '' --timeout "$timeout_given"
only_for '' --skip-preflight "$skip_preflight"
only_for '' --force-conflicts "${force[*]}"
only_for --uninstall --delete-ledger "$delete_ledger"
only_for --uninstall --yes "$yes"
[[ $mode == --uninstall ]] || only_for '' --dry-run "$dry_run"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

case "$mode" in
  '')
    # shellcheck source=config/components.sh
    source config/components.sh
    install_into_cluster
    ;;
  --uninstall)
    # shellcheck source=config/uninstall.sh
    source config/uninstall.sh
    uninstall
    ;;
  --local) local_demo ;;
  --prerequisites) prerequisites ;;
  --python) find_python ;;
  --help) usage ;;
esac
