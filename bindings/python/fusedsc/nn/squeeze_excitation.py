"""Squeeze-excite as a module: a child of an inverted residual, which reads its layers and seldom calls it."""

from __future__ import annotations

from torch import Tensor, fx, nn

from ..arguments import described, layer_class, positive

__all__ = ["SqueezeExcitation"]


class SqueezeExcitation(nn.Module):
    """Each channel times gate(fc2(activation(fc1(its mean)))): torchvision's module of that name, with its children.

    Args:
        input_channels: E.
        squeeze_channels: of what is between the two 1x1 convolutions.
        activation: the class of what follows the first one.
        scale_activation: the class of the gate.
    """

    def __init__(
        self,
        input_channels: int,
        squeeze_channels: int,
        activation: type[nn.Module] = nn.ReLU,
        scale_activation: type[nn.Module] = nn.Sigmoid,
    ) -> None:
        super().__init__()
        input_channels = positive("input_channels", input_channels)
        squeeze_channels = positive("squeeze_channels", squeeze_channels)
        activation = layer_class("activation", activation)
        scale_activation = layer_class("scale_activation", scale_activation)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(input_channels, squeeze_channels, 1)
        self.fc2 = nn.Conv2d(squeeze_channels, input_channels, 1)
        self.activation = activation()
        self.scale_activation = scale_activation()

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor | fx.Proxy):
            raise ValueError(f"x: {described(x)}; give a tensor")
        return self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x))))) * x
