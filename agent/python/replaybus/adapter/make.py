"""Makes an environment from what a run's file says: a callable of the user, or an id of gymnasium."""
import difflib
import importlib
from typing import Any, Callable, Mapping

from .spaces import Refused

WORDS = {"true": True, "false": False, "null": None, "~": None, "": ""}


def value_of(text: str) -> Any:
    """The value that an option's text stands for: a number, true, false, null, or the text itself.

    >>> value_of("3"), value_of("1e-3"), value_of("true"), value_of("human")
    (3, 0.001, True, 'human')
    """
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for read in (int, float):
        try:
            return read(text) if any(c.isdigit() for c in text) else text  # "nan" and "inf" are words
        except ValueError:
            pass
    return text


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise Refused(f"there is no module '{error.name}': it is looked up in the folder of the run's file, in the present "
                      "folder, in PYTHONPATH and among the installed packages") from None


def find_callable(target: str) -> Callable:
    """The callable that "module:name" names."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise Refused(f"'{target}' is not module:callable, such as my_env:make")
    found = _module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            near = difflib.get_close_matches(name, dir(found), 1)
            raise Refused(f"module '{module_name}' has no '{path}'" + (f" (did you mean '{near[0]}'?)" if near else ""))
        found = getattr(found, name)
    if not callable(found):
        raise Refused(f"'{target}' is a {type(found).__name__}, not something that can be called to make an environment")
    return found


def gym_make() -> Callable:
    """gymnasium.make, or else gym.make."""
    for name in ("gymnasium", "gym"):
        try:
            return importlib.import_module(name).make
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise Refused("environment.name: gym:ID needs gymnasium (or gym), and Python finds neither: pip install gymnasium, or write "
                  "environment.name: python:MODULE:CALLABLE with a callable of your own")


def factory(python: str, gym: str, options: Mapping[str, str]) -> Callable[[], Any]:
    """A function without arguments that makes one environment."""
    arguments = {name: value_of(text) for name, text in options.items()}
    if python:
        make = find_callable(python)
        return lambda: make(**arguments)
    make = gym_make()
    return lambda: make(gym, **arguments)
