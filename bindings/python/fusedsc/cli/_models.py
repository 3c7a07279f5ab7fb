"""Models named on the command line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable

from torch import nn

from ._usage import UsageError

__all__ = ["model_of"]


def model_of(name: str, options: dict[str, object]) -> nn.Module:
    """ "torchvision:mobilenet_v2", "timm:efficientnet_b0", or "package.module:factory", made with the options.

    Raises:
        UsageError: there is none of that name, or it does not take the options.
    """
    library, _, model = name.partition(":")
    if not library.strip(".") or not model:
        raise UsageError(f'"{name}": give torchvision:NAME, timm:NAME or package.module:factory')
    try:
        return SOURCES.get(library, _from_module)(library, model)(**options)
    except (UsageError, RuntimeError):  # which are sentences, of fusedsc's or PyTorch's
        raise
    except TypeError as error:
        problem = f"does not take {options}" if options else "cannot be made without arguments"
        what = str(error).partition("\n")[0]
        raise UsageError(f"{name} {problem}: {what}; give its own as NAME=VALUE") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{name} cannot be made ({_where(error)}); does it work in Python?") from error


def _from_torchvision(_: str, model: str) -> Callable[..., nn.Module]:
    models = _import("torchvision.models", "pip install torchvision")
    if model not in models.list_models():
        raise UsageError(f'torchvision has no model "{model}"; torchvision.models.list_models() lists them')
    return lambda **options: models.get_model(model, weights=None, **options)


def _from_timm(_: str, model: str) -> Callable[..., nn.Module]:
    timm = _import("timm", "pip install timm")
    if not timm.is_model(model):
        raise UsageError(f'timm has no model "{model}"; timm.list_models() lists them')
    return lambda **options: timm.create_model(model, **options)


def _from_module(module: str, factory: str) -> Callable[..., nn.Module]:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as with python -m
    remedy = "is it spelt right, and is its folder the current one or on PYTHONPATH?"
    found = getattr(_import(module, remedy), factory, None)
    if not callable(found):
        raise UsageError(f'{module} has no function or class "{factory}"')

    def made(**options) -> nn.Module:
        model = found if isinstance(found, nn.Module) and not options else found(**options)
        if not isinstance(model, nn.Module):
            raise UsageError(f"{module}:{factory} makes a {type(model).__name__}, not a torch.nn.Module")
        return model

    return made


SOURCES = {"torchvision": _from_torchvision, "timm": _from_timm}


def _import(name: str, remedy: str):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(f"{name} cannot be imported ({error}); {remedy}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{name} cannot be imported ({_where(error)}); does it work in Python?") from error


def _where(error: BaseException) -> str:
    """What went wrong in somebody's module, in one line, and where that is."""
    what = str(error).strip().partition("\n")[0]
    last = traceback.extract_tb(error.__traceback__)[-1]
    said = f"{type(error).__name__}: {what}" if what else type(error).__name__
    return said if isinstance(error, SyntaxError) else f"{said}, in {last.filename}, line {last.lineno}"
