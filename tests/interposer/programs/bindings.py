"""A program with NVIDIA's Python bindings."""

from __future__ import annotations

from typing import Any


def fills_and_launches(limit: int) -> None:
    from cuda.bindings import driver  # may be missing in the Python that runs the tests

    def call(function: Any, *arguments: Any) -> Any:
        result, *values = function(*arguments)
        assert result == driver.CUresult.CUDA_SUCCESS, (function, result)
        return values[0] if len(values) == 1 else values

    call(driver.cuInit, 0)
    device = call(driver.cuDeviceGet, 0)
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, device))
    assert call(driver.cuDeviceTotalMem, device) == limit
    assert call(driver.cuMemGetInfo) == [limit, limit]
    assert driver.cuMemAlloc(limit + 1)[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    pointer = call(driver.cuMemAlloc, limit)
    assert driver.cuMemAllocAsync(1, driver.CUstream(0))[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert call(driver.cuMemFree, pointer) == []
    assert call(driver.cuMemGetInfo) == [limit, limit]
    module = call(driver.cuModuleLoadData, b"\0")
    function = call(driver.cuModuleGetFunction, module, b"k_10us")
    for _ in range(10):
        assert call(driver.cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, driver.CUstream(0), 0, 0) == []
    call(driver.cuCtxSynchronize)
    print("done")
