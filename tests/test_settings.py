"""Settings: flags before environment before file; an error names key, value, type and source."""

from pathlib import Path
from typing import Any

import pytest

from app.errors import SettingsError
from app.settings import LISTS, NUMBERS, Settings, load

FIELDS = Settings.__struct_fields__


def refused(flags: dict[str, Any], environment: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as raised:
        load(flags, environment or {})
    assert "\n" not in raised.value.message
    return raised.value.message


def toml(folder: Path, text: str) -> str:
    path = folder / "segue.toml"
    path.write_text(text)
    return str(path)


def test_defaults() -> None:
    assert load({}, {}) == Settings()
    assert load(dict.fromkeys(FIELDS), {}) == Settings()
    assert (Settings().host, Settings().port, Settings().parallel, Settings().strict) == ("127.0.0.1", 8000, 16, False)


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    config = toml(tmp_path, 'port = 1\nparallel = 2\nthreads = 3\nhost = "file"\n')
    environment = {"SEGUE_PORT": "11", "SEGUE_PARALLEL": "12", "SEGUE_CONFIG": "/nowhere"}
    settings = load({"port": 21, "config": config, "threads": None}, environment)
    assert (settings.port, settings.parallel, settings.threads, settings.host) == (21, 12, 3, "file")


def test_a_file_may_be_named_in_the_environment(tmp_path: Path) -> None:
    config = toml(tmp_path, "port = 5\n")
    assert load({}, {"SEGUE_CONFIG": config}).port == 5


def test_every_setting_can_be_set_from_every_source(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("m\n")
    values: dict[str, Any] = {
        "model": "a.gguf", "alias": ["x", "y"], "host": "::1", "port": 1, "ctx_size": 2, "cache_size": 3, "parallel": 4,
        "threads": 5, "batch_size": 6, "gpu_layers": 7, "tensor_split": [3.0, 0.5], "flash_attn": "on",
        "cache_type_k": "q8_0", "cache_type_v": "q4_0", "kv_offload": True, "mmap": True, "mlock": True,
        "max_logprobs": 8, "max_stop": 9, "max_waiting": 10,
        "strict": True, "api_key": ["k", "l"], "api_key_file": str(keys), "cors_origin": ["*", "null"],
        "fim_order": "spm", "fim_template": "<P>{prefix}<S>{suffix}", "insertion": "search",
        "prefix_cache": True, "draft": "prompt", "repack": True, "drain_seconds": 11,
        "request_timeout": 1.5, "step_timeout": 2.5, "log_json": True, "log_prompts": True,
        "load": "first-use", "idle_unload_minutes": 0.5, "memory_budget": 12345,
    }  # fmt: skip
    # A main GPU goes with no split, and tables come from a file alone.
    more = set(FIELDS) - set(values) - {"main_gpu", "models"}
    wanted = Settings(**values | {key: tuple(values[key]) for key in (*LISTS, *NUMBERS)} | {"api_key": ("k", "l", "m")})
    lines = [f"{key.replace('_', '-')} = {str(value).lower() if value is True else repr(value)}"
             for key, value in values.items()]  # fmt: skip
    several = {key: ",".join(map(str, values[key])) for key in (*LISTS, *NUMBERS)}
    environment = {
        f"SEGUE_{key.upper()}": str(value).lower() if value is True else str(value)
        for key, value in (values | several).items()
    }
    assert load({"config": toml(tmp_path, "\n".join(lines))}, {}) == wanted
    assert load({}, environment) == wanted
    assert load(values, {}) == wanted
    assert not more, "a setting without a test"


def test_empty_variables_and_those_of_others_are_left_alone() -> None:
    environment = {"SEGUE_PORT": "", "SEGUE_MODELS": "/models", "SEGUE_API_BASE": "x", "PORT": "99", "segue_port": "7"}
    assert load({}, environment) == Settings()


@pytest.mark.parametrize("value", ["true", "True", "1", "false", "0"])
def test_truth_in_the_environment(value: str) -> None:
    assert load({}, {"SEGUE_STRICT": value}).strict == (value.lower() in {"true", "1"})


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("port", "abc", "int"),
        ("port", "70000", "65535"),
        ("port", "-1", "0"),
        ("port", "80.5", "int"),
        ("parallel", "0", "1"),
        ("parallel", "129", "128"),
        ("strict", "maybe", "bool"),
        ("ctx_size", "0", "1"),
        ("max_logprobs", "-1", "0"),
        ("threads", "many", "int"),
        ("gpu_layers", "-99999", "0"),
        ("main_gpu", "-1", "0"),
        ("tensor_split", "3,many", "float"),
        ("tensor_split", "3,-1", "0"),
        ("cache_type_v", "q9", "enum"),
        ("fim_order", "mps", "enum"),
        ("request_timeout", "0", "0"),
        ("request_timeout", "nan", "0"),
        ("request_timeout", "inf", "1000000"),
    ],
)
def test_a_bad_variable_is_named_with_value_type_and_source(key: str, value: str, kind: str) -> None:
    message = refused({}, {f"SEGUE_{key.upper()}": value})
    assert key in message
    assert value.rpartition(",")[2] in message
    assert kind in message
    assert "environment" in message


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ('port = "abc"', "port", "'abc'"),
        ("port = [1]", "port", "[1]"),
        ("port = 1.5", "port", "1.5"),
        ("model = 5", "model", "5"),
        ("alias = [1]", "alias", "[1]"),
        ("alias = 7", "alias", "7"),
        ('strict = "perhaps"', "strict", "'perhaps'"),
        ("[model]\npath = 'a'", "model", "path"),
        ("max-waiting = -1", "max_waiting", "-1"),
    ],
)
def test_a_bad_line_of_a_file_is_named_with_the_file(tmp_path: Path, line: str, key: str, value: str) -> None:
    config = toml(tmp_path, line)
    message = refused({"config": config})
    assert key in message
    assert value in message
    assert config in message


@pytest.mark.parametrize(
    ("key", "choices"),
    [
        ("fim_order", "psm or spm"),
        ("insertion", "frame or search"),
        ("load", "start or first-use"),
        ("flash_attn", "auto or on or off"),
        ("gpu_layers", "all or auto or a number"),
        ("cache_type_k", "f32 or f16 or bf16 or q8_0 or q5_1 or q5_0 or q4_1 or q4_0 or iq4_nl"),
    ],
)
def test_a_setting_of_a_few_values_lists_them(key: str, choices: str) -> None:
    assert choices in refused({key: "neither"})


def test_a_bad_flag_is_named_as_one() -> None:
    message = refused({"port": 70000}, {"SEGUE_PORT": "80"})
    assert "port" in message
    assert "70000" in message
    assert "65535" in message
    assert "command line" in message


def test_an_unknown_key_of_a_file_is_named_and_the_known_ones_listed(tmp_path: Path) -> None:
    message = refused({"config": toml(tmp_path, "prot = 1\n")})
    assert "prot" in message
    assert "port" in message
    assert "max_waiting" in message


def test_a_file_that_cannot_be_read_or_is_no_toml(tmp_path: Path) -> None:
    assert "nowhere.toml" in refused({"config": str(tmp_path / "nowhere.toml")})
    assert str(tmp_path) in refused({"config": str(tmp_path)})
    assert "TOML" in refused({"config": toml(tmp_path, "port = = 1")})
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert "bytes.toml" in refused({"config": str(tmp_path / "bytes.toml")})


@pytest.mark.parametrize("key", LISTS)
def test_several_values_are_separated_by_commas_in_the_environment(key: str) -> None:
    assert getattr(load({}, {f"SEGUE_{key.upper()}": " a , b/c ,, d"}), key) == ("a", "b/c", "d")


def test_a_bad_key_is_not_shown(tmp_path: Path) -> None:
    message = refused({"config": toml(tmp_path, 'api_key = ["sk-secret", 7]')})
    assert "api_key" in message
    assert "sk-secret" not in message


def test_a_batch_must_hold_a_token_of_each_running_sequence() -> None:
    message = refused({"batch_size": 8, "parallel": 16})
    assert "batch_size" in message
    assert "8" in message
    assert "16" in message
    assert load({"batch_size": 16, "parallel": 16}, {}).batch_size == 16


@pytest.mark.parametrize("value", ["all", "auto", 0, 7])
def test_gpu_layers_are_words_or_a_number_from_every_source(tmp_path: Path, value: int | str) -> None:
    assert load({"gpu_layers": str(value)}, {}).gpu_layers == value
    assert load({}, {"SEGUE_GPU_LAYERS": str(value)}).gpu_layers == value
    assert load({"config": toml(tmp_path, f"gpu-layers = {value!r}")}, {}).gpu_layers == value


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "iq4_nl"])
def test_quantised_values_need_flash_attention(kind: str) -> None:
    message = refused({"cache_type_v": kind, "flash_attn": "off"})
    assert "cache_type_v" in message
    assert kind in message
    assert "flash_attn" in message
    for flash in ("auto", "on"):
        assert load({"cache_type_v": kind, "flash_attn": flash}, {}).cache_type_v == kind
    assert load({"cache_type_v": "bf16", "cache_type_k": kind, "flash_attn": "off"}, {}).cache_type_k == kind


def test_one_gpu_and_a_split_among_several_contradict() -> None:
    message = refused({"main_gpu": 1, "tensor_split": "1,1"})
    assert "main_gpu" in message
    assert "tensor_split" in message
    assert load({"main_gpu": 1}, {}).main_gpu == 1


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "deep.toml"
    config.write_text(f"a = {'[' * 5000}")
    with pytest.raises(SettingsError, match="nested too deeply"):
        load({"config": str(config)}, {})


def test_a_file_of_keys_that_no_system_has_is_refused() -> None:
    with pytest.raises(SettingsError, match="api_key_file"):
        load({"api_key_file": "a\0"}, {})


@pytest.mark.parametrize(
    ("size", "n_bytes"),
    [("8G", 8 << 30), ("8g", 8 << 30), ("1.5 GiB", 3 << 29), ("512MB", 512 << 20), ("3k", 3072), ("8", 8), (7, 7)],
)
def test_a_budget_is_a_number_of_bytes_or_of_larger_units(tmp_path: Path, size: str | int, n_bytes: int) -> None:
    assert load({"memory_budget": str(size)}, {}).memory_budget == n_bytes
    assert load({}, {"SEGUE_MEMORY_BUDGET": str(size)}).memory_budget == n_bytes
    assert load({"config": toml(tmp_path, f"memory-budget = {size!r}")}, {}).memory_budget == n_bytes


@pytest.mark.parametrize("size", ["8X", "G", "-1G", "", "8 G 8", "0"])
def test_what_is_no_size_is_refused_as_a_budget(tmp_path: Path, size: str) -> None:
    message = refused({"config": toml(tmp_path, f"memory-budget = {size!r}")})
    assert "memory_budget" in message
    assert size in message


TABLES = """
ctx-size = 1024
insertion = "search"
[[models]]
model = "a.gguf"
alias = ["x", "y"]
[[models]]
model = "b.gguf"
ctx-size = 2048
alias = "z,w"
load = "first-use"
idle-unload-minutes = 5
"""


def test_a_table_takes_what_it_leaves_out_from_the_settings_beside_it(tmp_path: Path) -> None:
    settings = load({"config": toml(tmp_path, TABLES), "batch_size": 64}, {"SEGUE_THREADS": "3"})
    first, second = settings.models
    assert (first.model, first.alias, first.ctx_size, first.load) == ("a.gguf", ("x", "y"), 1024, "start")
    assert (second.model, second.alias, second.ctx_size, second.load) == ("b.gguf", ("z", "w"), 2048, "first-use")
    assert (first.idle_unload_minutes, second.idle_unload_minutes) == (None, 5)
    for model in settings.models:
        assert (model.insertion, model.batch_size, model.threads) == ("search", 64, 3)


def test_each_model_has_settings_as_if_it_were_the_only_one(tmp_path: Path) -> None:
    settings = load({"config": toml(tmp_path, TABLES), "max_waiting": 7}, {})
    first, second = settings.each()
    assert first == Settings(model="a.gguf", alias=("x", "y"), ctx_size=1024, insertion="search", max_waiting=7)
    assert (second.model, second.ctx_size, second.models, second.max_waiting) == ("b.gguf", 2048, (), 7)
    assert Settings(model="c").each() == (Settings(model="c"),)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("[[models]]\nmodel = 'a'\nprot = 1", "prot in [[models]] number 1 (a) is not a setting of a model"),
        ("[[models]]\nmodel = 'a'\nport = 1", "port in [[models]] number 1 (a) is not a setting of a model"),
        ("[[models]]\nmodel = 'a'\n[[models]]\nalias = 'b'", "model is missing in [[models]] number 2"),
        ("[[models]]\nmodel = 'a'\nctx-size = 0", "ctx_size in [[models]] number 1 (a) is 0"),
        ("[[models]]\nmodel = 'a'\nload = 'never'", "choose start or first-use"),
        ("[[models]]\nmodel = 'a'\nalias = ''", "alias in [[models]] number 1 (a) is empty"),
        ("[[models]]\nmodel = 7", "model in [[models]] number 1 (7) is 7"),
        ("[[models]]\nmodel = 'a'\nbatch-size = 8", "[[models]] number 1 (a): batch_size is 8"),
        ("models = 3", "models in the file"),
        ("models = []", "models in the file"),
        ("[models]\na = 1", "models in the file"),
    ],
)
def test_a_bad_table_is_named_with_its_key(tmp_path: Path, lines: str, told: str) -> None:
    assert told in refused({"config": toml(tmp_path, lines)})


def test_one_model_and_several_contradict(tmp_path: Path) -> None:
    config = toml(tmp_path, TABLES)
    message = refused({"config": config, "model": "c.gguf"})
    assert "model in the command line" in message
    assert f"[[models]] in the file {config}" in message
    assert "alias in the environment" in refused({"config": config}, {"SEGUE_ALIAS": "c"})


def test_tables_come_from_no_variable() -> None:
    assert load({}, {"SEGUE_MODELS": "/models"}).models == ()
