"""The sum is the very one that is made without masks, whoever drops out and when; or there is none, by name."""

from __future__ import annotations

import itertools
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.secure_aggregation.federation import LARGEST, RUN, SPEC, STEPS, Federation, names, run, update

from fedloop_core.arrays import ArraySpec
from fedloop_core.errors import SecureAggregationRefused
from fedloop_core.secure_aggregation.identity import Instance, least_threshold
from fedloop_core.secure_aggregation.messages import MaskedInput
from fedloop_server.secure_aggregation.machine import SecureSum, Stage


def stages_left(silent: dict[str, Stage], count: int) -> Stage | None:
    """The stage at which too few are left, None when the sum comes about."""
    left = count - sum(stage is Stage.KEYS for stage in silent.values())
    threshold = least_threshold(left) if left else 0
    if left < 3:
        return Stage.KEYS
    for stage in STEPS[1:]:
        left -= sum(at is stage for at in silent.values())
        if left < max(threshold, 3):
            return stage
    return None


def check(federation: Federation, silent: dict[str, Stage], number: int) -> SecureSum | None:
    round_ = federation.coordinator(Instance(RUN, 1, number))
    ends = stages_left(silent, federation.count)
    if ends is not None:
        with pytest.raises(SecureAggregationRefused) as refused:
            run(federation, round_, silent=silent)
        assert refused.value.fields["reason"] == "survivors"
        assert {dropped.site for dropped in round_.dropped} == {s for s, at in silent.items() if at <= ends}
        return None
    summed = run(federation, round_, silent=silent)
    assert summed is not None
    late = (Stage.SURVIVORS, Stage.UNMASKING)
    assert summed.survivors == tuple(s for s in federation.keys if silent.get(s, Stage.OVER) in (*late, Stage.OVER))
    assert {d.site: d.stage for d in summed.dropped} == silent
    assert {d.reason for d in summed.dropped} <= {"silent"}
    same_model(federation, summed)
    return summed


def same_model(federation: Federation, summed: SecureSum) -> None:
    """To the bit the model that follows without masks."""
    masked, plain = federation.empty(), federation.plain(summed.survivors)
    masked.add_whole(summed.whole, summed.weight)
    assert masked.weight == plain.weight
    model = {name: np.ones(shape, np.float32) for name, shape in zip(SPEC.names, SPEC.shapes, strict=True)}
    expected = plain.moved(model, 0.5)
    for name, array in masked.moved(model, 0.5).items():
        assert array.tobytes() == expected[name].tobytes()


def patterns(count: int) -> list[tuple[Stage, ...]]:
    """For each site the stage at which it goes silent, or OVER. Of more than three, which is alike, in an order that varies."""
    ways = (*STEPS, Stage.OVER)
    if count == 3:
        return list(itertools.product(ways, repeat=3))
    return list(itertools.combinations_with_replacement(ways, count))


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_the_sum_is_the_plain_one_for_every_way_of_dropping_out(count: int) -> None:
    summed = 0
    for at, pattern in enumerate(patterns(count)):
        federation = Federation(count)
        order = np.random.default_rng(at).permutation(count)
        silent = {names(count)[site]: stage for site, stage in zip(order, pattern, strict=True) if stage < Stage.OVER}
        summed += check(federation, silent, 1) is not None
    assert summed == {3: 1, 4: 6, 5: 11, 6: 16}[count]


@settings(max_examples=15, deadline=None)
@given(data=st.data(), count=st.integers(7, 12))
def test_the_sum_is_the_plain_one_for_more_sites(data: st.DataObject, count: int) -> None:
    federation = Federation(count)
    dropping = data.draw(st.lists(st.sampled_from(names(count)), unique=True, max_size=count // 2))
    check(federation, {site: data.draw(st.sampled_from(STEPS)) for site in dropping}, data.draw(st.integers(1, 9)))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_values_and_weights_wrap_round_and_come_back(sign: float) -> None:
    spec = ArraySpec(("x",), ((1,),), ("float32",))
    federation = Federation(4, spec)
    federation.weights = dict.fromkeys(federation.keys, 2**40)
    federation.updates = {site: {"x": np.array([sign * LARGEST], np.float32)} for site in federation.keys}
    summed = run(federation, federation.coordinator(Instance(RUN, 1, 1)))
    assert summed is not None
    masked, plain = federation.empty(), federation.plain(summed.survivors)
    masked.add_whole(summed.whole, summed.weight)
    assert summed.weight == 2**42
    assert abs(int(summed.whole[0])) > 2**60
    assert masked.mean()["x"].tobytes() == plain.mean()["x"].tobytes()
    assert masked.mean()["x"][0] == sign * LARGEST


def test_wide_values_are_masked_as_they_are_summed() -> None:
    spec = ArraySpec(("gradient", "hessian"), ((3,), (3, 3)), ("float64", "float64"))
    federation = Federation(5, spec)
    summed = run(federation, federation.coordinator(Instance(RUN, 1, 1)), silent={"site-03": Stage.INPUTS})
    assert summed is not None
    masked, plain = federation.empty(), federation.plain(summed.survivors)
    masked.add_whole(summed.whole, summed.weight)
    for name, array in masked.sum().items():
        assert array.tobytes() == plain.sum()[name].tobytes()


def test_keys_of_the_next_round_can_be_told_before_this_one_is_unmasked() -> None:
    federation = Federation(4)
    this, following = (federation.coordinator(Instance(RUN, number, 1)) for number in (1, 2))
    run(federation, this, until=Stage.UNMASKING)
    for site, question in following.ask_keys().items():
        following.take_keys(site, federation.machines[site].advertise(question))
    for site, unmask in this.ask_unmasking().items():
        this.take_unmasking(site, federation.machines[site].unmask(unmask))
    assert this.sum().weight == federation.total_weight
    federation.updates = {site: update(at + 50) for at, site in enumerate(federation.keys)}
    for site, share in following.ask_shares(federation.goal()).items():
        following.take_shares(site, federation.machines[site].share_keys(share, federation.expected(site)))
    for site, mask in following.ask_inputs().items():
        machine = federation.machines[site]
        following.take_input(site, machine.mask(mask, federation.found(site)))
    assert following.ask_survivors()


def test_a_round_is_tried_again_when_it_was_given_up() -> None:
    federation = Federation(4)
    with pytest.raises(SecureAggregationRefused):
        run(federation, federation.coordinator(Instance(RUN, 1, 1)), silent=dict.fromkeys(names(2), Stage.INPUTS))
    summed = run(federation, federation.coordinator(Instance(RUN, 1, 2)))
    assert summed is not None
    assert summed.survivors == tuple(names(4))
    with pytest.raises(SecureAggregationRefused) as refused:
        run(federation, federation.coordinator(Instance(RUN, 1, 3)))
    assert refused.value.fields["reason"] == "survivors"  # every site has released: none begins another


def test_a_vector_is_let_go_when_it_was_folded() -> None:
    federation = Federation(4)
    round_ = federation.coordinator(Instance(RUN, 1, 1))
    run(federation, round_, until=Stage.INPUTS)
    for site, question in round_.ask_inputs().items():
        answer = federation.answer(site, question)
        assert isinstance(answer, MaskedInput)
        copied = MaskedInput(answer.instance, answer.masked.copy())
        kept = weakref.ref(copied.masked)
        round_.take_input(site, copied)
        del copied
        assert kept() is None
