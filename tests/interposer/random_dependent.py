"""Runs threads, GPUs, streams and processes whose work waits for other work, chosen by the seed.

    python random_dependent.py SEED PROCESS PROCESSES GPUS THREADS ROUNDS

In each round all threads of all processes launch one of PATTERNS. Work never waits for launches of a later round, so
the program ends in any order in which the GPUs run it. Prints the longest launch in milliseconds.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import sys
import threading
import time
from typing import Any

from tests.interposer.cuda_client import Cuda

NON_BLOCKING = 1
AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ
THREAD_LOCAL = 1
SECONDS = 60
SMALL, PART = "step_5pct_20us", "5pct"
PATTERNS = ("meet", "some meet", "word", "host function", "capture", "event", "nothing")
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

seed, process, processes, gpus, threads, rounds = map(int, sys.argv[1:])
LANES = list(itertools.product(range(processes), range(gpus), range(threads)))
cuda = Cuda()
longest_s = [0.0]
signals = {(number, lane): threading.Event() for number in range(rounds) for lane in LANES}
made: dict[tuple[int, tuple[int, int, int]], ctypes.c_void_p] = {}
kept: list[Any] = []  # functions that the driver may still call


class Lane:
    """A thread on one GPU with two streams."""

    def __init__(self, lane: tuple[int, int, int], word: int) -> None:
        self.lane = lane
        self.chance = random.Random(f"{seed} {lane}")
        self.word = word
        self.neighbour = (*lane[:2], 1 - min(lane[2], 1))
        cuda.use(lane[1])
        self.streams = [cuda.made("cuStreamCreate", NON_BLOCKING) for _ in range(2)]
        self.module = cuda.made("cuModuleLoadData", b"image")
        self.small = self.kernel(SMALL)

    def kernel(self, name: str) -> ctypes.c_void_p:
        return cuda.made("cuModuleGetFunction", self.module, name.encode())

    def launch(self, kernel: ctypes.c_void_p, stream: ctypes.c_void_p) -> None:
        began = time.monotonic()
        cuda.launch(kernel, stream)
        longest_s[0] = max(longest_s[0], time.monotonic() - began)

    def some(self) -> None:
        for _ in range(self.chance.choice([0, 0, 3, 20, 60, 150])):
            self.launch(self.small, self.chance.choice(self.streams))

    def run(self) -> None:
        cuda.use(self.lane[1])
        common = random.Random(seed)  # shared by all lanes
        for number in range(rounds):
            pattern, who = common.choice(PATTERNS), common.sample(LANES, common.randint(2, len(LANES)))
            self.some()
            self.do(pattern, number, who)
            signals[number, self.lane].set()
            self.some()
            if self.chance.random() < 0.4:
                self.wait()
        self.wait()

    def wait(self) -> None:
        for stream in self.streams:
            cuda.check("cuStreamSynchronize", stream)

    def do(self, pattern: str, number: int, who: list[tuple[int, int, int]]) -> None:
        stream = self.chance.choice(self.streams)
        first, second = self.lane[2] == 0, self.lane[2] == 1
        pair = signals[number, self.neighbour]
        if pattern == "meet" or (pattern == "some meet" and self.lane in who):
            size = len(LANES if pattern == "meet" else who)
            self.launch(self.kernel(f"meet{size}_r{number}_{PART}_100us"), stream)
        elif pattern == "word" and first and threads > 1:
            cuda.check("cuStreamWaitValue32_v2", stream, self.word, number + 1, AT_LEAST)
            self.launch(self.small, stream)
        elif pattern == "word" and second:
            self.launch(self.small, stream)
            cuda.check("cuStreamWriteValue32_v2", stream, self.word, number + 1, 0)
        elif pattern == "host function" and first and threads > 1:
            kept.append(HOST_FUNCTION(lambda _: pair.wait(SECONDS) and None))
            cuda.check("cuLaunchHostFunc", stream, kept[-1], None)
            self.launch(self.small, stream)
        elif pattern == "capture":
            self.capture(stream)
        elif pattern == "event" and first:
            made[number, self.lane] = cuda.made("cuEventCreate", 0)
            self.launch(self.small, stream)
            cuda.check("cuEventRecord", made[number, self.lane], stream)
        elif pattern == "event" and second:
            pair.wait(SECONDS)
            cuda.check("cuStreamWaitEvent", stream, made[number, self.neighbour], 0)
            self.launch(self.small, stream)

    def capture(self, stream: ctypes.c_void_p) -> None:
        cuda.check("cuStreamBeginCapture_v2", stream, THREAD_LOCAL)
        for _ in range(3):
            self.launch(self.small, stream)
        graph = ctypes.c_void_p()
        cuda.check("cuStreamEndCapture", stream, ctypes.byref(graph))
        runs = cuda.made("cuGraphInstantiateWithFlags", graph, 0)
        cuda.check("cuGraphLaunch", runs, stream)
        kept.append(runs)


def main() -> None:
    words = {}
    for gpu in range(gpus):
        cuda.use(gpu)
        result, words[gpu] = cuda.allocate(4096)
        assert result == 0, result
        cuda.check("cuMemsetD32_v2", words[gpu], 0, 1024)
        cuda.check("cuCtxSynchronize")
    lanes = [Lane(lane, words[lane[1]]) for lane in LANES if lane[0] == process]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    running = [threading.Thread(target=lane.run) for lane in lanes]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    sys.stdout.write(f"{longest_s[0] * 1000:.1f}\n")


main()
