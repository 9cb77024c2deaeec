"""Tasks survive writing and reading, whatever they hold; presets and the starter are sound."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedloop_core.errors import UsageError
from fedloop_core.schema import (
    CategoricalFeature,
    ClassLabel,
    Feature,
    FeatureSchema,
    ImageFeature,
    Label,
    NumericFeature,
    RegressionLabel,
    SignalFeature,
)
from fedloop_core.task.advice import advice_on
from fedloop_core.task.document import (
    CnnModel,
    CustomModel,
    FederatedAveraging,
    LogisticModel,
    MlpModel,
    Model,
    Preprocessing,
    Privacy,
    Rollout,
    Rounds,
    SignalCnnModel,
    Task,
)
from fedloop_core.task.presets import load_preset, preset_names, preset_text, starter_text
from fedloop_core.task.reader import parse_task
from fedloop_core.task.summary import describe

FINITE = st.floats(min_value=-1e30, max_value=1e30)
RANGES = st.tuples(FINITE, FINITE).filter(lambda pair: pair[0] < pair[1])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VOCABULARIES = st.lists(TEXTS, min_size=2, max_size=4, unique=True).map(tuple)
RATES = st.floats(min_value=1e-12, max_value=1e12)


@st.composite
def features(draw: st.DrawFn) -> tuple[Feature, ...]:
    kinds = draw(st.lists(st.sampled_from(["numeric", "categorical", "image", "signal"]), min_size=1, max_size=4))
    found: list[Feature] = []
    for number, kind in enumerate(kinds):
        name = f"f{number}"
        match kind:
            case "numeric":
                found.append(NumericFeature(kind="numeric", name=name, unit=draw(TEXTS), range=draw(RANGES)))
            case "categorical":
                values, other = draw(VOCABULARIES), draw(st.booleans())
                found.append(CategoricalFeature(kind="categorical", name=name, values=values, other=other))
            case "image":
                found.append(ImageFeature(kind="image", name=name, height=draw(st.integers(4, 99)), width=4))
            case _:
                found.append(SignalFeature(kind="signal", name=name, length=8, range=draw(RANGES)))
    return tuple(found)


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    columns = draw(features())
    tensors = [feature.kind for feature in columns if feature.kind in ("image", "signal")]
    model: Model = CustomModel(kind="custom", factory="a.b:c")
    if not tensors:
        plain: list[Model] = [LogisticModel(kind="logistic"), MlpModel(kind="mlp", hidden=(3, 2))]
        model = draw(st.sampled_from(plain))
    elif tensors == ["image"]:
        model = CnnModel(kind="cnn")
    elif tensors == ["signal"]:
        model = SignalCnnModel(kind="signal-cnn")
    labels: st.SearchStrategy[Label] = st.one_of(
        VOCABULARIES.map(lambda classes: ClassLabel(kind="classes", name="y", classes=classes)),
        RANGES.map(lambda bounds: RegressionLabel(kind="regression", name="y", range=bounds)),
    )
    return Task(
        format=1,
        name=draw(st.from_regex(r"\A[a-z][a-z0-9\-]{0,62}\Z")),
        description=draw(TEXTS),
        features=columns,
        label=draw(labels),
        model=model,
        preprocessing=Preprocessing(scaling=draw(st.sampled_from(["range", "federated", "per-site"]))),
        training=FederatedAveraging(algorithm="fedavg", learning_rate=draw(RATES), proximal=draw(RATES)),
        privacy=Privacy(epsilon=draw(RATES | st.just(math.inf)), unit_column=draw(st.none() | TEXTS)),
        rounds=Rounds(count=draw(st.integers(1, 1000)), sites_per_round=draw(st.none() | st.integers(1, 9))),
        rollout=Rollout(waves=(draw(st.floats(0.001, 0.999)), 1.0)),
    )


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(tasks())
def test_canonical_round_trips_and_is_stable(task: Task) -> None:
    again = Task.from_canonical(task.canonical())
    assert again == task
    assert again.canonical() == task.canonical()
    assert again.digest == task.digest
    assert describe(task)
    assert all(warning.endswith(".") for warning in advice_on(task))


def test_the_digest_ignores_comments_and_spacing_and_nothing_else() -> None:
    text = preset_text("heart")
    bare = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert parse_task(text).digest == parse_task(bare.replace(" = ", "=")).digest
    assert parse_task(text).digest != parse_task(text.replace("count = 20", "count = 21")).digest


@pytest.mark.parametrize("name", preset_names())
def test_preset_is_sound_and_named_as_asked(name: str) -> None:
    assert load_preset(name).name == name
    assert parse_task(preset_text(name, task="mine")) == load_preset(name).model_copy(update={"name": "mine"})


def test_presets_protect_privacy_and_the_starter_draws_no_warning() -> None:
    assert {name: load_preset(name).privacy.epsilon for name in preset_names()} == {
        "breast-cancer": 8.0,
        "digits": 8.0,
        "heart": 5.0,
    }
    assert advice_on(parse_task(starter_text("first"))) == ()


def test_an_unknown_preset_is_an_error_that_names_the_known() -> None:
    with pytest.raises(UsageError, match="breast-cancer, digits, heart"):
        load_preset("hearts")


ADVICE = {
    "no privacy": ("epsilon = 8.0", "epsilon = inf", "not protected"),
    "weak privacy": ("epsilon = 8.0", "epsilon = 50", "weak guarantee"),
    "delta guards nothing": ("delta = 1e-5", "delta = 0.2", "guards nothing at a site with 10 rows"),
    "delta high": ("delta = 1e-5", "delta = 0.01", "is high"),
    "rows told": ("count = 10", 'count = 10\nweighting = "rows"', "noised counts"),
    "unit as a feature": ('# unit_column = "patient"', 'unit_column = "age"', "the model would learn it"),
    "scaling for one site": ('scaling = "range"', 'scaling = "per-site"', "cannot be released"),
    "custom model": ('kind = "mlp"', 'kind = "custom"\nfactory = "a:b"', "must be installed"),
    "no evaluation": ("count = 10", "count = 3", "no evaluation during the 3 rounds"),
    "no quorum": ("quorum = 0.5", "quorum = 0", "a single site"),
    "proximal alone": ("local_steps = 10", "local_steps = 1\nproximal = 0.1", "does nothing"),
    "any accuracy": ("minimum_accuracy = 0.6", "minimum_accuracy = 0", "of any accuracy"),
    "no runs": ("maximum_runs = 1", "maximum_runs = 0", "waits for a person"),
}


@pytest.mark.parametrize("case", ADVICE.values(), ids=ADVICE.keys())
def test_what_will_not_work_well_is_said(case: tuple[str, str, str]) -> None:
    old, new, words = case
    text = starter_text("first").replace("hidden = [16]\n", "" if "custom" in new else "hidden = [16]\n")
    assert old in text
    (warning,) = advice_on(parse_task(text.replace(old, new, 1)))
    assert words in warning


def test_a_schema_alone_refuses_a_name_given_twice() -> None:
    age = NumericFeature(kind="numeric", name="age", range=(0.0, 1.0))
    with pytest.raises(ValueError, match="'age' is given twice"):
        FeatureSchema(features=(age, age), label=ClassLabel(kind="classes", name="y", classes=("a", "b")))
