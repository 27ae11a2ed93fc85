"""A steady stream of pods on a whole cluster, while something in it goes wrong: who sends it, and who watches."""
