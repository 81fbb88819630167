"""The image, the unit, the manifests: what can be told by reading them, and that they agree with segue's settings.

That they work is tried by scripts/container-test, scripts/build-binary --check and scripts/check-deploy.
"""

import configparser
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from app.settings import Settings, load
from scripts.shipping import host, image, trial
from tests.conftest import Served

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "scripts" / "deploy"
STAGES = re.split(r"^(?=FROM )", (ROOT / "Containerfile").read_text(), flags=re.MULTILINE)
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MANIFEST = {part["kind"]: part for part in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
POD = MANIFEST["Deployment"]["spec"]["template"]["spec"]


def instructions(stage: str) -> Iterator[tuple[str, str]]:
    """The instructions of a stage, each with its argument; comments and line ends aside."""
    lines = [line for line in stage.splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, argument = line.partition(" ")
            yield word, argument.strip()


LAST = list(instructions(STAGES[-1]))


def last(word: str) -> str:
    """The argument of an instruction that the final stage has once."""
    (argument,) = (argument for found, argument in LAST if found == word)
    return argument


def image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in last("ENV").split())


class Unit(configparser.ConfigParser):
    """systemd's names have capitals."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit() -> Unit:
    parser = Unit(strict=False, interpolation=None)
    parser.read(DEPLOY / "segue.service")
    return parser


def unit_environment() -> dict[str, str]:
    lines = (DEPLOY / "segue.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def compose_environment(service: str) -> dict[str, str]:
    """As compose makes it where nothing is set."""
    wanted: dict[str, str] = COMPOSE["services"][service]["environment"]
    return {key: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value) for key, value in wanted.items()}


def pod_environment() -> dict[str, str]:
    return {each["name"]: each.get("value", "a-secret") for each in POD["containers"][0]["env"]}


ENVIRONMENTS = {
    "image": image_environment,
    "unit": unit_environment,
    "compose": lambda: compose_environment("segue"),
    "compose, cuda": lambda: compose_environment("segue-cuda"),
    "kubernetes": pod_environment,
}


def settings_of(name: str) -> Settings:
    """What segue reads from it; a container has its image's variables too."""
    own = ENVIRONMENTS[name]()
    return load({}, own if name == "unit" else image_environment() | own)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_variable_is_a_setting_and_its_value_is_good(name: str) -> None:
    named = [key for key in ENVIRONMENTS[name]() if key.startswith("SEGUE_")]
    assert named
    assert {key.removeprefix("SEGUE_").lower() for key in named} <= set(Settings.__struct_fields__)
    assert settings_of(name).model


# The image


def test_the_compiler_and_the_build_stay_in_the_first_stage() -> None:
    assert len(STAGES) == 3
    assert "g++" in STAGES[1]
    assert not re.search(r"g\+\+|pip|-dev\b|scripts/", STAGES[2].replace("/opt/segue/.venv", ""))
    assert {source for word, source in LAST if word == "COPY"} == {
        "--from=build /opt/segue/.venv /opt/segue/.venv",
        "--from=build /opt/segue/app /opt/segue/app",
    }


def test_what_it_is_built_on_and_runs_on_can_be_chosen() -> None:
    assert [stage.split()[1] for stage in STAGES[1:]] == ["$BUILD_IMAGE", "$BASE_IMAGE"]
    assert ("ARG", "BACKEND=cpu") in list(instructions(STAGES[1]))


def image_names() -> Iterator[str]:
    yield from re.findall(r"_IMAGE[=:] ?([^$\s]+)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    yield from (service["image"] for service in COMPOSE["services"].values())
    yield from (container["image"] for container in POD["containers"])
    arguments = COMPOSE["services"]["segue-cuda"]["build"]["args"]
    yield from (arguments["BUILD_IMAGE"], arguments["BASE_IMAGE"])


def test_every_image_has_a_tag_that_says_what_it_is() -> None:
    names = list(image_names())
    assert len(names) == 6
    for name in names:
        tag = name.rpartition(":")[2]
        assert re.fullmatch(r"[\w.-]+", tag), name
        assert tag != "latest"


def test_our_image_is_of_this_version() -> None:
    version = re.search(r'__version__ = "(.*)"', (ROOT / "app" / "__init__.py").read_text())
    assert version
    ours = {name.partition(":")[2] for name in image_names() if name.startswith("segue:")}
    assert ours == {version[1], f"{version[1]}-cuda"}


def test_it_starts_without_a_shell_and_ends_by_sigterm() -> None:
    assert json.loads(last("ENTRYPOINT")) == ["segue", "serve"]
    assert last("STOPSIGNAL") == "SIGTERM"


def test_it_runs_as_a_user_by_number_who_is_not_root() -> None:
    user, group = map(int, last("USER").split(":"))
    assert user > 0
    assert group > 0
    pod = POD["securityContext"]
    assert (pod["runAsUser"], pod["runAsGroup"], pod["runAsNonRoot"]) == (user, group, True)


def test_its_port_is_the_one_that_it_listens_on_everywhere() -> None:
    settings = settings_of("image")
    assert settings.host == "0.0.0.0"
    assert int(last("EXPOSE")) == settings.port
    assert POD["containers"][0]["ports"] == [{"name": "http", "containerPort": settings.port}]
    for service in COMPOSE["services"].values():
        (published,) = service["ports"]
        assert published.endswith(f":{settings.port}")


def test_models_are_where_it_looks_for_them() -> None:
    where = settings_of("image").model
    assert f"mkdir {where}" in STAGES[-1]
    assert [volume["mountPath"] for volume in POD["containers"][0]["volumeMounts"]] == [where]
    for service in COMPOSE["services"].values():
        (volume,) = service["volumes"]
        source, target, mode = volume.split(":")
        assert (target, mode) == (where, "ro")
        assert (DEPLOY / source).resolve() == ROOT / "models"


def health_check() -> list[str]:
    _, _, command = last("HEALTHCHECK").partition("CMD ")
    words: list[str] = json.loads(command)
    return words


def test_its_health_check_passes_where_a_server_is_well_and_fails_where_none_is(spm: Served) -> None:
    port = spm.server.url.rpartition(":")[2]
    for where, is_well in ((port, True), (str(trial.free_port()), False)):
        told = os.environ | {"SEGUE_PORT": where}
        done = subprocess.run(health_check(), env=told, capture_output=True, timeout=60, check=False)
        assert (done.returncode == 0) is is_well


def test_nothing_gets_into_the_build_but_what_is_copied() -> None:
    first, *rules = [
        line for line in (ROOT / ".containerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert first == "*"
    let_in = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    copied: set[str] = set()
    for word, argument in instructions(STAGES[1]):
        if word == "COPY":
            copied.update(argument.split()[:-1])
    assert let_in == copied
    assert all((ROOT / name).exists() for name in copied)


def test_no_secret_and_no_address_is_written_anywhere() -> None:
    files = [ROOT / "Containerfile", *DEPLOY.iterdir(), *(ROOT / "scripts" / "shipping").glob("*.py")]
    for file in files:
        found = re.findall(
            r"https?://[\w.-]+|index-url [\w]|(?:key|token|password)[=:] *['\"]?\w{8,}", file.read_text()
        )
        assert [each for each in found if not re.fullmatch(r"http://(127\.0\.0\.1|segue)", each)] == [], file.name


# Deploying


def test_whoever_ends_it_waits_longer_than_running_requests_may_take() -> None:
    waits = {
        "unit": int(unit()["Service"]["TimeoutStopSec"]),
        "kubernetes": POD["terminationGracePeriodSeconds"],
        "compose": int(COMPOSE["services"]["segue"]["stop_grace_period"].removesuffix("s")),
        "compose, cuda": int(COMPOSE["services"]["segue-cuda"]["stop_grace_period"].removesuffix("s")),
    }
    for name, seconds in waits.items():
        assert seconds >= settings_of(name).drain_seconds + 10, name


def test_a_pod_is_out_of_the_service_before_it_refuses_anyone() -> None:
    """It is told to end while some still send it requests: that is not known everywhere at once."""
    (action,) = POD["containers"][0]["lifecycle"]["preStop"].items()
    assert action[0] == "sleep"
    wait = action[1]["seconds"]
    assert 0 < wait <= POD["terminationGracePeriodSeconds"] - settings_of("kubernetes").drain_seconds - 5


def test_pods_are_replaced_one_by_one_and_none_beside_another() -> None:
    rolling = MANIFEST["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}


def test_every_probe_asks_for_health_at_the_named_port(spm: Served) -> None:
    container = POD["containers"][0]
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[kind]["httpGet"]
        assert asked["port"] == container["ports"][0]["name"]
        assert spm.api.http.get(asked["path"]).status_code == 200
    (port,) = MANIFEST["Service"]["spec"]["ports"]
    assert port["targetPort"] == container["ports"][0]["name"]


def test_a_service_finds_the_pods_and_the_pods_their_volume() -> None:
    labels = MANIFEST["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert MANIFEST["Service"]["spec"]["selector"] == labels
    assert MANIFEST["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    (volume,) = POD["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == MANIFEST["PersistentVolumeClaim"]["metadata"]["name"]
    assert [mount["name"] for mount in POD["containers"][0]["volumeMounts"]] == [volume["name"]]


def test_kubernetes_own_variables_do_not_become_settings() -> None:
    """For a service named segue, Kubernetes sets SEGUE_PORT to an address, which is no port."""
    assert MANIFEST["Service"]["metadata"]["name"] == "segue"
    assert POD["enableServiceLinks"] is False


def test_the_containers_have_no_more_rights_than_they_need() -> None:
    context = POD["containers"][0]["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"]["drop"] == ["ALL"]
    for service in COMPOSE["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]


def test_the_unit_starts_the_executable_and_reads_its_models() -> None:
    service = unit()["Service"]
    assert service["ExecStart"] == "/opt/segue/segue serve"
    assert service["EnvironmentFile"] == "/etc/segue/segue.env"
    model = settings_of("unit").model
    assert model
    assert model.startswith(service["ReadOnlyPaths"])


# What scripts/shipping reads and makes


def test_the_mirror_is_the_one_that_apt_asks_for_this_release(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "http://a/ stable Other\nhttp://b/ trixie-updates Debian\nhttp://c/debian/ trixie Debian\n"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, listed))
    assert host.mirror("trixie") == "http://c/debian/"
    with pytest.raises(host.Failure, match="bookworm"):
        host.mirror("bookworm")


def test_a_container_is_told_of_pips_index_but_not_of_folders_that_it_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = (
        "global.cert='/home/me/ca.pem'\nglobal.index-url='http://index/simple'\n"
        ":env:.find-links='/opt/wheels'\nglobal.extra-index-url='file:///opt/a http://more/100%25'\n"
    )
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, listed))
    written = configparser.ConfigParser(interpolation=None)
    written.read(host.write_pip_settings(tmp_path / "pip.conf"))
    assert dict(written["global"]) == {
        "cert": "/etc/ssl/certs/ca-certificates.crt",
        "index-url": "http://index/simple",
        "extra-index-url": "http://more/100%25",
    }


def test_what_is_missing_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(host.Failure, match=r"apt install of-it$"):
        host.need({"sh": "dash", "no-such-program": "of-it"})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(host.Failure, match="as root"):
        host.need({})


def test_another_text_than_the_checkouts_with_the_same_kernels_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another than with kernels for this processor alone is told, and no failure."""
    same, other = [f"text {i}" for i in range(len(trial.PROMPTS))], [f"other {i}" for i in range(len(trial.PROMPTS))]
    kernels = Path("kernels")
    answers = {kernels: same, None: [*same[:-1], "parted"]}
    monkeypatch.setattr(trial, "checkouts_texts", lambda model, kernels=None: answers[kernels])
    trial.compare(same, Path("model"), kernels)
    assert "the same after 2 of them" in capsys.readouterr().out
    with pytest.raises(host.Failure, match=r"'other 0'.*'text 0'"):
        trial.compare(other, Path("model"), kernels)


def test_the_last_of_a_chain_of_processes_is_found() -> None:
    chain = ["sh", "-c", "sh -c 'cat; true'; true"]
    with subprocess.Popen(chain, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write("there\n")
        process.stdin.flush()
        assert process.stdout.readline() == "there\n"
        found = image.leaf(process.pid)
        assert Path(f"/proc/{found}/comm").read_text() == "cat\n"
        process.stdin.close()


def installed_portably(tmp_path: Path, environment: Mapping[str, str]) -> tuple[str, Path]:
    """The flags that scripts/install is called with, and the folder of libraries that it left."""
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "install-portable"
    script.write_bytes((ROOT / "scripts" / "install-portable").read_bytes())
    libraries = tmp_path / ".venv/lib/python3.11/site-packages/llama_cpp/lib"
    libraries.mkdir(parents=True)
    for name in ("libllama.so", "libllama.so.0", "libllama.so.0.5.0", "libggml-cpu-haswell.so"):
        (libraries / name).write_text(name.partition(".")[0])
    (libraries.parents[1] / "lib").mkdir()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$CMAKE_ARGS $@" > {tmp_path}/told\n')
    python.chmod(0o755)
    told = {"PATH": os.defpath, "PYTHON": str(python), **environment}
    subprocess.run(["sh", script, "--backend", "cuda"], env=told, check=True)
    return (tmp_path / "told").read_text().strip(), libraries


def test_a_portable_install_is_one_for_every_processor_with_the_users_flags_last(tmp_path: Path) -> None:
    told, _ = installed_portably(tmp_path, {"CMAKE_ARGS": "-DGGML_OPENMP=OFF"})
    flags, _, arguments = told.partition(f" {tmp_path}/scripts/install ")
    assert arguments == "--backend cuda"
    assert {"-DGGML_NATIVE=OFF", "-DGGML_CPU_ALL_VARIANTS=ON", "-DGGML_BACKEND_DL=ON"} < set(flags.split())
    assert flags.endswith(" -DGGML_OPENMP=OFF")


def test_a_portable_install_keeps_one_copy_of_each_library(tmp_path: Path) -> None:
    _, libraries = installed_portably(tmp_path, {})
    copies = [path for path in libraries.iterdir() if fnmatch(path.name, "*.so.*")]
    assert len(copies) == 2
    assert all(path.is_symlink() and path.read_text() == "libllama" for path in copies)
    assert not (libraries.parents[1] / "lib").exists()


def test_libraries_of_kernels_are_told_from_others(tmp_path: Path) -> None:
    _, libraries = installed_portably(tmp_path, {})
    assert [path.name for path in libraries.rglob(image.PROCESSORS)] == ["libggml-cpu-haswell.so"]


def test_compose_builds_both_from_the_one_containerfile() -> None:
    builds = [service["build"] for service in COMPOSE["services"].values()]
    assert len(builds) == 2
    for build in builds:
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert build["dockerfile"] == "Containerfile"
    known = set(re.findall(r"^ARG (\w+)", (ROOT / "Containerfile").read_text(), re.MULTILINE))
    assert set(builds[1]["args"]) == known
