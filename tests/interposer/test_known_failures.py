"""Lists known failures of GPU sharing by preloaded libraries, and the tests that would find them here.

The symptoms come from users of such libraries. Each has tests that guard against it, or a reason why it cannot occur.
"""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.interposer.container import ROOT

TESTS: Final = ROOT / "tests"

# Maps symptoms to tests, as FILE::NAME below tests/.
GUARDED: Final[dict[str, tuple[str, ...]]] = {
    "two shares that request 30 and 70 percent get the same time": (
        "deviceplugin/arbiter/test_real_leases.py::test_two_shares_split_the_gpu_as_they_asked",
        "deviceplugin/arbiter/test_lease_scheduler.py::test_busy_shares_get_their_part_within_half_a_point",
        "gpu/test_shares.py::test_two_tenants_get_their_requests",
    ),
    "programs that wait for each launch are not limited": (
        "deviceplugin/arbiter/test_real_leases.py::test_two_shares_split_the_gpu_as_they_asked",
    ),
    "a limit is not enforced while no other share uses the GPU": (
        "deviceplugin/arbiter/test_real_leases.py::test_a_limit_is_kept_when_alone",
        "gpu/test_shares.py::test_a_limit_holds_for_a_tenant_alone",
    ),
    "with several GPUs, the utilization of the first one decides for all": (
        "interposer/test_launches.py::test_each_gpu_has_its_own_gate",
        "deviceplugin/arbiter/test_leases.py::test_a_gpu_unused_by_a_share_of_two_serves_others_meanwhile",
    ),
    "graphs, cooperative launches, cuLaunchKernelEx and per-thread streams bypass the limit": (
        "interposer/test_launches.py::test_no_launch_passes_without_a_lease",
    ),
    "a capture fails, or a program crashes during a capture": (
        "interposer/test_captures.py::test_capture_survives_the_end_of_a_lease",
    ),
    "programs with collectives over two GPUs hang": (
        "deviceplugin/arbiter/test_lease_scheduler.py::test_two_shares_that_need_two_gpus_at_once_both_make_progress",
        "deviceplugin/arbiter/test_lease_scheduler.py::test_a_share_that_never_gives_back_delays_others_only_briefly",
    ),
    "processes start one after another and need a third of a second each": (
        "interposer/test_programs.py::test_many_processes_of_a_container_start_at_once",
    ),
    "after a process is killed while it holds a lock, others wait for minutes and then run without limits": (
        "interposer/test_processes.py::test_racing_processes_never_exceed_the_limit",
        "interposer/test_processes.py::test_memory_of_a_killed_process_is_free_for_the_next",
        "interposer/test_every_instruction.py::test_program_killed_at_any_instruction_is_charged_for_what_it_held",
        "deviceplugin/arbiter/test_real_leases.py::test_a_process_killed_or_stopped_with_the_lease_delays_no_other",
    ),
    "memory of dead processes stays counted": (
        "interposer/test_programs.py::test_programs_leave_nothing_behind_however_they_end",
        "deviceplugin/arbiter/test_restart.py::test_a_process_that_died_while_no_agent_ran_is_cleared",
    ),
    "the memory in use becomes negative": (
        "interposer/test_memory_limit.py::test_failed_free_refunds_nothing",
        "interposer/test_table.py::test_table_agrees_with_a_dictionary",
        "interposer/test_quota.py::test_charge_without_races_is_granted_exactly_if_it_fits",
    ),
    "the limit of another GPU applies, because numbers and UUIDs have different orders": (
        "interposer/test_devices.py::test_limits_follow_the_gpu_and_not_its_number",
        "interposer/test_devices.py::test_share_of_a_mig_device_has_the_limit_of_that_device",
    ),
    "containers without root crash": ("interposer/test_programs.py::test_program_of_another_user_has_its_share",),
    "cuMemCreate without a context, or for host memory, writes out of bounds": (
        "interposer/test_contexts.py::test_physical_memory_can_be_created_without_a_context",
    ),
    "some kinds of allocations are not counted": (
        "interposer/test_memory_limit.py::test_one_byte_above_the_limit_is_refused",
        "interposer/test_headers.py::test_every_function_is_hooked_or_excused",
        "interposer/test_contexts.py::test_memory_is_counted_in_every_kind_of_context",
    ),
    "profilers hang, because a nested dlsym returns NULL": (
        "interposer/test_loader.py::test_preloaded_library_that_wraps_dlsym_stays_in_the_chain",
    ),
    "programs crash at start, because dlsym allocates while the allocator looks up its functions": (
        "interposer/test_loader.py::test_preloaded_library_that_replaces_malloc_and_dlopen_works",
    ),
    "programs with a sanitizer crash at start, because it calls dlsym for its functions": (
        "interposer/test_loader.py::test_programs_with_a_sanitizer_run_as_usual",
    ),
    "a forked child hangs on a lock that another thread held": (
        "interposer/test_programs.py::test_forked_children_do_not_wait_for_the_parents_locks",
    ),
    "per-thread default streams become the legacy stream": (
        "interposer/test_loader.py::test_every_variant_of_a_function_has_its_own_hook",
    ),
    "all programs of the container fail, because the library needs the driver or a newer glibc": (
        "interposer/test_binary.py::test_library_needs_only_libc",
        "interposer/test_binary.py::test_library_runs_on_old_glibc",
    ),
    "an environment variable lifts the limit": (
        "interposer/test_binary.py::test_library_does_not_read_the_environment",
        "interposer/test_programs.py::test_preload_file_covers_setuid_programs",
    ),
    "without its daemon the library allows everything": (
        "interposer/test_failing_closed.py::test_cuda_does_not_start_without_an_arbiter",
    ),
}

# Maps symptoms to the reason why they cannot occur.
ABSENT: Final = {
    "NVML's utilization is missing or late, and the limiter oscillates or turns itself off": (
        "NVML's utilization decides nothing here: the time with the lease is charged"
    ),
    "limits depend on the number of blocks and multiprocessors": "time is measured, and launches are not weighted by their size",
    "oversubscription with managed memory thrashes, or breaks programs that cannot use it": (
        "allocations are passed on unchanged; there is no oversubscription"
    ),
    "the process ID outside the container must be guessed": ("the kernel gives it to the arbiter with the connection"),
    "a hang with one driver version, for an unknown reason": (
        "only functions of the driver's headers are used; tests/gpu checks new drivers"
    ),
}


@pytest.mark.parametrize("symptom", GUARDED)
def test_tests_that_guard_against_each_symptom_exist(symptom: str) -> None:
    assert GUARDED[symptom]
    for guard in GUARDED[symptom]:
        file, _, name = guard.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE), guard


def test_symptoms_without_a_test_have_a_reason() -> None:
    assert all(reason for reason in ABSENT.values())
    assert not set(ABSENT) & set(GUARDED)
