"""Builds the models that check_cuda.py runs: `python tests/device/build_models.py FOLDER [--small]`, about 45 MB.

They are built where the export extra is installed and carried to the machine under test, which needs no onnx.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

MIDDLE = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "num_hidden_layers": 6,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
}
SMALL = MIDDLE | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
SMALL |= {"num_hidden_layers": 2, "vocab_size": 512}
DRAFT = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1}
FORMATS = ("fp32", "int4", "int8", "w8a8")


def build(folder: Path, middle: dict[str, Any], *, halve: bool) -> None:
    """One tiny model in each format, and a pair whose target has the sizes of `middle`; caches halved or not."""
    from support.tiny import export_tiny, export_tiny_pair

    from specdec_onnx.export.graph.half_cache import halve_cache

    for format in FORMATS:
        export_tiny(folder / f"tiny-{format}", format=format, seed=3, **WIDE_HEADS)
    draft = middle | DRAFT | {"num_hidden_layers": 2}
    export_tiny_pair(
        folder / "pair", target_format="int4", seed=5, draft_seed=6, target_sizes=middle, draft_sizes=draft
    )
    for graph in folder.rglob("model.onnx") if halve else ():
        halve_cache(graph.parent.parent)


# Attention kernels on graphics processors want heads of 64 and more.
WIDE_HEADS = {"hidden_size": 256, "intermediate_size": 512}


def main() -> None:
    """Build into the folder that was named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true", help="a pair of toy size, to try the check itself")
    parser.add_argument(
        "--cache",
        choices=["fp16", "fp32"],
        default="fp16",
        help="fp16 is what attention on CUDA asks for; SwiftShader has no half precision (default: %(default)s)",
    )
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    build(args.folder, SMALL if args.small else MIDDLE, halve=args.cache == "fp16")


if __name__ == "__main__":
    main()
