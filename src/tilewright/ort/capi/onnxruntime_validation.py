"""ONNX Runtime's checks at import: the system, and the package."""

from tilewright.ort.environment import INTERFACE


def check_distro_info() -> None:
    """Accepted without effect: the machine is checked when a model is compiled."""


def check_training_module() -> tuple[None, bool, str, str, str]:
    """Whether the package includes training: no."""
    return None, False, *get_package_name_and_version_info()


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """The package's name, version and CUDA version."""
    return "onnxruntime", INTERFACE, ""
