"""Tests the upper bound for an array's size, for drivers that cannot report it."""

from __future__ import annotations

import ctypes

from tests.interposer.cuda_client import Array3DDescriptor
from tests.interposer.test_quota import PURE

BYTE, FLOAT, BC1, NV12 = 0x01, 0x20, 0x91, 0xB0
LAYERED = 1
KIB = 1024


def bytes_of(
    width: int, height: int = 0, depth: int = 0, *, form: int = BYTE, channels: int = 1, flags: int = 0, levels: int = 1
) -> int:
    library = ctypes.CDLL(str(PURE))
    library.array_max_bytes.restype = ctypes.c_uint64
    descriptor = Array3DDescriptor(width, height, depth, form, channels, flags)
    return int(library.array_max_bytes(ctypes.byref(descriptor), levels))


def test_array_takes_whole_blocks() -> None:
    assert bytes_of(1) == 64 * 8
    assert bytes_of(1024, 1024) == 1024 * KIB
    assert bytes_of(1024, 1024, form=FLOAT, channels=4) == 16 * 1024 * KIB
    assert bytes_of(1000, 9) == 1024 * 16, "two blocks of rows, not sixteen"
    assert bytes_of(64, 129) == 64 * 256
    assert bytes_of(1024, 1024, form=BC1) == 256 * 8 * 256
    assert bytes_of(1920, 1080, form=NV12) == 1920 * 16 * 1152


def test_volume_takes_blocks_of_planes_and_layers_are_separate() -> None:
    assert bytes_of(64, 8, 3) == 64 * 8 * 4
    assert bytes_of(64, 8, 33) == 64 * 8 * 64
    assert bytes_of(64, 8, 33, flags=LAYERED) == 64 * 8 * 33


def test_mipmap_levels_end_at_one_texel() -> None:
    assert bytes_of(64, 64, levels=2) == 64 * 64 + 64 * 32
    assert bytes_of(64, 64, levels=100) == bytes_of(64, 64, levels=7)


def test_size_saturates_on_overflow() -> None:
    assert bytes_of(1 << 40, 1 << 40) == 2**64 - 1
    assert bytes_of(2**64 - 1) == 2**64 - 1
