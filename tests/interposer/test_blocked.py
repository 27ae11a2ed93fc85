"""A call to the driver that waits holds nobody up here: what it waits for may be up to another thread."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.interposer.conftest import ArbiterMaker
from tests.interposer.container import CLIENT_PRELUDE, LIBRARY, Container
from tests.interposer.graphing import LIMIT, PRELUDE

# A stream waits for a word; a thread launches into it until the driver takes no more; then another thread does what
# it has to do before it writes the word.
PROGRAM = f"""
import threading, time
{PRELUDE}
word = ctypes.c_void_p()
c.check("cuMemHostAlloc", ctypes.byref(word), 8, 0)
value = ctypes.c_uint32.from_address(word.value)
stream, other = c.made("cuStreamCreate", 1), c.made("cuStreamCreate", 1)
graph = whole(4)
_, block = c.allocate(MIB, "cuMemAllocAsync", other)
c.check("cuStreamWaitValue32_v2", stream, word, 1, 1)
given, results = 0, set()
def launch():
    global given
    for _ in range(2000):
        results.add(start(graph, stream))
        given += 1
launching = threading.Thread(target=launch)
launching.start()
before = -1
while given != before:
    before = given
    time.sleep(0.3)
assert 0 < given < 2000, given
MEANWHILE
value.value = 1
launching.join()
assert results == {{0}}, results
c.check("cuStreamSynchronize", stream)
"""
MEANWHILE = {
    "how much is free": "assert c.info()[1] > 0",
    "an allocation": "assert c.allocate(40 * MIB)[0] == SUCCESS",
    "a stream-ordered allocation": 'assert c.allocate(40 * MIB, "cuMemAllocAsync", other)[0] == SUCCESS',
    "an allocation that has pools trimmed": f"c.allocate({LIMIT})",
    "waiting for another stream": 'c.check("cuMemFreeAsync", block, other)\nc.check("cuStreamSynchronize", other)',
    "the end of a pool": """
pool = ctypes.c_void_p()
c.check("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(on_device(0)))
assert c.allocate(MIB, "cuMemAllocFromPoolAsync", pool, other)[0] == SUCCESS
c.check("cuMemPoolDestroy", pool)
""",
}


def _code(meanwhile: str) -> str:
    return CLIENT_PRELUDE + PROGRAM.replace("MEANWHILE", meanwhile)


@pytest.mark.parametrize("preload", [(), (LIBRARY,)], ids=["alone", "with the library"])
@pytest.mark.parametrize("meanwhile", MEANWHILE.values(), ids=MEANWHILE.keys())
def test_what_ends_a_wait_for_room_on_the_gpu_can_be_done(
    container: Container, make_arbiter: ArbiterMaker, preload: tuple[Path, ...], meanwhile: str
) -> None:
    make_arbiter(LIMIT)
    box = Container(container.arbiter_directory, container.gpus, preload)
    ended = box.run([sys.executable, "-c", _code(meanwhile)])
    assert ended.returncode == 0, ended.stderr
