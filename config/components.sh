# shellcheck shell=bash
# Which components ./install.sh keeps, and which objects it removes: install.sh sources this file.
# shellcheck disable=SC2154,SC2034  # install.sh sets the variables of the command line, and reads `unread`
set -euo pipefail

# Adds the components of the last installation, which the agent's DaemonSet names. If they cannot be read and the command
# line does not name any, sets `unread` to the error: the preflight check says first what is wrong with the cluster.
keep_components() {
  local name installed kept=''
  installed="$(sed -n 's/^DaemonSet|[^|]*|//p' <<<"$found")"
  if [[ -z $is_read && $found != *'DaemonSet|'* ]]; then
    cat "$scratch/complaints" >&2
    [[ ${#without[@]} -eq 0 && " ${overlay[*]}" == *" --component "* ]] ||
      unread='the installed components could not be read: name them with --component'
    return 0
  fi
  for name in "${without[@]}"; do
    [[ " $installed " == *" $name "* ]] || fail "--without-component $name: the cluster has ${installed:-no record of it: if an earlier release installed it, first run ./install.sh --component $name}"
  done
  for name in $installed; do
    if [[ " ${without[*]} " == *" $name "* || " ${overlay[*]} " == *" --component $name "* ]]; then continue; fi
    kept+=" $name" overlay+=(--component "$name")
  done
  [[ -z $kept ]] || say "Components of the last installation that stay:$kept. To remove one: --without-component NAME."
}

# Lists the objects that only components in `without` have; never gpushare's namespace or the ledger's CRD.
list_removed() {
  local file
  [[ ${#without[@]} -gt 0 ]] || return 0
  render old "${overlay[@]}" "${without[@]/#/--component=}"
  # Through files, because bash ignores the exit code of a process substitution.
  for file in old manifests; do
    kubectl create --dry-run=client --filename "$scratch/$file.yaml" --output name | sort >"$scratch/$file.names" ||
      fail 'nothing was changed: the objects of the components to remove could not be listed, see above'
  done
  comm -23 "$scratch/old.names" "$scratch/manifests.names" >"$scratch/removed"
  mapfile -t removed < <(sed -E "/^(namespace\/$NAMESPACE$|customresourcedefinition[./])/d" "$scratch/removed")
  [[ " ${removed[*]} " != *' namespace/gpushare-borrow '* ]] || refuse_while_borrowed
}

# Without agent and placer no placeholder ends before its grace period of weeks, and neither does its namespace.
refuse_while_borrowed() {
  local left
  left="$(kubectl get pods --namespace gpushare-borrow --output name)" ||
    fail 'nothing was changed: the pods in gpushare-borrow could not be listed, see above'
  [[ -z $left ]] ||
    fail "nothing was changed: GPUs are still borrowed by $(wc -l <<<"$left") pods in the namespace gpushare-borrow: delete the pods with shares there, set the label gpushare.io/borrow of these nodes to 0, and wait until the pods are gone"
}

remove_components() {
  [[ ${#removed[@]} -eq 0 ]] || kubectl delete --ignore-not-found --namespace "$NAMESPACE" "$@" "${removed[@]}"
}
