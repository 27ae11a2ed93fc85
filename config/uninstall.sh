# shellcheck shell=bash
# What `./install.sh --uninstall` does: install.sh sources this file and calls `uninstall`.
# shellcheck disable=SC2154  # install.sh sets the variables of the command line
set -euo pipefail

remove() { kubectl delete --ignore-not-found "${how[@]}" "$@"; }

# Prints what an uninstallation deletes, and the pods that it affects.
announce() {
  local holders count=''
  say "From the cluster of context '$(context)' this deletes:"
  say "  webhook, agents, their policies, roles and certificates, and the namespace $NAMESPACE with everything in it"
  ! is_there ConfigMap || count="$(kubectl get configmap --namespace "$NAMESPACE" gpushare-config \
    --output 'go-template={{ len .data }}' 2>/dev/null || true)"
  [[ -z $count ]] || say "  the $count configurations of nodes, in the ConfigMap gpushare-config"
  if [[ -n $delete_ledger ]]; then
    say "  the ledger, with the cordons of GPUs: the CRD $CRD and $(kubectl get "$CRD" --output name 2>/dev/null | wc -l) GPUNodes"
  else
    say '  not the ledger, the GPUNodes and their CRD'
  fi
  holders="$(kubectl get pods --all-namespaces --selector gpushare.io/share --no-headers \
    --output 'custom-columns=:metadata.namespace,:metadata.name,:spec.nodeName,:status.phase' 2>/dev/null)" ||
    holders='(pods could not be listed)'
  [[ -n $holders ]] || return 0
  say
  say 'Pods that have a share, or wait for one:'
  say "$holders" | sed 's/^/  /'
  say 'Running pods keep their share and its limits, but a container that restarts finds no arbiter, and CUDA fails in it.'
  say 'Waiting pods wait until gpushare is installed again. To end them first, delete them.'
}

confirm() {
  local answer
  [[ -t 0 && -z $yes ]] || return 0
  read -r -p 'Uninstall? [y/N] ' answer
  [[ $answer == [yY]* ]] || fail 'nothing was changed'
}

# Saves the objects that only an administrator could recreate.
save() {
  local file folder
  file="gpushare-config-$(date -u +%Y%m%dT%H%M%SZ).yaml"
  kubectl get configmap --namespace "$NAMESPACE" gpushare-config --ignore-not-found --output yaml \
    >"$scratch/$file" || fail 'nothing was changed: the configurations of nodes could not be read, see above'
  [[ -s $scratch/$file ]] || return 0
  # Without the fields of the deleted object, so that the file can create a new one.
  sed -i -E '/^  (resourceVersion: "|uid: [0-9a-f-]{36}$|creationTimestamp: ")/d' "$scratch/$file"
  for folder in "$called_from" "${TMPDIR:-/tmp}"; do
    if [[ -n $dry_run ]]; then
      say "Would save the configurations of nodes to $folder/$file."
      return
    elif cp "$scratch/$file" "$folder/$file" 2>/dev/null; then
      say "Saved the configurations of nodes. To restore them after a new installation:"
      say "  kubectl create --filename $folder/$file"
      return
    fi
  done
  fail "nothing was changed: the configurations of nodes could not be saved to $called_from"
}

uninstall() {
  how=()
  read_cluster
  announce
  say
  if [[ -n $dry_run ]]; then
    how=(--dry-run=server)
  else
    confirm
  fi
  save
  # First what could block pods: none may be rejected because the webhook is gone.
  remove mutatingwebhookconfiguration gpushare
  remove validatingadmissionpolicybinding,validatingadmissionpolicy --selector "$OURS"
  remove cronjob,deployment,daemonset,poddisruptionbudget,service,networkpolicy,configmap,secret,rolebinding,role,serviceaccount,clusterrolebinding,clusterrole,priorityclass \
    --namespace "$NAMESPACE" --selector "$OURS"
  ! is_there ConfigMap || remove configmap gpushare-config --namespace "$NAMESPACE"
  # Placeholders of borrowed GPUs ignore SIGTERM, and end by themselves only after weeks.
  remove --grace-period=1 --wait=false pod --all --namespace gpushare-borrow
  remove --wait=false namespace "$NAMESPACE" gpushare-demand gpushare-borrow
  if [[ -n $delete_ledger ]]; then
    remove --timeout=60s crd "$CRD"
  fi
  say
  if [[ -n $dry_run ]]; then
    say 'Nothing was changed.'
    return
  fi
  kubectl wait --for=delete --timeout=30s "namespace/$NAMESPACE" >/dev/null 2>&1 ||
    say "The namespace $NAMESPACE is still being deleted: kubectl get namespace $NAMESPACE shows when it is gone."
  if [[ -n $delete_ledger ]]; then
    say 'Removed, including the ledger. Next: kubectl get nodes --selector nvidia.com/gpu.present'
  else
    say "Removed. The ledger stays: kubectl get gpunodes. A new ./install.sh continues with it. To remove it too:"
    say '  ./install.sh --uninstall --delete-ledger'
  fi
}
