"""What a pass of a model will cost, told from two short exports of it: the first layers, and some more."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from specdec_onnx.export.assemble import ModelWriter, Order
from specdec_onnx.export.checkpoint.base import Checkpoint
from specdec_onnx.export.measure import steady_cost_ms
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.models.progress import silent


class TokenCost:
    """Milliseconds of a single-token pass by the number of layers, a straight line through two measured slices."""

    def __init__(self, checkpoint: Checkpoint, order: Order, work: Path) -> None:
        """Measure; the slices are written below `work`, which exists, and removed again."""
        layers = int(checkpoint.config["num_hidden_layers"])
        self._depths = sorted({max(1, layers // 4), max(1, layers // 2), min(2, layers)})[-2:]
        plain = replace(order, smooth=False, trim_by="lowest")
        with TemporaryDirectory(dir=work, prefix=".slices-") as folder:
            models = [_written(checkpoint, plain, depth, Path(folder) / str(depth)) for depth in self._depths]
            self._costs = [costs[1] for costs in steady_cost_ms(models, (1,))]

    def __call__(self, layers: int) -> float:
        """Milliseconds with that many layers; never less for more of them."""
        if len(self._depths) == 1:
            return self._costs[0]
        (few, many), (low, high) = self._depths, self._costs
        return low + max(high - low, 0.0) / (many - few) * (layers - few)


def _written(checkpoint: Checkpoint, order: Order, depth: int, folder: Path) -> ModelFolder:
    writer = ModelWriter(checkpoint, folder, replace(order, layers=tuple(range(depth))))
    writer.describe()
    writer.build(silent)
    return open_model(folder)
