"""Preflight: checks whether a cluster meets gpushare's preconditions, from facts that the caller has gathered.

facts_of_cluster  the objects of a cluster, and why some could not be read
install_plan      the installation's manifests: the pods of agent and webhook
finding           one result of a rule, with its remedy
workload          where the pods of a workload would run
versions          versions of Kubernetes, runtimes, kernels, drivers
software          other GPU software, recognised by its workloads
cluster_rules     rules about the cluster as a whole
node_rules        rules about nodes
devices           rules about a node's GPUs
sharers           rules about other GPU software
images            rules about images
health_rules      rules about an installed gpushare
rules             all rules, and `check`, which runs them

Facts in, findings out: `kubectl gpushare check` and `install.sh` gather and print.
"""
