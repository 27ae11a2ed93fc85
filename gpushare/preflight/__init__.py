"""Preflight: whether a cluster meets the preconditions of gpushare, by facts that the caller has gathered. Pure.

facts_of_cluster   objects that were read from a cluster, and why others could not be read
install_plan       the pods of agent and webhook that are or will be installed
finding            a result of a rule, with its remedy
workload           on which nodes a workload's pods would run
versions           versions of Kubernetes, runtimes, kernels, drivers
software           other GPU software, recognized by the names of its workloads
cluster_rules, node_rules, devices, sharers, images, health_rules   the rules, one function each
rules              the list of all rules, and `check`, which runs them

`kubectl gpushare check` and `install.sh` gather the facts and print the findings.
"""
