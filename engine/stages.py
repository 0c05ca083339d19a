"""Pipeline stages: which layers and weights each of them holds, as vLLM deals them out.

It knows shapes alone: what a stage's memory leaves for KV is `memory.py`, what a step over the stages
takes `cost_params.py`.
"""

from __future__ import annotations

from dataclasses import replace

from engine.models import ModelShape, weight_bytes_per_param
from traces.errors import SettingsError


def check_pp(model: ModelShape, pp: int) -> None:
    """Raise SettingsError unless each of `pp` stages gets a layer."""
    if not 1 <= pp <= model.num_layers:
        raise SettingsError(
            f"pp {pp} leaves a stage without a layer: {model.name} has {model.num_layers}. "
            f"Choose a pipeline_parallel_size between 1 and {model.num_layers}."
        )


def stage_layers(num_layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each stage, first to last.

    Those that do not divide go one each to the stages before the last, from behind.
    Source: vLLM 0.26, `get_pp_indices`.
    """
    layers = [num_layers // pp] * pp
    for i in range(2, num_layers % pp + 2):
        layers[-i] += 1
    return tuple(layers)


def stage_shapes(model: ModelShape, pp: int) -> tuple[ModelShape, ...]:
    """The shape of each stage: its own layers, the model's widths.

    Dense layers of a MoE model come first, as in DeepSeek; window layers are spread evenly.
    """
    check_pp(model, pp)
    if pp == 1:
        return (model,)
    num_dense = model.num_layers - model.num_moe_layers
    shapes, first = [], 0
    for count in stage_layers(model.num_layers, pp):
        dense = min(max(num_dense - first, 0), count)
        window = round(count * model.num_window_layers / model.num_layers)
        shapes.append(
            replace(
                model,
                num_layers=count,
                num_moe_layers=count - dense,
                num_window_layers=window,
            )
        )
        first += count
    return tuple(shapes)


def stage_weights_bytes(
    model: ModelShape, pp: int, tp: int = 1, weight_dtype: str = "auto"
) -> tuple[float, ...]:
    """Bytes of weights on each GPU of each stage: the first holds the embedding, the last the head
    (where the two are one table, both hold it)."""
    linear, expert = weight_bytes_per_param(model, weight_dtype)
    table = model.head_params * max(2.0, linear)
    bytes_ = []
    for i, shape in enumerate(stage_shapes(model, pp)):
        layers = shape.always_read_params * linear + shape.expert_params * expert
        tables = (i == 0) + (i == pp - 1)
        if pp == 1 and model.tied_embeddings:
            tables = 1
        bytes_.append((layers + tables * table) / tp)
    return tuple(bytes_)
