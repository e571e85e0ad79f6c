"""Which models of public zoos ``model_zoos.py`` builds, and how: small members of each family, random weights.

Left out are larger and wider members of a family that is here (resnet152, densenet201, hrnet_w64, …), variants for
other data (``_cifar100``, ``_svhn``, ``_cub``), and most of the families of attention, GELU, SiLU and h-swish.
"""

import fnmatch
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Tensor, ...]]

TORCHVISION = """alexnet resnet18 resnet50 resnext50_32x4d vgg16_bn mobilenet_v2 mnasnet0_5 densenet121 googlenet
inception_v3 squeezenet1_0 squeezenet1_1 shufflenet_v2_x0_5 regnet_x_400mf fcn_resnet50 deeplabv3_resnet50
lraspp_mobilenet_v3_large r3d_18 mc3_18 r2plus1d_18 regnet_y_400mf mobilenet_v3_small efficientnet_b0 convnext_tiny
vit_b_32 swin_t"""
TIMM = """resnet10t resnet14t resnet18 resnet18d resnet26d resnet50 resnet50_gn resnetaa34d resnetblur18
resnext50_32x4d ecaresnet26t seresnet18 resnetrs50 test_resnet resnetv2_18 resnetv2_18d resnetv2_50 resnetv2_50d_gn
vgg11_bn densenet121 hrnet_w18_small dla34 dla46_c dla46x_c dla60_res2net vovnet39a ese_vovnet19b_dw repvgg_a0
mobileone_s0 gernet_s resnet33ts resnet50_clip_gap test_byobnet selecsls42 mobilenetv1_100 mobilenetv2_050
mobilenetv2_110d mnasnet_050 mnasnet_small semnasnet_050 spnasnet_100 efficientnet_lite0 tf_efficientnet_lite0
efficientnet_es mobilenet_edgetpu_100 fbnetc_100 tf_mobilenetv3_small_minimal_100 tf_mobilenetv3_large_minimal_100
mobilenetv4_conv_small mobilenetv4_conv_medium mobilenetv4_conv_aa_medium mobilenetv4_conv_blur_medium
mobilenetv3_small_050 lcnet_035 hardcorenas_a ghostnet_050 ghostnetv2_100 ghostnetv3_050 repghostnet_050 inception_v3
inception_resnet_v2 legacy_xception xception41 regnetx_002 regnetx_004 regnety_002 regnetv_040 regnetz_005
res2net50_14w_8s res2net50d resnest14d skresnet18 legacy_seresnet18 tresnet_m dpn48b dpn68 cspresnet50 darknet17
cs3darknet_s hgnet_tiny hgnetv2_b0 fasternet_t0 starnet_s050 nf_resnet26 nf_regnet_b0 lcnetv2_small nextvit_small
efficientvit_m0 efficientvit_b0 botnet26t_256 halonet26t lambda_resnet26t coatnet_bn_0_rw_224 levit_128s repvit_m1
shvit_s1 convmixer_1024_20_ks9_p14 mixer_s32_224 poolformer_s12 convnext_atto efficientnet_b0 vit_tiny_patch16_224"""
PYTORCHCV_IMAGENET = """alexnet bninception resnet10 resnetbc14b resnet18_wd4 resnet18 resnet50 preresnet10
preresnetbc14b preresnet18 resnext14_16x4d seresnet10 sepreresnet10 senet16 resnesta18 ibn_resnet50 ibnb_resnet50
airnet50_1x64d_r2 bam_resnet18 cbam_resnet18 resattnet56 sknet50 scnet50 regnetx002 regnety002 diaresnet10
diapreresnet10 diracnet18v2 sharesnet18 densenet121 condensenet74_c4_g4 sparsenet121 peleenet drnc26 dpn68 darknet_ref
darknet_tiny darknet19 channelnet revnet38 bagnet9 dla34 dla46c dla46xc msdnet22 fishnet99 espnetv2_wd2 dicenet_wd5
hrnet_w18_small_v1 vovnet27s vovnet39 selecsls42 hardnet39ds xdensenet121_2 squeezenet_v1_0 squeezenet_v1_1
squeezeresnet_v1_0 sqnxt23_w1 sqnxt23v5_w1 shufflenet_g3_w1 shufflenetv2_wd2 shufflenetv2b_wd2 menet108_8x1_g3
mobilenet_wd4 mobilenetb_wd4 fdmobilenet_wd4 mobilenetv2_wd4 mobilenetv2b_wd4 mobilenetv3_small_w7d20 igcv3_wd4
ghostnet mnasnet_b1 mnasnet_a1 mnasnet_small darts proxylessnas_cpu fbnet_cb xception inceptionv3 inceptionv4
inceptionresnetv1 nasnet_4a1056 spnasnet efficientnet_b0 efficientnet_edge_small_b mixnet_s isqrtcovresnet18 resneta10
resnetabc14b octresnet10_ad2 tresnet_m"""
PYTORCHCV_CIFAR = """nin resnet20 resnet56 preresnet20 resnext20_16x4d seresnet20 pyramidnet110_a48 densenet40_k12
densenet40_k12_bc xdensenet40_2_k24_bc wrn20_10_1bit ror3_56 rir msdnet22 resdropresnet20 shakeshakeresnet20_2x16d
shakedropresnet20 fractalnet diaresnet20"""
PYTORCHCV_OTHER = """fcn8sd_resnetd50b_voc pspnet_resnetd50b_voc deeplabv3_resnetd50b_voc icnet_resnetd50b_cityscapes
fastscnn_cityscapes cgnet_cityscapes dabnet_cityscapes bisenet_resnet18_celebamaskhq lednet_cityscapes
edanet_cityscapes erfnet_cityscapes linknet_cityscapes segnet_cityscapes unet_cityscapes sqnet_cityscapes
enet_cityscapes simplepose_resnet18_coco simplepose_mobile_resnet18_coco centernet_resnet18_voc
lwopenpose2d_mobilenet_cmupan_coco ibppose_coco espcnet_cityscapes"""
SMP = """Unet Unet:densenet121 Unet:mobilenet_v2 Unet:vgg11_bn UnetPlusPlus MAnet Linknet FPN PSPNet PAN DeepLabV3
DeepLabV3Plus UPerNet Segformer"""
TRANSFORMERS = "ResNet RegNet MobileNetV1 MobileNetV2 OPT T5"
MONAI = """BasicUNet UNet SegResNet DenseNet ResNet SENet HighResNet DynUNet VNet FullyConnectedNet Regressor
Classifier AutoEncoder"""
SIZES = {
    "inception": 96, "vit_": 224, "swin_t": 64, "mixer_": 224, "alexnet": 224, "zfnet": 224, "bn_vgg": 224,
    "polynet": 128, "PAN": 128, "selecsls": 96, "_256": 256, "_224": 224,
}  # fmt: skip


def listed() -> dict[str, list[str]]:
    """Package -> the names of its models."""
    cifar = " ".join(f"{name}_cifar10" for name in PYTORCHCV_CIFAR.split())
    lists = {
        "segmentation_models_pytorch": SMP,
        "transformers": TRANSFORMERS,
        "monai": MONAI,
        "efficientnet_pytorch": "efficientnet-b0",
        "torchvision": TORCHVISION,
        "pytorchcv": f"{cifar} {PYTORCHCV_IMAGENET} {PYTORCHCV_OTHER}",
        "timm": TIMM,
    }
    return {package: names.split() for package, names in lists.items()}


def select(patterns: list[str], installed: list[str]) -> list[str]:
    """The listed models as ``package:name``; a pattern that matches none of them is a model of its own."""
    names = [f"{package}:{name}" for package, models in listed().items() if package in installed for name in models]
    if not patterns:
        return names
    return [name for pattern in patterns for name in fnmatch.filter(names, pattern) or [pattern]]


def let_torchvision_in() -> None:
    """torchvision beside a torch that cannot load its C++ operators: two names are enough for its models in Python."""
    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )


def build(name: str) -> Built:
    """The model ``package:name`` with random weights, and two inputs."""
    package, _, model = name.partition(":")
    torch.manual_seed(0)
    built = BUILDERS[package](model)
    if isinstance(built, nn.Module):
        size = 32 if model.endswith("_cifar10") else _size(model)
        built = built, (_noise(3, size, size),)
    return built


def _size(name: str) -> int:
    return next((size for part, size in SIZES.items() if part in name), 64)


def _noise(*shape: int) -> Tensor:
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))


def _torchvision(name: str) -> nn.Module | Built:
    from torchvision import models

    extra: dict[str, Any] = {"weights": None, "num_classes": 10}
    if name.startswith(("fcn", "deeplab", "lraspp")):
        extra["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        extra |= {"aux_logits": False, "transform_input": False, "init_weights": False}
    model = models.get_model(name, **extra)
    return (model, (_noise(3, 4, 32, 32),)) if name in ("r3d_18", "mc3_18", "r2plus1d_18") else model


def _timm(name: str) -> nn.Module:
    import timm

    return timm.create_model(name, num_classes=10)  # type: ignore[no-any-return]


def _pytorchcv(name: str) -> nn.Module:
    from pytorchcv.model_provider import get_model

    size = 32 if name.endswith("_cifar10") else _size(name)
    extra = {"return_heatmap": True} if name.startswith("simplepose") else {}  # else coordinates, by control flow
    try:
        model = get_model(name, pretrained=False, in_size=(size, size), **extra)
    except TypeError:  # it has a size of its own
        model = get_model(name, pretrained=False)
    for path, module in list(model.named_modules()):
        if path.endswith("final_pool") and type(module) is nn.AvgPool2d:  # its window is for images of 224 pixels
            parent, _, place = path.rpartition(".")
            setattr(model.get_submodule(parent), place, nn.AdaptiveAvgPool2d(1))
    return model  # type: ignore[no-any-return]


def _smp(name: str) -> nn.Module:
    import segmentation_models_pytorch as smp

    kind, _, encoder = name.partition(":")
    return getattr(smp, kind)(encoder or "resnet18", encoder_weights=None, classes=3)  # type: ignore[no-any-return]


def _transformers(name: str) -> nn.Module | Built:
    import transformers as hf

    ids = torch.arange(16).reshape(2, 8)
    small: dict[str, Any] = {"num_labels": 5}
    if name in ("ResNet", "RegNet"):
        small |= {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 2], "layer_type": "basic"}
    if name == "RegNet":
        small |= {"layer_type": "x", "groups_width": 8}
    if name == "OPT":
        config = hf.OPTConfig(
            vocab_size=64,
            hidden_size=16,
            ffn_dim=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            word_embed_proj_dim=16,
        )
        return hf.OPTForCausalLM(config), (ids,)
    if name == "T5":
        config = hf.T5Config(vocab_size=64, d_model=16, d_ff=32, num_layers=2, num_heads=2, d_kv=8)
        return hf.T5EncoderModel(config), (ids,)
    config = getattr(hf, f"{name}Config")(**small)
    return getattr(hf, f"{name}ForImageClassification")(config)  # type: ignore[no-any-return]


def _monai(name: str) -> Built:
    from monai.networks import nets

    act = {"act": "relu"}
    small: dict[str, Callable[[], nn.Module]] = {
        "BasicUNet": lambda: nets.BasicUNet(2, 3, 2, features=(8, 8, 16, 16, 32, 8), norm="batch", **act),
        "UNet": lambda: nets.UNet(2, 3, 2, channels=(8, 16, 32), strides=(2, 2), num_res_units=2, norm="batch", **act),
        "SegResNet": lambda: nets.SegResNet(2, 8, 3, 2, norm="batch"),
        "DenseNet": lambda: nets.DenseNet121(2, 3, 5),
        "ResNet": lambda: nets.resnet18(spatial_dims=2, n_input_channels=3, num_classes=5),
        "SENet": lambda: nets.SEResNet50(spatial_dims=2, in_channels=3, num_classes=5),
        "HighResNet": lambda: nets.HighResNet(2, 3, 2),
        "DynUNet": lambda: nets.DynUNet(2, 3, 2, [3, 3, 3], [1, 2, 2], [2, 2], norm_name="batch", act_name="relu"),
        "VNet": lambda: nets.VNet(2, 16, 2, act="relu"),
        "FullyConnectedNet": lambda: nets.FullyConnectedNet(12, 3, [16, 8], act="relu"),
        "Regressor": lambda: nets.Regressor((3, 32, 32), (2,), (8, 16), (2, 2), norm="batch", **act),
        "Classifier": lambda: nets.Classifier((3, 32, 32), 4, (8, 16), (2, 2), norm="batch", **act),
        "AutoEncoder": lambda: nets.AutoEncoder(2, 3, 3, (8, 16), (2, 2), norm="batch", **act),
    }
    image = {"FullyConnectedNet": _noise(12), "VNet": _noise(16, 32, 32)}.get(name, _noise(3, 32, 32))
    return small[name](), (image,)


def _efficientnet(name: str) -> nn.Module:
    from efficientnet_pytorch import EfficientNet

    return EfficientNet.from_name(name)  # type: ignore[no-any-return]


BUILDERS: dict[str, Callable[[str], Any]] = {
    "torchvision": _torchvision,
    "pytorchcv": _pytorchcv,
    "timm": _timm,
    "segmentation_models_pytorch": _smp,
    "transformers": _transformers,
    "monai": _monai,
    "efficientnet_pytorch": _efficientnet,
}
