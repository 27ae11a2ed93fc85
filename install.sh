#!/usr/bin/env bash
# Install gpushare into a cluster, or set it up in this checkout and show it: see --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly NAMESPACE=gpushare-system
readonly MANIFESTS=config/default

usage() {
  cat <<'TEXT'
Usage: ./install.sh [--dry-run | --uninstall | --local | --prerequisites | --help]

Without a flag it installs gpushare into the cluster of the current kubectl context and waits until it runs.

  --dry-run        say what would be installed, and let the API server check it, without changing anything
  --uninstall      remove gpushare from the cluster: the webhook and its policies first, then the rest
  --local          set up everything in this checkout and show gpushare on a cluster in memory; needs no GPU, no cluster
  --prerequisites  only see to what this machine needs: Python 3.11 with venv, gcc, make
  --help           this text

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

find_python() {
  local candidate
  for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  fail "gpushare needs Python 3.11 or newer; this machine has $(python3 --version 2>/dev/null || echo none)"
}

compiles() { printf '#include <stdio.h>\nint main(void) { return 0; }\n' | gcc -x c -o /dev/null - 2>/dev/null; }

missing_packages() {
  local python="$1"
  # A virtual environment that is there already is enough.
  if [[ ! -x .venv/bin/pip ]] && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    printf '%s\n' "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
  fi
  compiles || printf '%s\n' gcc libc6-dev
  command -v make >/dev/null || printf '%s\n' make
}

prerequisites() {
  local python
  local -a missing
  python="$(find_python)"
  mapfile -t missing < <(missing_packages "$python")
  [[ ${#missing[@]} -gt 0 ]] || return 0
  command -v apt-get >/dev/null ||
    fail "this machine lacks what Debian calls ${missing[*]}, and has no apt-get to install it: install it by hand"
  [[ $EUID -eq 0 ]] || fail "this machine lacks ${missing[*]}: sudo apt-get install ${missing[*]}"
  say "Installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # The package list of a fresh machine may be missing, or older than the mirror.
  apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null; } ||
    fail "apt-get could not install ${missing[*]}; see above"
}

local_demo() {
  say 'Setting up .venv/ and build/ …'
  prerequisites
  make --silent env build
  .venv/bin/python -m lab.demo
}

# --- the cluster -----------------------------------------------------------------------------------------------------

need_cluster() {
  command -v kubectl >/dev/null || fail 'kubectl is missing: install it, or try ./install.sh --local without a cluster'
  kubectl version >/dev/null 2>&1 ||
    fail "no cluster answers in the context '$(kubectl config current-context 2>/dev/null || echo none)': choose one by kubectl config use-context"
  local kinds
  # Policies in CEL have been part of every API server since 1.30.
  kinds="$(kubectl api-resources --api-group admissionregistration.k8s.io --output name 2>/dev/null || true)"
  [[ "$kinds" == *validatingadmissionpolicies* ]] ||
    fail 'the cluster has no ValidatingAdmissionPolicy: gpushare needs Kubernetes 1.30 or newer'
}

context() { kubectl config current-context 2>/dev/null || echo 'in-cluster'; }

images() { kubectl kustomize "$MANIFESTS" | sed -n 's/^ *image: //p' | sort -u | paste -sd ' '; }

need_images() {
  grep -q 'newName:' "$MANIFESTS/kustomization.yaml" || fail \
    "no images of gpushare are published yet: build and push your own, and give each a newName in $MANIFESTS/kustomization.yaml (or load them into the nodes and run kubectl apply -k $MANIFESTS)"
}

install_into_cluster() {
  need_cluster
  need_images
  say "Installing gpushare into the cluster of context '$(context)': namespace $NAMESPACE, CRD gpunodes.gpushare.io,"
  say "webhook (2 replicas), policies, and an agent on each node with a GPU. Images: $(images)"
  # The kind has to be known before objects of it, and the policies that name it, are sent.
  kubectl apply -f config/base/crd/gpunodes.yaml
  kubectl wait --for=condition=Established --timeout=60s crd/gpunodes.gpushare.io
  kubectl apply -k "$MANIFESTS"
  kubectl rollout status --namespace "$NAMESPACE" --timeout=180s deployment/gpushare-webhook
  kubectl rollout status --namespace "$NAMESPACE" --timeout=180s daemonset/gpushare-agent
  say
  say 'Installed. Next:'
  say '  kubectl get gpunodes'
  say '  kubectl apply -f config/samples/half-gpu.yaml'
  say '  kubectl gpushare top'
}

dry_run() {
  need_cluster
  say "Would install gpushare into the cluster of context '$(context)'. Images: $(images)"
  if kubectl get namespace "$NAMESPACE" >/dev/null 2>&1; then
    kubectl apply --dry-run=server -k "$MANIFESTS"
  else
    # The API server cannot check what goes into a namespace that does not exist yet.
    kubectl apply --dry-run=client -k "$MANIFESTS"
  fi
}

uninstall() {
  need_cluster
  say "Removing gpushare from the cluster of context '$(context)'."
  # First what stands in the way of pods: nothing may be refused for want of a webhook that is already gone.
  kubectl delete --ignore-not-found mutatingwebhookconfiguration gpushare
  kubectl delete --ignore-not-found validatingadmissionpolicybinding gpushare-agent gpushare-bindings gpushare-pods
  # Waiting for all of it would wait for the namespace's last pod as well.
  kubectl delete --ignore-not-found --wait=false -k "$MANIFESTS"
  kubectl wait --for=delete --timeout=60s crd/gpunodes.gpushare.io
  say 'Removed. Pods that have a share run on with their limits, but find no arbiter once they restart; see them by:'
  say '  kubectl get pods --all-namespaces --selector gpushare.io/share'
}

case "${1:-}" in
  '') install_into_cluster ;;
  --dry-run) dry_run ;;
  --uninstall) uninstall ;;
  --local) local_demo ;;
  --prerequisites) prerequisites ;;
  --python) find_python ;; # for the Makefile
  --help | -h) usage ;;
  *)
    usage >&2
    fail "$1 is not a flag of install.sh"
    ;;
esac
