"""The library's primitives as they are used here: published answers, and what the masks and shares tell."""

from __future__ import annotations

import hashlib
import hmac
import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from scipy.stats import chi2
from tests.secure_aggregation.federation import RUN, Federation, names, run

from fedloop_core.arrays import ArraySpec
from fedloop_core.secure_aggregation.agreement import KeyPair, pair_key
from fedloop_core.secure_aggregation.identity import Instance, least_threshold
from fedloop_core.secure_aggregation.masks import MaskStream
from fedloop_core.secure_aggregation.messages import MaskedInput, MaskInput
from fedloop_core.secure_aggregation.sharing import join_shares, split_secret
from fedloop_core.secure_aggregation.transcript import labelled
from fedloop_server.secure_aggregation.machine import Stage

LEAST_PROBABILITY = 1e-6
_ALICE = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"  # RFC 7748, 6.1
_BOB = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
AT = Instance(RUN, 1, 1)


def uniform(values: np.ndarray, kinds: int) -> bool:
    """Pearson's test that each of ``kinds`` values comes equally often."""
    counts = np.bincount(values, minlength=kinds)
    expected = len(values) / kinds
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), kinds - 1)) > LEAST_PROBABILITY


def test_x25519_is_rfc_7748_and_what_follows_is_hkdf_of_its_secret() -> None:
    alice = KeyPair.from_secret(bytes.fromhex(_ALICE))
    bob = KeyPair.from_secret(bytes.fromhex(_BOB))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    salt, info = b"transcript", labelled("test")
    extracted = hmac.new(salt, shared, hashlib.sha256).digest()
    expanded = hmac.new(extracted, info + b"\1", hashlib.sha256).digest()
    for own, peer in ((alice, bob), (bob, alice)):
        assert own.derive(peer.public, salt=salt, info=info, site="site") == expanded


def test_hkdf_is_rfc_5869() -> None:
    made = HKDF(SHA256(), 42, bytes(range(13)), bytes(range(0xF0, 0xFA))).derive(b"\x0b" * 22)
    assert made.hex() == ("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865")


def test_masks_are_the_key_stream_of_rfc_8439() -> None:
    vector = np.zeros(8, dtype=np.uint64)
    MaskStream().apply(bytes(32), vector, add=True)
    assert vector.astype("<u8").tobytes().hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )


@pytest.mark.parametrize("values", [1, 131_071, 131_072, 131_073, 300_001])
def test_a_mask_is_one_stream_whatever_the_pieces_and_comes_off_again(values: int) -> None:
    key, stream = bytes(range(32)), MaskStream()
    start = np.arange(values, dtype=np.uint64)
    vector = start.copy()
    stream.apply(key, vector, add=True)
    whole = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * values))
    assert (vector == start + np.frombuffer(whole, "<u8")).all()
    stream.apply(key, vector, add=False)
    assert (vector == start).all()


def test_channels_are_rfc_8439() -> None:
    plain = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
        b"sunscreen would be it."
    )
    key, nonce = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647")
    sealed = ChaCha20Poly1305(key).encrypt(nonce, plain, bytes.fromhex("50515253c0c1c2c3c4c5c6c7"))
    assert sealed[:16].hex() == "d31a8d34648e60db7b86afbc53ef7ec2"
    assert sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_any_threshold_of_shares_give_a_secret_back(count: int) -> None:
    threshold, secret = least_threshold(count), bytes(range(32))
    shares = split_secret(secret, threshold, count)
    for places in itertools.combinations(range(count), threshold):
        assert join_shares({place: shares[place] for place in places}, threshold) == secret
    with pytest.raises(ValueError):
        join_shares({place: shares[place] for place in range(threshold - 1)}, threshold)


def test_one_share_too_few_fits_every_secret() -> None:
    secret, count = bytes(range(16)), 5
    threshold = least_threshold(count)
    shares = split_secret(secret, threshold, count)
    known = {place: shares[place] for place in range(threshold - 1)}
    secrets_that_fit = {join_shares(known | {4: bytes(15) + bytes([last])}, threshold) for last in range(256)}
    assert len(secrets_that_fit) == 256  # another last share, another secret: each secret has its own


def test_shares_of_any_secret_are_uniform() -> None:
    for secret in (bytes(16), b"\xff" * 16):
        drawn = b"".join(b"".join(split_secret(secret, 3, 4)[:2]) for _ in range(1500))
        assert uniform(np.frombuffer(drawn, np.uint8), 256)


def test_a_masked_vector_is_uniform_in_every_byte_and_two_of_one_update_have_nothing_in_common() -> None:
    spec = ArraySpec(("x",), ((2**16 - 1,),), ("float32",))
    federation = Federation(3, spec)
    federation.updates["site-00"] = {"x": np.zeros(2**16 - 1, np.float32)}
    vectors = []
    for number in (1, 2):
        round_ = federation.coordinator(Instance(RUN, 1, number))
        run(federation, round_, until=Stage.INPUTS)
        question = round_.ask_inputs()["site-00"]
        assert isinstance(question, MaskInput)
        masked = federation.answer("site-00", question)
        assert isinstance(masked, MaskedInput)
        vectors.append(masked.masked)
    for vector in (*vectors, vectors[0] - vectors[1]):
        octets = vector.astype("<u8").view(np.uint8).reshape(-1, 8)
        assert all(uniform(octets[:, at], 256) for at in range(8))
        assert uniform((vector >> np.uint64(54)).astype(np.int64), 1024)  # S3 knew the mask by its top ten bits


def test_s1_s2_keys_of_pairs_have_no_bit_that_stands_still_and_no_two_are_alike() -> None:
    sites, keys = names(2), []
    for number in range(1, 257):
        at = Instance(RUN, 1, number)
        one, other = KeyPair.generate(), KeyPair.generate()
        made = pair_key(one, other.public, members=bytes(32), instance=at, site=sites[0], other=sites[1])
        assert made == pair_key(other, one.public, members=bytes(32), instance=at, site=sites[1], other=sites[0])
        keys.append(made)
    assert len(set(keys)) == 256
    bits = np.unpackbits(np.frombuffer(b"".join(keys), np.uint8)).reshape(256, 256).sum(axis=0)
    assert bits.min() > 80
    assert bits.max() < 176


def test_what_is_hashed_cannot_be_cut_otherwise() -> None:
    assert labelled("a", "bc", b"d") != labelled("a", "b", b"cd")
    assert labelled("ab", "c") != labelled("a", "bc")
    assert labelled("a", 1) != labelled("a", 1.0)
