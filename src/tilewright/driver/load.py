"""Load saved models and functions: `tilewright.load`.

The runtime loads native code and imports nothing of the compiler. A model with parts for the
interpreter contains them as text; only then is the interpreter imported.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.base.errors import TilewrightError, UserError
from tilewright.runtime import saved
from tilewright.runtime.library import LoadedFunction
from tilewright.runtime.module import Module


def load(path: str | Path, name: str = "") -> LoadedFunction | Module:
    """Load a library that `save` wrote: its model, or its only function unless `name` is given.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import tilewright as tw
        >>> from tilewright import graph
        >>> program = graph.parse("graph @main(%x: f32[4]) { %y = neg(%x) return %y }")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model = tw.load(tw.compile(program).save(Path(folder) / "model.so"))
        ...     np.asarray(model(np.ones(4, np.float32))[0])
        ...
        array([-1., -1., -1., -1.], dtype=float32)
    """
    loaded = saved.load(path, name)
    if not isinstance(loaded, saved.LoadedModule) or loaded.foreign is None:
        return loaded
    from tilewright.driver.saved_parts import hybrid_module  # the interpreter: rarely needed

    try:
        return hybrid_module(loaded, loaded.foreign)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, TilewrightError) and error.code != "TW0201":
            raise
        raise UserError(
            "TW4033", f"{path} is damaged: what the interpreter is to run cannot be read: {error}"
        ) from error
