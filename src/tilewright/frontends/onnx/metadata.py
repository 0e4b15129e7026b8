"""What an ONNX file tells about itself."""

from __future__ import annotations

from typing import Any

from tilewright.frontends.onnx.load import Source, load_model


def read_metadata(source: Source) -> dict[str, Any]:
    """The descriptive fields of a model."""
    with load_model(source) as loaded:
        model = loaded.model
        return {
            "producer_name": model.producer_name,
            "graph_name": model.graph.name,
            "domain": model.domain,
            "description": model.doc_string,
            "graph_description": model.graph.doc_string,
            "version": model.model_version,
            "custom_metadata_map": {entry.key: entry.value for entry in model.metadata_props},
        }
