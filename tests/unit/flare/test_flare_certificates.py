"""Certificates that end, are renewed and change their authority; keys that are encrypted at rest."""

from __future__ import annotations

import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import counterflow as cf

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'counterflow[federation]'")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from flare_loopback import World
from typer.testing import CliRunner

from counterflow.cli import app
from counterflow.federation.sites import certificates, keys, letters, members, party
from counterflow.federation.sites.certificates import Participant
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.federation.sites.supervisor import Supervisor


def authority_key(coordinator: CoordinatorFolder) -> RSAPrivateKey:
    return keys.load(coordinator._authority(".key"))


def own_certificate(plant: PlantFolder) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(plant.kit.certificate.read_bytes())


def test_members_have_a_year_and_are_warned(parties: tuple[CoordinatorFolder, PlantFolder]) -> None:
    coordinator, plant = parties
    for site, names in (
        (coordinator, ["the authority", "the server", "the operator", "plant boiler"]),
        (plant, ["plant boiler", "the authority"]),
    ):
        found = site.certificates()
        assert list(found) == names
        for name, end in found.items():
            years = 10 if name == "the authority" else 1
            assert abs((end - datetime.now(UTC)).days - 365 * years) <= 1, name
        assert not any(one["warning"] for one in certificates.lasting(found))
        late = datetime.now(UTC) + timedelta(days=336)
        told = certificates.lasting(found, late)
        assert [one["name"] for one in told if one["warning"]] == [name for name in names if name != "the authority"]
        assert {one["days"] for one in told if one["warning"]} <= {28, 29}
    ended = certificates.lasting({"x": datetime.now(UTC) - timedelta(days=3)})
    assert ended[0]["days"] < 0
    assert ended[0]["warning"]


def test_status_and_start_say_so(
    parties: tuple[CoordinatorFolder, PlantFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "WARNING", 400)
    for site in parties:
        done = CliRunner().invoke(app, ["federation", "status", str(site.folder)])
        assert done.exit_code == 0, done.output
        assert "the certificate of plant boiler ends in 36" in done.output.replace("\n", " ")
        said: list[str] = []
        runs = Supervisor(site, said.append)
        runs._look(site.kit.folder)
        first = len(said)
        assert first >= 1
        runs._look(site.kit.folder)
        assert len(said) == first, "once a day"


def test_a_certificate_is_renewed_and_the_old_one_stays_good(
    parties: tuple[CoordinatorFolder, PlantFolder], tmp_path: Path
) -> None:
    coordinator, plant = parties
    (before,), key = own_certificate(plant), plant.key
    done = CliRunner().invoke(app, ["federation", "renew", str(coordinator.folder), "boiler"])
    assert done.exit_code == 0, done.output
    welcome = coordinator.folder / "approved" / "boiler.welcome"
    both = members.admitted(coordinator.folder / members.FILE)["boiler"]
    assert len(both) == 2
    assert coordinator.plants()["boiler"].certificate == both[-1]
    with party.supervising(plant.folder), pytest.raises(cf.StorageError, match="stop it first"):
        plant.welcome(welcome)
    renewed = plant.welcome(welcome)
    (after,) = own_certificate(renewed)
    assert after.serial_number != before.serial_number
    assert (after.public_key(), renewed.key) == (before.public_key(), key)
    assert PlantFolder.open(plant.folder) == renewed
    coordinator.renew(["boiler"])
    again = members.admitted(coordinator.folder / members.FILE)["boiler"]
    assert (len(again), again[0]) == (2, both[-1]), "the one before the last is out"
    coordinator.renew()
    for name in ("localhost", coordinator.operator):
        assert len(members.admitted(coordinator.folder / members.FILE)[name]) == 2
    coordinator.remove("boiler")
    assert "boiler" not in members.admitted(coordinator.folder / members.FILE)


def test_a_new_authority_is_trusted_because_the_old_one_vouches_for_it(
    world: World, parties: tuple[CoordinatorFolder, PlantFolder], tmp_path: Path
) -> None:
    coordinator, plant = parties
    before = coordinator.fingerprint
    done = CliRunner().invoke(app, ["federation", "renew", str(coordinator.folder), "--authority"])
    assert done.exit_code == 0, done.output
    changed = CoordinatorFolder.open(coordinator.folder)
    assert changed.fingerprint != before
    welcome = changed.folder / "approved" / "boiler.welcome"
    assert len(x509.load_pem_x509_certificates(changed.kit.certificate.read_bytes())) == 2
    trusted = certificates.fingerprint(certificates.read(changed.kit.authority))
    assert trusted == before, "until the change is over, certificates of both are good at the server"
    other = CoordinatorFolder.create(tmp_path / "other", "waterworks", "localhost", 8102)
    good = letters.read_welcome(welcome, "boiler")
    (old_key, key), theirs = (authority_key(each) for each in (coordinator, changed)), authority_key(other)
    known, known_elsewhere = certificates.read(plant.kit.authority), certificates.read(other.kit.authority)
    own, authority = map(certificates.from_text, (good.certificate, good.authority))
    leaf = certificates.issue(known, old_key, Participant("boiler", "plant", "x"), key.public_key())
    elsewhere = certificates.vouch(known_elsewhere, theirs, authority)
    for cross in (None, known, known_elsewhere, own, leaf, elsewhere):
        forged = replace(good, cross=certificates.text(cross))
        letters.write(tmp_path / "forged.welcome", forged, key)
        with pytest.raises(cf.StorageError, match="does not vouch"):
            plant.welcome(tmp_path / "forged.welcome")
    moved = plant.welcome(welcome)
    assert moved.fingerprint == changed.fingerprint
    leaf, cross_certificate = own_certificate(moved)
    leaf.verify_directly_issued_by(cross_certificate)
    late = world.asking(tmp_path / "late", "boiler", fingerprint=changed.fingerprint)
    changed.remove("boiler")
    assert len(own_certificate(late.welcome(changed.approve(letters.read_join(late.join_file))))) == 2
    done = CliRunner().invoke(app, ["federation", "renew", str(coordinator.folder), "--finish"])
    assert done.exit_code == 0, done.output
    assert certificates.fingerprint(certificates.read(changed.kit.authority)) == changed.fingerprint
    assert all(len(prints) == 1 for prints in members.admitted(changed.folder / members.FILE).values())
    assert CliRunner().invoke(app, ["federation", "renew", str(coordinator.folder), "--finish"]).exit_code == 2


def test_a_change_of_authority_that_broke_off_goes_on(
    parties: tuple[CoordinatorFolder, PlantFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the new one rules, nothing has changed; after it, the same one goes on."""
    coordinator, plant = parties

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CoordinatorFolder, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            coordinator.succeed()
    assert CoordinatorFolder.open(coordinator.folder) == coordinator
    changed = coordinator.succeed()
    assert CoordinatorFolder.open(coordinator.folder).succeed() == changed
    assert plant.welcome(changed.renew()["boiler"]).fingerprint == changed.fingerprint != coordinator.fingerprint


def test_encrypted_keys_are_plain_in_memory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "passphrase"
    secret.touch(0o600)
    secret.write_text("a long enough passphrase\n")
    monkeypatch.setenv(keys.VARIABLE, str(secret))
    world = World(tmp_path / "world")
    coordinator, plant = world.coordinator, PlantFolder.open(world.root / "boiler")
    plant = plant.welcome(coordinator.approve(letters.read_join(plant.join_file)))
    assert not list((tmp_path / "world").rglob("*.key"))
    locked = sorted((tmp_path / "world").rglob(f"*.key{keys.ENCRYPTED}"))
    assert len(locked) == 5
    for place in locked:
        assert b"ENCRYPTED PRIVATE KEY" in place.read_bytes()
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
    for party_of in (coordinator, plant):
        with keys.unlocked(*party_of.key_files):
            for key in party_of.key_files:
                assert b"BEGIN PRIVATE KEY" in key.read_bytes()
                assert str(key.readlink()).startswith("/proc/")
        assert not any(key.is_symlink() for key in party_of.key_files)
    plant = plant.welcome(coordinator.succeed().renew()["boiler"])
    assert not list((tmp_path / "world").rglob("*.key"))
    assert plant.key == coordinator.plants()["boiler"].key

    monkeypatch.delenv(keys.VARIABLE)
    assert plant.key, "status needs no secret"
    with pytest.raises(cf.OptionError) as caught, keys.unlocked(*plant.key_files):
        pass
    assert caught.value.code == "passphrase"
    monkeypatch.setenv(keys.VARIABLE, str(secret))
    secret.write_text("another passphrase\n")
    with pytest.raises(cf.OptionError) as caught, keys.unlocked(*plant.key_files):
        pass
    assert caught.value.code == "passphrase"
    secret.chmod(0o644)
    with pytest.raises(cf.OptionError) as caught:
        keys.passphrase()
    assert caught.value.code == "passphrase"
