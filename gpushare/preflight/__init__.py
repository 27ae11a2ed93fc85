"""Preflight: what a cluster must have for gpushare to work, asked of facts that somebody else has gathered.

facts_of_cluster                                   what was read of a cluster, and why something could not be read
install_plan                                       what is to be installed, or is: the pods of agent and webhook
finding                                            what is the matter, or not, with its remedy
workload                                           where a pod of a workload would run
versions                                           versions of Kubernetes, runtimes, kernels, drivers
software                                           other GPU software, known by the names of its workloads
cluster, nodes, devices, sharers, images, health   the rules, a function each
rules                                              all of them, and `check`, which asks them

Facts in, findings out: `kubectl gpushare check` and `install.sh` gather and print.
"""
