"""What ONNX Runtime looks at when it is imported: the system, and its own packaging."""

from tilewright.ort.environment import INTERFACE


def check_distro_info() -> None:
    """Accepted: what runs here is known when a model is compiled."""


def check_training_module() -> tuple[None, bool, str, str, str]:
    """The module is for inference."""
    return None, False, *get_package_name_and_version_info()


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """The package's name, its version, and that of CUDA."""
    return "onnxruntime", INTERFACE, ""
