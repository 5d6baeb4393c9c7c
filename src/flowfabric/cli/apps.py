"""Finding the app that a command is given: `file.py:app` or `package.module:app`."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from flowfabric.app import App
from flowfabric.cli.refusals import Refused
from flowfabric.ids import shown


class CannotLoad(Refused):
    """There is no app where the command was told to look; ends it with one line, or with what the import raised."""

    def __init__(self, message: str) -> None:
        super().__init__("cannot_load", message)


def load_app(place: str) -> App:
    """The app at a place; if there is none, the command ends with what is wrong there."""
    where, _, name = place.rpartition(":")
    if not where or not name:
        raise CannotLoad(f"{shown(place)} names no app; write file.py:app or package.module:app")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_package(where)
    try:
        found = getattr(module, name)
    except AttributeError:
        apps = [f"{where}:{each}" for each, value in vars(module).items() if isinstance(value, App)]
        raise CannotLoad(f"{where} has no {shown(name)}; {_or_else(apps)}") from None
    if not isinstance(found, App):
        raise CannotLoad(f"{place} is a {type(found).__name__}, not an App; make one with app = flowfabric.App()")
    return found


def _or_else(apps: list[str]) -> str:
    return f"there is {', '.join(apps)}" if apps else "there is no App in it; make one with app = flowfabric.App()"


def _from_file(path: Path) -> ModuleType:
    try:
        there = path.is_file()
    except OSError as error:  # a name that is too long, or a directory that is closed to us
        raise CannotLoad(f"{shown(str(path))} cannot be looked at: {error.strerror}") from None
    if not there:
        raise CannotLoad(f"there is no file {path} in {Path.cwd()}")
    sys.path.insert(0, str(path.parent.resolve()))  # it finds its neighbours, as if it were run
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise CannotLoad(_raised(str(path), error)) from error
    return module


def _from_package(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (name == missing.name or name.startswith(f"{missing.name}.")):
            raise CannotLoad(f"there is no module {shown(missing.name)}, seen from {Path.cwd()}") from None
        raise CannotLoad(_raised(name, missing)) from missing
    except (Exception, SystemExit) as error:
        raise CannotLoad(_raised(name, error)) from error


def _raised(where: str, error: BaseException) -> str:
    """What an import raised, with the lines of the program it came through and none of ours or of the importer's."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and not frame.filename.startswith("<frozen")
    ]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    return f"{where} cannot be imported:\n{''.join(lines).rstrip()}"
