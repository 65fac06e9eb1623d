import json
import math
import re

import pytest

from gpldla.classifier.shipped import MODELS
from gpldla.heads import create_head, head_options, list_heads
from gpldla.training.recipe import (
    HeadSettings,
    Recipe,
    flatten,
    list_recipes,
    make_recipe,
    parse_override,
    read_recipe,
    setting_types,
    stored_settings,
)
from gpldla.training.setting_names import current_command
from gpldla.utils.errors import UserError


class TestSettings:
    def test_nothing_given_means_the_defaults(self):
        assert make_recipe({}) == Recipe()

    def test_given_settings_are_taken(self):
        recipe = make_recipe({"ways": 7, "learning_rate": 0.5, "separate_groups": True, "dataset": "digits"})
        assert (recipe.ways, recipe.learning_rate, recipe.separate_groups) == (7, 0.5, True)
        assert recipe.dataset == "digits"

    def test_a_whole_number_will_do_for_a_float(self):
        rate = make_recipe({"learning_rate": 1}).learning_rate
        assert rate == 1.0
        assert isinstance(rate, float)

    @pytest.mark.parametrize(
        ("wrong", "nearest"),
        [
            ("learning_rat", "learning_rate"),
            ("way", "ways"),
            ("head_learning_rats", "head_learning_rate"),
            ("head.nam", "head.name"),
            ("base.epoch", "base.epochs"),
            ("head.n_sample", "head.n_samples"),
            ("validation.episode", "validation.episodes"),
        ],
    )
    def test_an_unknown_key_suggests_the_nearest(self, wrong, nearest):
        with pytest.raises(
            UserError, match=rf"There is no recipe setting '{re.escape(wrong)}'.*did you mean '{nearest}'\?"
        ):
            make_recipe({wrong: 1})

    @pytest.mark.parametrize(
        ("key", "value", "kind"),
        [
            ("ways", True, "int"),
            ("ways", 5.0, "int"),
            ("ways", "5", "int"),
            ("seed", None, "int"),
            ("learning_rate", "fast", "float"),
            ("learning_rate", False, "float"),
            ("separate_groups", 1, "bool"),
            ("separate_groups", "true", "bool"),
            ("dataset", 3, "str"),
            ("head.name", 3, "str"),
            ("backbone", ["conv4"], "str"),
            ("head.n_samples", "ten", "int"),
            ("head.n_samples", 2.5, "int"),
            ("head.normalize", "no", "bool"),
            ("head.beta", "big", "float"),
        ],
    )
    def test_a_wrong_type_is_named(self, key, value, kind):
        with pytest.raises(
            UserError, match=rf"Recipe setting {re.escape(key)} = .* must be of type {kind}\."
        ):
            make_recipe({key: value})

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("episodes", 0),
            ("episodes_per_update", 0),
            ("folds", 0),
            ("folds", 18),
            ("log_every", -1),
            ("checkpoint_every", 0),
            ("decay_every", 0),
            ("learning_rate", 0.0),
            ("learning_rate", math.inf),
            ("head_learning_rate", math.nan),
            ("decay_factor", -1.0),
            ("validation.episodes", 1),
            ("validation.temperature_episodes", 0),
            ("validation.every", -1),
            ("ema", 1.0),
            ("ema", -0.1),
            ("ema", math.nan),
            ("seed", 2**70),
            ("schedule", "linear"),
            ("augment", "letters"),
            ("precision", "16-mixed"),
            ("smallest_crop", 0.0),
            ("smallest_crop", 1.1),
            ("zoom", 0.9),
            ("zoom", 2.1),
            ("zoom", math.nan),
            ("colour_jitter", -0.1),
            ("colour_jitter", math.nan),
        ],
    )
    def test_an_impossible_value_is_named(self, key, value):
        with pytest.raises(UserError, match=f"Recipe setting {key}( = .*)? must be "):
            make_recipe({key: value})

    def test_folds_would_mix_groups(self):
        with pytest.raises(UserError, match="Recipe setting folds = 2 must be 1 with separate_groups"):
            make_recipe({"folds": 2, "separate_groups": True})

    def test_the_settings_of_a_recipe_make_the_same_one_again(self):
        recipe = make_recipe({"ways": 7, "head.n_samples": 3, "head.priors": [0.5, 0.5]})
        assert make_recipe(recipe.as_dict()) == recipe
        assert make_recipe(flatten(recipe.as_dict())) == recipe
        assert make_recipe(json.loads(json.dumps(recipe.as_dict()))) == recipe


class TestHeadOptions:
    def test_go_to_the_head(self):
        recipe = make_recipe({"head.n_samples": 3, "head.beta": 2, "head.predictive": "probit"})
        assert recipe.head.options == {"n_samples": 3, "beta": 2.0, "predictive": "probit"}
        assert create_head(recipe.head.name, **recipe.head.options).n_samples == 3

    @pytest.mark.parametrize("beta", [2.0, 2, "auto"])
    def test_a_number_may_stand_where_auto_is_the_default(self, beta):
        recipe = make_recipe({"head.name": "gpldla-auto", "head.beta": beta})
        assert recipe.head.options == {"beta": beta}
        create_head(recipe.head.name, 8, **recipe.head.options)

    @pytest.mark.parametrize("option", [{"beta": "much"}, {"normalize": "no"}])
    def test_what_a_head_cannot_be_given_is_a_sentence(self, option):
        with pytest.raises(UserError, match=next(iter(option))):
            create_head("gpldla-auto", 8, **option)

    def test_the_learning_rate_of_the_head_is_no_option_of_it(self):
        recipe = make_recipe({"head_learning_rate": 0.1})
        assert recipe.head_learning_rate == 0.1
        assert recipe.head.options == {}

    def test_options_are_those_of_the_chosen_head(self):
        assert make_recipe({"head.name": "protonet", "head.normalize": True}).head.options == {
            "normalize": True
        }

    @pytest.mark.parametrize("head", ["gpldla", "protonet"])
    def test_an_unknown_one_is_named_with_the_head(self, head):
        with pytest.raises(UserError, match=f"There is no recipe setting 'head.colour' with head '{head}'"):
            make_recipe({"head.name": head, "head.colour": "red"})

    def test_an_option_of_another_head_is_refused(self):
        with pytest.raises(
            UserError, match=r"There is no recipe setting 'head\.n_samples' with head 'protonet'"
        ):
            make_recipe({"head.name": "protonet", "head.n_samples": 3})

    def test_a_recipe_made_in_python_is_checked_too(self):
        with pytest.raises(
            UserError, match=r"Head 'gpldla' has no option 'n_sample'; did you mean 'n_samples'\?"
        ):
            HeadSettings(options={"n_sample": 3})

    def test_an_unknown_head_suggests_the_nearest(self):
        with pytest.raises(UserError, match=r"There is no head 'gplda'; did you mean 'gpldla'\?"):
            make_recipe({"head.name": "gplda"})


class TestReading:
    @pytest.mark.parametrize("name", list_recipes())
    def test_every_shipped_recipe_loads(self, name):
        assert isinstance(read_recipe(name), Recipe)

    def test_the_shipped_recipes(self):
        assert {"demo", "demo-fast", "glyphs"} <= set(list_recipes())

    @pytest.mark.parametrize("file_name", ["own.toml", "own"])
    def test_a_file(self, tmp_path, file_name):
        (tmp_path / file_name).write_text('ways = 3  # three\ndataset = "digits"\n')
        recipe = read_recipe(tmp_path / file_name)
        assert (recipe.ways, recipe.dataset) == (3, "digits")

    def test_overrides_win(self, tmp_path):
        (tmp_path / "own.toml").write_text("ways = 3\nshots = 2\n[head]\nn_samples = 4\n")
        recipe = read_recipe(tmp_path / "own.toml", {"ways": 9, "head.n_samples": 5})
        assert (recipe.ways, recipe.shots, recipe.head.options) == (9, 2, {"n_samples": 5})

    def test_an_unknown_name_suggests_the_nearest(self):
        with pytest.raises(UserError, match=r"There is no recipe 'demos'; did you mean 'demo'\?"):
            read_recipe("demos")

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(UserError, match=f"There is no recipe file {tmp_path / 'none.toml'}."):
            read_recipe(tmp_path / "none.toml")

    @pytest.mark.parametrize(
        "content", [b"ways 5", b"ways = 5\nways = 6", b"\xff\xfe", b"ways = glyphs"], ids=repr
    )
    def test_bad_toml_is_named(self, tmp_path, content):
        (tmp_path / "own.toml").write_bytes(content)
        with pytest.raises(UserError, match=rf"{tmp_path / 'own.toml'} is not readable TOML \(.+\)\."):
            read_recipe(tmp_path / "own.toml")

    def test_a_folder_is_no_recipe(self, tmp_path):
        (tmp_path / "own.toml").mkdir()
        with pytest.raises(UserError, match="is not readable TOML"):
            read_recipe(tmp_path / "own.toml")

    @pytest.mark.parametrize(
        ("content", "name"), [("[head]\nname = 1", "head.name"), ("[episode]\nways = 5", "episode.ways")]
    )
    def test_a_wrong_table_is_named(self, tmp_path, content, name):
        (tmp_path / "own.toml").write_text(content)
        with pytest.raises(UserError, match=f"ecipe setting '?{name}"):
            read_recipe(tmp_path / "own.toml")


class TestOverrides:
    @pytest.mark.parametrize(
        ("text", "key", "value"),
        [
            ("ways=5", "ways", 5),
            (" ways = 5 ", "ways", 5),
            ("learning_rate=1e-3", "learning_rate", 0.001),
            ("separate_groups=true", "separate_groups", True),
            ("dataset=glyphs", "dataset", "glyphs"),
            ("dataset=glyphs-digits", "dataset", "glyphs-digits"),
            ('dataset="glyphs"', "dataset", "glyphs"),
            ("head.priors=[0.5, 0.5]", "head.priors", [0.5, 0.5]),
            ("precision=32-true", "precision", "32-true"),
            ("dataset=a=b", "dataset", "a=b"),
            ("dataset=", "dataset", ""),
        ],
    )
    def test_forms(self, text, key, value):
        parsed_key, parsed = parse_override(text)
        assert (parsed_key, parsed) == (key, value)
        assert type(parsed) is type(value)

    @pytest.mark.parametrize("text", ["ways", "=5", " = 5", ""])
    def test_what_is_no_override_is_named(self, text):
        with pytest.raises(UserError, match=f"{text!r} is not an override; write key=value."):
            parse_override(text)


class TestSchedules:
    def test_cosine_goes_from_one_to_zero(self):
        factor = make_recipe({"schedule": "cosine", "episodes": 100}).learning_rate_factor
        assert factor(0) == 1
        assert factor(50) == pytest.approx(0.5)
        assert factor(100) == pytest.approx(0, abs=1e-12)
        assert factor(25) == pytest.approx(0.5 + math.sqrt(0.125))

    def test_cosine_never_rises(self):
        recipe = make_recipe({"schedule": "cosine", "episodes": 100})
        factors = [recipe.learning_rate_factor(episode) for episode in range(130)]
        assert factors == sorted(factors, reverse=True)

    def test_step_halves(self):
        factor = make_recipe({"schedule": "step", "decay_every": 10}).learning_rate_factor
        assert [factor(episode) for episode in (0, 9, 10, 19, 20, 35)] == [1, 1, 0.5, 0.5, 0.25, 0.125]

    def test_step_with_a_factor(self):
        recipe = make_recipe({"schedule": "step", "decay_every": 10, "decay_factor": 0.1})
        assert recipe.learning_rate_factor(20) == pytest.approx(0.01)

    def test_constant_stays(self):
        factor = make_recipe({"schedule": "constant", "episodes": 10}).learning_rate_factor
        assert {factor(episode) for episode in (0, 5, 10, 1000)} == {1.0}


def test_another_head_does_without_the_options_of_the_recipes():
    assert read_recipe("omniglot-emnist").head.options == {"dimension": 400}
    assert read_recipe("omniglot-emnist", {"head.name": "gpldla"}).head.options == {"dimension": 400}
    assert read_recipe("omniglot-emnist", {"head.name": "protonet"}).head.options == {}
    own = {"head.name": "protonet", "head.normalize": True}
    assert read_recipe("omniglot-emnist", own).head.options == {"normalize": True}


class TestTables:
    def test_tables_and_dotted_names_are_the_same(self):
        tables = {"ways": 7, "head": {"name": "lda", "power": 0.5}, "base": {"epochs": 3}}
        dotted = {"ways": 7, "head.name": "lda", "head.power": 0.5, "base.epochs": 3}
        assert make_recipe(tables) == make_recipe(dotted)

    def test_a_file_with_tables(self, tmp_path):
        (tmp_path / "own.toml").write_text(
            'ways = 7\n[head]\nname = "lda"\npower = 0.5\n[base]\nepochs = 3\n[validation]\nevery = 5\n'
        )
        recipe = read_recipe(tmp_path / "own.toml")
        assert (recipe.head, recipe.base.epochs) == (HeadSettings("lda", {"power": 0.5}), 3.0)
        assert (recipe.ways, recipe.validation.every) == (7, 5)

    def test_validation_has_the_shots_of_training_unless_it_names_its_own(self):
        assert make_recipe({"shots": 3}).validation_shots == 3
        assert make_recipe({"shots": 3, "validation.shots": 1}).validation_shots == 1

    @pytest.mark.parametrize("head", list_heads())
    def test_the_types_of_all_settings_are_in_one_place(self, head):
        types = setting_types(head)
        assert {name for name in types if name.startswith("head.")} == {
            "head.name",
            *(f"head.{option}" for option in head_options(head)),
        }
        assert flatten(make_recipe({"head.name": head}).as_dict()).keys() <= types.keys()

    @pytest.mark.parametrize("head", list_heads())
    def test_no_option_of_a_head_is_called_as_its_name_is(self, head):
        assert "name" not in head_options(head)


class TestOlderNames:
    """Recipes were flat once, with the names of tables as prefixes."""

    @pytest.mark.parametrize(
        ("old", "value", "sentence"),
        [
            ("head", "lda", 'head is written head.name now: [head] name = "lda".'),
            ("head_power", 0.7, "head_power is written head.power now: [head] power = 0.7."),
            ("base_epochs", 30, "base_epochs is written base.epochs now: [base] epochs = 30."),
            ("validate_every", 0, "validate_every is written validation.every now: [validation] every = 0."),
            (
                "validation_shots",
                5,
                "validation_shots is written validation.shots now: [validation] shots = 5.",
            ),
            (
                "temperature_episodes",
                9,
                "temperature_episodes is written validation.temperature_episodes now:"
                " [validation] temperature_episodes = 9.",
            ),
            ("turns", 6, "turns is written folds now: folds = 6."),
        ],
    )
    def test_one_sentence_shows_the_new_form(self, old, value, sentence):
        with pytest.raises(UserError) as error:
            make_recipe({old: value})
        assert str(error.value) == sentence

    def test_a_flat_file_is_answered_with_all_that_changes(self, tmp_path):
        (tmp_path / "own.toml").write_text('head = "lda"\nways = 7\nhead_power = 0.5\nturns = 2\n')
        with pytest.raises(UserError, match=r"head is .*; head_power is .*; turns is written folds now"):
            read_recipe(tmp_path / "own.toml")

    def test_what_a_model_stored_is_read_in_both_forms(self):
        flat = {"dataset": "cub", "head": "gpldla", "head_power": 0.7, "head_learning_rate": 0.1, "turns": 6}
        flat |= {"validation_shots": 5, "base_validate_every": 3, "validate_every": 7}
        settings = stored_settings(flat)
        assert settings == {
            "dataset": "cub",
            "head.name": "gpldla",
            "head.power": 0.7,
            "head_learning_rate": 0.1,
            "folds": 6,
            "validation.shots": 5,
            "base.validate_every": 3,
            "validation.every": 7,
        }
        recipe = make_recipe(settings | {"shots": 11, "queries": 1})
        assert stored_settings(recipe.as_dict()) == flatten(recipe.as_dict())

    def test_shipped_models_say_what_they_were_trained_by(self):
        for config in sorted(MODELS.glob("*/config.json")):
            stored = json.loads(config.read_text("utf-8"))
            recipe = make_recipe(stored_settings(stored["info"]["recipe"]))
            assert (recipe.head.name, recipe.head.options) == (stored["head"], stored["head_options"])

    def test_a_command_gets_the_new_names(self):
        command = (
            "gpldla train cub -o runs/x --set head_power=0.6 --set turns=6 --set ways=5 && gpldla eval runs/x"
        )
        assert current_command(command) == (
            "gpldla train cub -o runs/x --set head.power=0.6 --set folds=6 --set ways=5 && gpldla eval runs/x"
        )
