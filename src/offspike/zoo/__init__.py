"""The networks of the paper's tables: average pooling, one activation module per use, no activation on the output."""

from offspike.zoo.resnet import ResNet, resnet18, resnet20, resnet34
from offspike.zoo.vgg import VGG, small, vgg16

__all__ = ["NETWORKS", "VGG", "ResNet", "resnet18", "resnet20", "resnet34", "small", "vgg16"]

NETWORKS = {build.__name__: build for build in (vgg16, resnet18, resnet20, resnet34, small)}
