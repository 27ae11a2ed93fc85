"""Rotation: its steps, and that every API server trusts every replica at each of them."""

from __future__ import annotations

import dataclasses
import datetime

import pytest
from cryptography import x509

from webhook.certificates import rotation
from webhook.certificates.rotation import SPREAD, Certificates, RotationStep

NAMES = ("gpushare-webhook.gpushare-system.svc", "127.0.0.1")
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def made(now: datetime.datetime = START) -> Certificates:
    return rotation.apply_step(RotationStep.START, None, NAMES, now=now)


def loaded(text: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(text.encode())


def is_trusted(held: Certificates, serving: str, now: datetime.datetime) -> bool:
    certificate = loaded(serving)
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
        return False
    for text in held.trusted:
        authority = loaded(text)
        try:
            certificate.verify_directly_issued_by(authority)
        except Exception:  # noqa: S112
            continue
        return authority.not_valid_before_utc <= now < authority.not_valid_after_utc
    return False


def test_first_start_creates_all_certificates() -> None:
    assert rotation.next_step(None, NAMES, now=START) is RotationStep.START
    held = made()
    assert rotation.next_step(held, NAMES, now=START) is RotationStep.KEEP
    names = loaded(held.serving).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAMES[0]]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == [NAMES[1]]


@pytest.mark.parametrize(
    "spoiled",
    [
        pytest.param(dataclasses.replace(made(), authority_key=made().authority_key), id="another-authority's-key"),
        pytest.param(dataclasses.replace(made(), serving_key=made().serving_key), id="another-serving-key"),
        pytest.param(dataclasses.replace(made(), trusted=made().trusted), id="another-authority"),
        pytest.param(dataclasses.replace(made(), trusted=()), id="no-authority"),
        pytest.param(dataclasses.replace(made(), serving="nonsense"), id="nonsense"),
    ],
)
def test_mismatched_certificates_are_reissued(spoiled: Certificates) -> None:
    assert rotation.next_step(spoiled, NAMES, now=START) is RotationStep.START


@pytest.mark.parametrize(
    ("days", "step"),
    [
        (0, RotationStep.KEEP),
        (59, RotationStep.KEEP),
        (61, RotationStep.ISSUE),
        (244, RotationStep.TRUST_NEW_AUTHORITY),
    ],
)
def test_certificates_are_renewed_with_a_third_of_their_life_left(days: int, step: RotationStep) -> None:
    now = START + days * DAY
    held = made()
    if step is RotationStep.TRUST_NEW_AUTHORITY:
        held = rotation.apply_step(RotationStep.ISSUE, held, NAMES, now=now)
    assert rotation.next_step(held, NAMES, now=now) is step


@pytest.mark.parametrize("hours", [-14, -1, 1, 14])
def test_clock_that_is_hours_off_causes_no_reissue(hours: int) -> None:
    held = made(START + datetime.timedelta(hours=hours))
    assert rotation.next_step(held, NAMES, now=START) is RotationStep.KEEP
    assert is_trusted(held, held.serving, START)


def test_changed_name_causes_a_new_certificate() -> None:
    assert rotation.next_step(made(), ("elsewhere.svc",), now=START) is RotationStep.ISSUE


def test_certificates_that_expired_years_ago_are_all_reissued() -> None:
    assert rotation.next_step(made(), NAMES, now=START + 400 * DAY) is RotationStep.START


@pytest.mark.slow
def test_three_years_of_rotation_keep_trust() -> None:
    """With two replicas, of which one lags, and an API server that trusts the bundle it got last."""
    held = made()
    replicas, published = [held.serving, held.serving], held
    now, steps = START, set()
    for look in range(3 * 365 * 2):
        now = START + look * DAY / 2
        for _ in range(4):
            step = rotation.next_step(held, NAMES, now=now)
            steps.add(step)
            if step is RotationStep.KEEP:
                break
            held = rotation.apply_step(step, held, NAMES, now=now)
            assert all(is_trusted(published, serving, now) for serving in replicas)
            published = held
            replicas[0] = held.serving
            assert all(is_trusted(published, serving, now) for serving in replicas), step
            now += datetime.timedelta(seconds=1)
        replicas[1] = held.serving
        assert len(held.trusted) <= 2
    assert steps == {
        RotationStep.KEEP,
        RotationStep.ISSUE,
        RotationStep.TRUST_NEW_AUTHORITY,
        RotationStep.FORGET_OLD_AUTHORITIES,
    }


def test_requested_rotation_takes_the_same_three_steps() -> None:
    held = made()
    assert rotation.next_step(held, NAMES, now=START, asked=True) is RotationStep.TRUST_NEW_AUTHORITY
    now = START + DAY
    held = rotation.apply_step(RotationStep.TRUST_NEW_AUTHORITY, held, NAMES, now=now)
    assert rotation.next_step(held, NAMES, now=now) is RotationStep.KEEP
    assert rotation.next_step(held, NAMES, now=now + SPREAD) is RotationStep.ISSUE


def test_rotation_request_waits_for_a_running_rotation() -> None:
    held = rotation.apply_step(RotationStep.TRUST_NEW_AUTHORITY, made(), NAMES, now=START)
    now = START
    for due in (RotationStep.ISSUE, RotationStep.FORGET_OLD_AUTHORITIES, RotationStep.TRUST_NEW_AUTHORITY):
        assert rotation.next_step(held, NAMES, now=now, asked=due is not RotationStep.ISSUE) in {RotationStep.KEEP, due}
        now += SPREAD
        assert rotation.next_step(held, NAMES, now=now, asked=True) is due
        held = rotation.apply_step(due, held, NAMES, now=now)


def test_unusable_certificates_are_reissued_despite_a_request() -> None:
    assert rotation.next_step(None, NAMES, now=START, asked=True) is RotationStep.START


def test_the_time_between_the_steps_can_be_shorter() -> None:
    spread = datetime.timedelta(seconds=15)
    held = rotation.apply_step(RotationStep.TRUST_NEW_AUTHORITY, made(), NAMES, now=START)
    assert rotation.next_step(held, NAMES, now=START + spread / 2, spread=spread) is RotationStep.KEEP
    assert rotation.next_step(held, NAMES, now=START + spread, spread=spread) is RotationStep.ISSUE
    held = rotation.apply_step(RotationStep.ISSUE, held, NAMES, now=START + spread)
    assert rotation.next_step(held, NAMES, now=START + 1.5 * spread, spread=spread) is RotationStep.KEEP
    assert rotation.next_step(held, NAMES, now=START + 2 * spread, spread=spread) is RotationStep.FORGET_OLD_AUTHORITIES


def test_new_authority_issues_only_once_it_is_trusted_everywhere() -> None:
    now = START + 244 * DAY
    held = rotation.apply_step(RotationStep.ISSUE, made(), NAMES, now=now)
    held = rotation.apply_step(RotationStep.TRUST_NEW_AUTHORITY, held, NAMES, now=now)
    assert rotation.next_step(held, NAMES, now=now) is RotationStep.KEEP
    assert rotation.next_step(held, NAMES, now=now + SPREAD) is RotationStep.ISSUE
    held = rotation.apply_step(RotationStep.ISSUE, held, NAMES, now=now + SPREAD)
    assert rotation.next_step(held, NAMES, now=now + SPREAD) is RotationStep.KEEP
    assert rotation.next_step(held, NAMES, now=now + 2 * SPREAD) is RotationStep.FORGET_OLD_AUTHORITIES
