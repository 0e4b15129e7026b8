"""Random ONNX models, valid by construction.

    case = random_case(seed)
    case = large_case(seed)   one kernel or a few, of the sizes that layers have
    case = varied_case(seed)  a block of a real model, changed a little
    case.model                the model; dimensions of its inputs may have names
    case.feeds[k]             inputs by name, for each of several choices of the named dimensions

Every dimension is known, to the generator, as a tuple: its extent under each choice. So operators
are applied only where they are valid under all of them.
"""

from onnx_random.build import Case, large_case, random_case
from onnx_random.vary import varied_case

KINDS = {"random": random_case, "large": large_case, "varied": varied_case}

__all__ = ["KINDS", "Case", "large_case", "random_case", "varied_case"]
