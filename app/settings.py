"""The server's settings: one frozen struct. Flags go before SEGUE_* variables, those before the TOML file.

Owns names, defaults, ranges and the order of sources, and what the tables [[models]] of the file leave to the settings
beside them; refuses to know what a setting does.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from app.engine.offload import QUANTISED, CacheType
from app.errors import SettingsError

PREFIX = "SEGUE_"

LISTS = ("alias", "api_key", "cors_origin")
"""Settings of several values; as one string they are separated by commas."""

NUMBERS = ("tensor_split",)
"""The same, of numbers."""

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
S = TypeVar("S", bound="ModelSettings")


_UNITS = {unit: 1 << 10 * i for i, unit in enumerate(("", "K", "M", "G", "T"))}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one model is served, each by its own table in [[models]] where there are several.

    Sizes are in tokens; None means that the model or the machine decides.
    """

    model: str | None = None
    alias: tuple[str, ...] = ()
    ctx_size: Count | None = None
    cache_size: Count | None = None
    parallel: Annotated[int, Meta(ge=1, le=128)] = 16
    threads: Annotated[int, Meta(ge=1, le=512)] | None = None
    batch_size: Annotated[int, Meta(ge=1, le=1 << 16)] = 512
    gpu_layers: Annotated[int, Meta(ge=0, le=1 << 16)] | Literal["all", "auto"] = "auto"
    main_gpu: Annotated[int, Meta(ge=0, le=15)] | None = None
    tensor_split: Annotated[tuple[Annotated[float, Meta(ge=0, le=1e9)], ...], Meta(max_length=16)] = ()
    flash_attn: Literal["auto", "on", "off"] = "auto"
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    kv_offload: bool = True
    mmap: bool | None = None
    mlock: bool = False
    repack: bool = True
    prefix_cache: bool = True
    draft: Literal["off", "prompt"] = "off"
    fim_order: Literal["psm", "spm"] | None = None
    fim_template: str | None = None
    insertion: Literal["frame", "search"] = "frame"
    load: Literal["start", "first-use"] = "start"
    idle_unload_minutes: Annotated[float, Meta(gt=0, le=1e6)] | None = None


class Settings(ModelSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How segue serves. Times are in seconds, unless their name says otherwise.

    models: where they are several; then `model` and `alias` are not set, and the rest of ModelSettings is what the
    tables have taken where they said nothing. memory_budget: bytes that all models together may take.
    """

    models: tuple[ModelSettings, ...] = ()
    memory_budget: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    max_logprobs: Annotated[int, Meta(ge=0, le=1000)] | None = None
    max_stop: Annotated[int, Meta(ge=1, le=1000)] | None = None
    max_waiting: Annotated[int, Meta(ge=0, le=1 << 20)] = 256
    drain_seconds: Annotated[int, Meta(ge=0, le=86400)] = 30
    # A large model reads a full batch in minutes on a small machine.
    step_timeout: Annotated[float, Meta(gt=0, le=1e6)] = 300.0
    request_timeout: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    strict: bool = False
    api_key: tuple[str, ...] = ()
    api_key_file: str | None = None
    cors_origin: tuple[str, ...] = ()
    log_json: bool = False
    log_prompts: bool = False

    def each(self) -> tuple["Settings", ...]:
        """The settings of each model, as if it were the only one."""
        if not self.models:
            return (self,)
        return tuple(msgspec.structs.replace(self, models=(), **msgspec.structs.asdict(model)) for model in self.models)


def load(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from flags (those that were given), environment and the file that `config` among them names.

    Raises SettingsError: a name that is no setting, a value of the wrong type or range, a file that is not TOML.
    """
    variables = _variables(os.environ if environment is None else environment)
    config_named = variables.pop("config", None)
    config = flags.get("config") or config_named
    chosen: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, values in (
        (f"the file {config}", _file(Path(config)) if config else {}),
        ("the environment", variables),
        ("the command line", {k: v for k, v in flags.items() if k != "config" and v is not None}),
    ):
        for key, value in values.items():
            if key not in Settings.__struct_fields__:
                known = ", ".join(Settings.__struct_fields__)
                raise SettingsError(f"{key} in {source} is not a setting. Settings: {known}.")
            chosen[key], sources[key] = value, source
    tables = chosen.pop("models", None)
    if isinstance(size := chosen.get("memory_budget"), str):
        chosen["memory_budget"] = _bytes(size, sources["memory_budget"])
    settings = _checked(_split(chosen), Settings, sources.__getitem__)
    _check_together(settings)
    if tables is not None:
        settings = msgspec.structs.replace(settings, models=_models(tables, settings, sources))
    return msgspec.structs.replace(settings, api_key=(*settings.api_key, *_filed_keys(settings.api_key_file)))


def _split(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of several values, where they came as one string."""
    return {
        key: [name.strip() for name in value.split(",") if name.strip()]
        if key in (*LISTS, *NUMBERS) and isinstance(value, str)
        else value
        for key, value in values.items()
    }


def _bytes(size: str, source: str) -> int:
    if not (found := _BYTES.fullmatch(size.strip())):
        raise SettingsError(f"memory_budget in {source} is {size!r}; it is a number of bytes, or of K, M, G or T: 8G.")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _models(tables: Any, settings: Settings, sources: Mapping[str, str]) -> tuple[ModelSettings, ...]:
    """The tables of [[models]]; what one leaves out is as in the settings beside them."""
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise SettingsError(f"models in {sources['models']} must be tables: [[models]], and the settings of a model.")
    for key in ("model", "alias"):
        if getattr(settings, key):
            raise SettingsError(
                f"{key} in {sources[key]} names one model, and [[models]] in {sources['models']} several; leave one of "
                "them out."
            )
    common = {key: getattr(settings, key) for key in ModelSettings.__struct_fields__ if key not in ("model", "alias")}
    return tuple(_model(table, common, number) for number, table in enumerate(tables, 1))


def _model(table: Mapping[str, Any], common: Mapping[str, Any], number: int) -> ModelSettings:
    """One table, the first being number 1."""
    own = _split({key.replace("-", "_"): value for key, value in table.items()})
    where = f"[[models]] number {number}" + (f" ({own['model']})" if own.get("model") else "")
    for key in own:
        if key not in ModelSettings.__struct_fields__:
            known = ", ".join(ModelSettings.__struct_fields__)
            raise SettingsError(f"{key} in {where} is not a setting of a model. Those are: {known}.")
    if not own.get("model"):
        raise SettingsError(f"model is missing in {where}; name a GGUF file.")
    settings = _checked({**common, **own}, ModelSettings, lambda _: where)
    _check_together(settings, f"{where}: ")
    return settings


def _filed_keys(path: str | None) -> list[str]:
    """The keys in a file, one a line."""
    if path is None:
        return []
    try:
        keys = [line.strip() for line in Path(path).read_text().splitlines() if line.strip()]
    except OSError as error:
        raise SettingsError(f"api_key_file: {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"api_key_file: {path} is not text.") from None
    except ValueError:
        raise SettingsError(f"api_key_file: {path!r} is no path.") from None
    if not keys:
        raise SettingsError(f"api_key_file: {path} holds no key.")
    return keys


def _variables(environment: Mapping[str, str]) -> dict[str, Any]:
    """Variables that name a setting; other SEGUE_* ones belong to other programs. Tables come by no variable."""
    known = {*Settings.__struct_fields__, "config"} - {"models"}
    named = {key.removeprefix(PREFIX).lower(): value for key, value in environment.items() if key.startswith(PREFIX)}
    return {key: value for key, value in named.items() if key in known and value != ""}


def _file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return {key.replace("-", "_"): value for key, value in tomllib.load(file).items()}
    except OSError as error:
        raise SettingsError(f"config: {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config: {path} is not TOML: {error}.") from None
    except RecursionError:
        raise SettingsError(f"config: {path} is nested too deeply.") from None


def _choices(key: str) -> str:
    """The values that a setting of a few takes, which msgspec does not name."""
    kind = get_type_hints(Settings)[key]
    if get_origin(kind) is Literal:
        return f"; choose {' or '.join(get_args(kind))}"
    words = [word for part in get_args(kind) if get_origin(part) is Literal for word in get_args(part)]
    numbers = ["a number"] if int in get_args(kind) else []
    return f"; choose {' or '.join(words + numbers)}" if words else ""


def _checked(chosen: Mapping[str, Any], kind: type[S], source: Callable[[str], str]) -> S:
    """The settings of a kind. source: where the value of a key is from."""
    try:
        # Lax, because the environment has only strings.
        settings = msgspec.convert(dict(chosen), kind, strict=False)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        key = path.rstrip("`").partition("[")[0]
        shown = "not shown" if key == "api_key" else repr(chosen[key])
        raise SettingsError(f"{key} in {source(key)} is {shown}: {problem}{_choices(key)}.") from None
    for key in LISTS:
        if key in chosen and not all(value.strip() for value in getattr(settings, key) or [""]):
            raise SettingsError(f"{key} in {source(key)} is empty; leave it out, or give it a value.")
    return settings


def _check_together(settings: ModelSettings, where: str = "") -> None:
    """Raises SettingsError where settings, each right, contradict one another. where: begins its message."""
    if settings.batch_size < settings.parallel:
        raise SettingsError(
            f"{where}batch_size is {settings.batch_size}; it must be at least parallel, which is {settings.parallel}: "
            "every running sequence has a token in each batch."
        )
    if settings.cache_type_v in QUANTISED and settings.flash_attn == "off":
        raise SettingsError(
            f"{where}cache_type_v is {settings.cache_type_v}, which needs flash attention, but flash_attn is off; "
            "leave it auto, or choose f16, bf16 or f32."
        )
    if settings.main_gpu is not None and settings.tensor_split:
        raise SettingsError(
            f"{where}main_gpu names one GPU, and tensor_split splits the layers among several: choose one."
        )
