"""Loading the app that a command is given: `file.py:app` or `package.module:app`."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from flowfabric.app import App
from flowfabric.cli.errors import CommandError
from flowfabric.ids import shown


class CannotLoad(CommandError):
    """Loading the app failed: it does not exist, or its import raised an exception."""

    def __init__(self, message: str) -> None:
        super().__init__("cannot_load", message)


def load_app(place: str) -> App:
    """Import the app; if that fails, the command ends with the reason."""
    where, name = split_place(place)
    module = _from_file(Path(where)) if where.endswith(".py") else _from_package(where)
    try:
        found = getattr(module, name)
    except AttributeError:
        apps = [f"{where}:{each}" for each, value in vars(module).items() if isinstance(value, App)]
        raise CannotLoad(f"{where} has no variable {shown(name)}; {_hint(apps)}") from None
    if not isinstance(found, App):
        raise CannotLoad(f"{place} is a {type(found).__name__}, not a flowfabric.App; add app = flowfabric.App()")
    return found


def split_place(place: str) -> tuple[str, str]:
    """Split `file.py:app` into the file or module, and the variable."""
    where, _, name = place.rpartition(":")
    if not where or not name:
        raise CannotLoad(f"{shown(place)} is invalid; use file.py:app or package.module:app")
    return where, name


def code_directory(place: str) -> Path:
    """The directory of the file or package that an app is in, without loading it."""
    where, _ = split_place(place)
    if not where.endswith(".py"):
        return Path()
    _check_file(Path(where))
    return Path(where).parent


def _hint(apps: list[str]) -> str:
    return f"did you mean {' or '.join(apps)}?" if apps else "it has no flowfabric.App; add app = flowfabric.App()"


def _check_file(path: Path) -> None:
    try:
        exists = path.is_file()
    except OSError as error:  # the name is too long, or we may not read the directory
        raise CannotLoad(f"could not read {shown(str(path))}: {error.strerror}") from None
    if not exists:
        raise CannotLoad(f"file {shown(str(path))} does not exist in {Path.cwd()}; check the path")


def _from_file(path: Path) -> ModuleType:
    _check_file(path)
    sys.path.insert(0, str(path.parent.resolve()))  # so that it can import its neighbours, as a script can
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise CannotLoad(_import_failed(str(path), error)) from error
    return module


def _from_package(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (name == missing.name or name.startswith(f"{missing.name}.")):
            raise CannotLoad(
                f"module {shown(missing.name)} does not exist in {Path.cwd()} or on the Python path; check the name"
            ) from None
        raise CannotLoad(_import_failed(name, missing)) from missing
    except (Exception, SystemExit) as error:
        raise CannotLoad(_import_failed(name, error)) from error


def _import_failed(where: str, error: BaseException) -> str:
    """The traceback of a failed import, without the frames of this file and of the import machinery."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and not frame.filename.startswith("<frozen")
    ]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    return f"importing {where} failed:\n{''.join(lines).rstrip()}"
