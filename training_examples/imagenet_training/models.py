"""Any network of torchvision's or timm's by its name, fused or plain, and the groups of its parameters."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import torchvision
from common.errors import UserError
from torch import nn

from .recipe import Recipe

TIMM = "timm/"
AUXILIARY = ("googlenet", "inception_v3")  # they return scores of inner layers, too, unless they are told not to
NORMALIZATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


def build(recipe: Recipe, classes: int) -> tuple[nn.Module, str]:
    """The network that the recipe names, and what ``fusedsc.swap`` says of it ("" if it is plain).

    Raises:
        UserError: there is no such network, its library or fusedsc is not installed, or it cannot be built.
    """
    name, from_timm = find(recipe.model)
    try:
        model = _from_timm(name, recipe, classes) if from_timm else _from_torchvision(name, recipe, classes)
    except (TypeError, ValueError, RuntimeError, OSError) as error:  # weights of other classes, no download
        raise UserError(f"--model: {name} cannot be built ({_first_line(error)}); choose another one") from error
    return (model, "") if recipe.plain else swap(model, recipe.train_size)


def synchronize(model: nn.Module) -> None:
    """Has the model's BatchNorms take the statistics of all processes, in place."""
    convert = nn.SyncBatchNorm.convert_sync_batchnorm
    if any(type(module).__module__.startswith("timm.") for module in model.modules()):
        from timm.layers import convert_sync_batchnorm as convert  # PyTorch's drops the activations of timm's layers
    convert(model)


def outside_of_blocks(model: nn.Module) -> list[str]:
    """Names of the BatchNorms that run by themselves, not in fused blocks."""
    blocks = (module for module in model.modules() if hasattr(module, "fusedsc_layers"))
    fused = {layer for block in blocks for layer in block.fusedsc_layers()}
    norms = nn.modules.batchnorm._BatchNorm
    return [name for name, module in model.named_modules() if isinstance(module, norms) and module not in fused]


def find(given: str) -> tuple[str, bool]:
    """The name of a network in its library, and whether that is timm: "timm/..." or what torchvision has not."""
    names = torchvision.models.list_models(torchvision.models)
    if given in names:
        return given, False
    timm_names = _timm_names()
    name = given.removeprefix(TIMM)
    if timm_names is None and given.startswith(TIMM):
        raise UserError(f"--model: {given} needs timm, which is not installed: pip install timm")
    if name in (timm_names or ()):
        return name, True
    near = difflib.get_close_matches(name.lower(), [*names, *(timm_names or ())], n=5, cutoff=0.5)
    remedy = f"do you mean {', '.join(dict.fromkeys(near))}?" if near else "torchvision's names and timm's are known"
    missing = "" if timm_names is not None else " (timm, which is not installed, has more)"
    raise UserError(f"--model: there is no {given}; {remedy}{missing}")


def swap(model: nn.Module, size: int) -> tuple[nn.Module, str]:
    try:
        import fusedsc
    except ImportError as error:
        raise UserError(f"fusedsc cannot be imported ({error}); build it with `make setup`, or try --plain") from error
    model = fusedsc.swap(model, inplace=True, input_size=(3, size, size), verbose=False)
    return model, fusedsc.swap_report(model).headline()


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict]:
    """Of the optimizer: all but normalizations', and those, each with its own weight decay."""
    normal = list(dict.fromkeys(_of_normalizations(model)))
    known = set(map(id, normal))
    other = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    groups = (
        {"params": other, "weight_decay": recipe.weight_decay},
        {"params": normal, "weight_decay": recipe.norm_weight_decay},
    )
    return [group for group in groups if group["params"]]


def _of_normalizations(model: nn.Module) -> Iterator[nn.Parameter]:
    for module in model.modules():
        if isinstance(module, NORMALIZATIONS):
            yield from (p for p in module.parameters(recurse=False) if p.requires_grad)


def _from_torchvision(name: str, recipe: Recipe, classes: int) -> nn.Module:
    options = {"aux_logits": False} if name in AUXILIARY else {}
    if recipe.pretrained:
        weights = torchvision.models.get_model_weights(name).DEFAULT
        known = len(weights.meta["categories"])
        if classes != known:
            raise ValueError(f"its weights know {known} classes, the images are of {classes}: leave --pretrained out")
        model = torchvision.models.get_model(name, weights=weights, **options)
    else:
        model = torchvision.models.get_model(name, weights=None, num_classes=classes, **options)
    if recipe.dropout is not None:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = recipe.dropout
    return model


def _from_timm(name: str, recipe: Recipe, classes: int) -> nn.Module:
    import timm

    options = {"drop_rate": recipe.dropout} if recipe.dropout is not None else {}
    return timm.create_model(name, pretrained=recipe.pretrained, num_classes=classes, **options)


def _timm_names() -> set[str] | None:
    try:
        import timm
    except ImportError:
        return None
    return set(timm.list_models())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
