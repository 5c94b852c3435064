"""Sizes of memory and files in words."""

from specdec_onnx.models.memory import gigabytes


def test_sizes_are_given_in_round_numbers() -> None:
    assert gigabytes(1_640_000_000) == "1.6 GB" and gigabytes(135_000_000) == "135 MB"
