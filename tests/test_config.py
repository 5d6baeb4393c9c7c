"""Settings: where they come from, which are refused, and what is never shown."""

from datetime import timedelta
from pathlib import Path

import pytest
from rich.pretty import pretty_repr

from flowfabric.config import Config, variable
from flowfabric.durations import format_duration
from flowfabric.errors import BadSetting

URL = "postgresql://app:hunter2@db.example/app"
SECRET = "5ecb0017" * 8


def example(name: str) -> tuple[str, object]:
    """A value other than the default, as it stands in the environment and as it is."""
    match getattr(Config(), name):
        case None:
            return (URL, URL) if name == "url" else (SECRET, SECRET)
        case Path():
            return "var/postgres", Path("var/postgres")
        case bool(default):
            return str(not default).lower(), not default
        case int(default) | float(default):
            return str(default - 1), default - 1
        case timedelta() as default:
            return format_duration(default + timedelta(seconds=1)), default + timedelta(seconds=1)
    raise AssertionError(name)


def test_every_setting_has_a_default() -> None:
    assert Config.read({}) == Config()


@pytest.mark.parametrize("name", Config.__struct_fields__)
def test_every_setting_is_read_from_its_variable(name: str) -> None:
    text, value = example(name)

    assert getattr(Config.read({variable(name): text}), name) == value
    assert getattr(Config.read({variable(name): ""}), name) == getattr(Config(), name)


@pytest.mark.parametrize("name", Config.__struct_fields__)
def test_an_argument_stands_above_the_environment(name: str) -> None:
    text, value = example(name)

    assert getattr(Config.read({variable(name): "nonsense"}, **{name: value}), name) == value
    assert getattr(Config.read({variable(name): text}, **{name: None}), name) == value


def test_the_environment_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWFABRIC_POOL_SIZE", "17")

    assert Config.read().pool_size == 17


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pool_size", "many"),
        ("pool_size", "0"),
        ("pool_size", "2.5"),
        ("pooler", "perhaps"),
        ("payload_limit", "0"),
        ("budget_partitions", "0"),
        ("budget_partitions", "32768"),
        ("quota_partitions", "none"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_variable(name: str, text: str) -> None:
    with pytest.raises(BadSetting, match=rf"^bad_setting: {variable(name)} '{text}' is invalid: Expected "):
        Config.read({variable(name): text})


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "10 minuts"])
def test_a_bad_duration_is_refused_by_the_name_of_its_variable(text: str) -> None:
    with pytest.raises(
        BadSetting, match=rf"FLOWFABRIC_TIMEOUT: duration '{text}' is invalid; use a value such as 250ms"
    ):
        Config.read({"FLOWFABRIC_TIMEOUT": text})


@pytest.mark.parametrize("text", ["99ms", "2h"])
def test_a_duration_out_of_range_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(BadSetting, match=f"FLOWFABRIC_TIMEOUT '{text}' is invalid; use 100ms to 1h"):
        Config.read({"FLOWFABRIC_TIMEOUT": text})


def test_an_argument_that_is_no_setting_is_refused() -> None:
    with pytest.raises(BadSetting, match="setting 'poolsize' is unknown; use url, data, secret, pool_size"):
        Config.read({}, poolsize=4)
    with pytest.raises(BadSetting, match="FLOWFABRIC_DATA '7' is invalid: cannot be read as Path"):
        Config.read({}, data=7)


@pytest.mark.parametrize("url", ["mysql://app:hunter2@h/x", "app:hunter2@h", "postgresql+asyncpg://app:hunter2@h/x"])
def test_a_bad_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(BadSetting, match="FLOWFABRIC_URL is invalid; use postgresql://user:") as raised:
        Config.read({"FLOWFABRIC_URL": url})

    assert "hunter2" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_the_url_is_never_shown() -> None:
    config = Config(url=URL)

    for shown in (repr(config), str(config), f"{config}", pretty_repr(config)):
        assert "hunter2" not in shown
        assert "url='...'" in shown
    assert "url=None" in repr(Config())


@pytest.mark.parametrize(
    "text", [SECRET[:-1], f"{SECRET}0", f"{SECRET}\n", f" {SECRET}", f"0x{SECRET}", f"{SECRET[:-1]}g"]
)
def test_a_bad_secret_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(BadSetting, match="FLOWFABRIC_SECRET is invalid; use exactly 64 hexa") as raised:
        Config.read({"FLOWFABRIC_SECRET": text})

    assert "5ecb" not in repr(raised.value)
    assert raised.value.__suppress_context__


def test_the_secret_is_never_shown() -> None:
    for shown in (repr(Config(secret=SECRET)), str(Config(secret=SECRET)), pretty_repr(Config(secret=SECRET))):
        assert "5ecb" not in shown
        assert "secret='...'" in shown
