"""What is known to fail where GPUs are shared by a preloaded library, and what here would fail first.

Gathered from what users of such libraries report. Each symptom has the tests that guard against it, or the reason why it
cannot happen here.
"""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.interposer.container import ROOT

TESTS: Final = ROOT / "tests"

# Symptom: tests, as FILE::NAME below tests/.
GUARDED: Final[dict[str, tuple[str, ...]]] = {
    "two shares that asked for 30 and 70 get the same": (
        "deviceplugin/arbiter/test_real_leases.py::test_two_shares_split_the_gpu_as_they_asked",
        "deviceplugin/arbiter/test_lease_scheduler.py::test_busy_shares_get_their_part_within_half_a_point",
        "gpu/test_shares.py::test_two_tenants_get_what_they_asked_for",
    ),
    "loops that wait for every step are never held back": (
        "deviceplugin/arbiter/test_real_leases.py::test_two_shares_split_the_gpu_as_they_asked",
    ),
    "a limit does not hold while nobody else uses the GPU": (
        "deviceplugin/arbiter/test_real_leases.py::test_a_limit_is_kept_when_alone",
        "gpu/test_shares.py::test_a_limit_is_kept_when_alone",
    ),
    "with several GPUs, the first one's use decides for all": (
        "interposer/test_launches.py::test_gates_of_two_gpus_are_two",
        "deviceplugin/arbiter/test_leases.py::test_a_gpu_unused_by_a_share_of_two_serves_others_meanwhile",
    ),
    "graphs, cooperative launches, cuLaunchKernelEx and per-thread streams pass the limit": (
        "interposer/test_launches.py::test_no_launch_passes_without_a_lease",
    ),
    "a capture breaks, or a program crashes while it captures": (
        "interposer/test_captures.py::test_a_capture_survives_the_end_of_a_lease",
    ),
    "programs with collectives over two GPUs stop for ever": (
        "deviceplugin/arbiter/test_lease_scheduler.py::test_two_shares_that_need_two_gpus_at_once_both_make_progress",
        "deviceplugin/arbiter/test_lease_scheduler.py::test_a_share_that_never_gives_back_delays_others_only_briefly",
    ),
    "each process takes a third of a second to start, one after another": (
        "interposer/test_programs.py::test_many_processes_of_a_container_start_at_once",
    ),
    "who is killed with a lock makes others wait for minutes, and then run without limits": (
        "interposer/test_processes.py::test_processes_that_race_never_exceed_the_limit_together",
        "interposer/test_processes.py::test_a_killed_process_holds_nothing_when_another_asks",
        "interposer/test_every_instruction.py::test_at_no_instruction_more_is_held_than_charged_wherever_it_is_killed",
        "deviceplugin/arbiter/test_real_leases.py::test_a_process_killed_or_stopped_with_the_lease_delays_no_other",
    ),
    "what dead processes held stays counted": (
        "interposer/test_programs.py::test_programs_that_end_in_every_way_leave_nothing_behind",
        "deviceplugin/arbiter/test_restart.py::test_a_process_that_died_while_no_agent_ran_is_cleared",
    ),
    "the memory in use goes below zero": (
        "interposer/test_memory_limit.py::test_a_free_that_fails_gives_nothing_back",
        "interposer/test_table.py::test_it_agrees_with_a_dictionary",
        "interposer/test_quota.py::test_alone_a_charge_is_granted_exactly_when_it_fits",
    ),
    "the limit of another GPU applies, because numbers and UUIDs are ordered differently": (
        "interposer/test_devices.py::test_limits_follow_the_gpu_and_not_its_number",
        "interposer/test_devices.py::test_a_share_of_a_mig_device_has_the_limit_of_that_device",
    ),
    "containers that do not run as root crash": (
        "interposer/test_programs.py::test_a_program_of_another_user_has_its_share",
    ),
    "cuMemCreate before there is a context, or of memory of the host, writes out of bounds": (
        "interposer/test_contexts.py::test_physical_memory_needs_no_context",
    ),
    "some ways to allocate are not counted": (
        "interposer/test_memory_limit.py::test_the_byte_above_the_limit_is_refused",
        "interposer/test_headers.py::test_every_function_is_hooked_or_excused",
        "interposer/test_contexts.py::test_memory_of_a_context_is_counted_however_it_was_made",
    ),
    "profilers hang, because dlsym answers a second question with nothing": (
        "interposer/test_loader.py::test_another_preloaded_library_that_wraps_dlsym_stays_in_the_chain",
    ),
    "programs crash as they start, because dlsym allocates while the allocator looks for its functions": (
        "interposer/test_loader.py::test_another_preloaded_library_that_replaces_malloc_and_dlopen_works_as_ever",
    ),
    "programs with a sanitizer crash as they start, because it asks dlsym for its own functions": (
        "interposer/test_loader.py::test_programs_with_a_sanitizer_which_replaces_what_the_library_calls_run_as_ever",
    ),
    "the child of a fork waits for ever for a lock that another thread had": (
        "interposer/test_programs.py::test_children_of_a_busy_program_wait_for_no_lock_of_its_threads",
    ),
    "per-thread default streams become the legacy stream": (
        "interposer/test_loader.py::test_every_form_of_a_function_has_its_own_hook",
    ),
    "every program of the container fails, because the library needs the driver or a newer glibc": (
        "interposer/test_binary.py::test_it_needs_libc_and_nothing_else",
        "interposer/test_binary.py::test_it_runs_on_old_glibc",
    ),
    "a variable of the container lifts the limit": (
        "interposer/test_binary.py::test_nothing_is_read_from_the_environment",
        "interposer/test_programs.py::test_the_loaders_file_reaches_programs_that_run_as_another_user",
    ),
    "without its daemon the library lets everything pass": (
        "interposer/test_failing_closed.py::test_without_an_arbiter_cuda_does_not_start",
    ),
}

# Symptom: why it cannot happen here.
ABSENT: Final = {
    "utilisation of NVML is missing or late, and the limiter swings or switches itself off": (
        "nothing here is decided by NVML's utilisation: what is charged is the time for which the lease was held"
    ),
    "limits depend on the number of blocks and multiprocessors": "launches are not weighed by their size, time is measured",
    "memory that is oversubscribed by managed memory thrashes, or breaks what cannot be managed": (
        "allocations are passed on as they are; there is no oversubscription"
    ),
    "the process's number outside the container must be guessed": (
        "the arbiter has it from the kernel with the connection"
    ),
    "a hang with one version of the driver, whose cause nobody has told": (
        "nothing of the driver's internals is used, only functions of its headers; tests/gpu tells on a new driver"
    ),
}


@pytest.mark.parametrize("symptom", GUARDED)
def test_what_guards_against_it_is_there(symptom: str) -> None:
    assert GUARDED[symptom]
    for guard in GUARDED[symptom]:
        file, _, name = guard.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE), guard


def test_what_cannot_happen_has_its_reason() -> None:
    assert all(reason for reason in ABSENT.values())
    assert not set(ABSENT) & set(GUARDED)
