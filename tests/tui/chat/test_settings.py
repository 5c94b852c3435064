"""What is stored with a conversation comes back, and nothing that the engine would refuse."""

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support.chat_app import chat_app, until
from support.scripted_session import ScriptedSession
from textual.widgets import Input

from specdec_onnx.runtime.drafting import speculation
from specdec_onnx.runtime.model import device
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.tui.chat.screens.settings import SettingsScreen
from specdec_onnx.tui.chat.settings import DEFAULTS, FIELDS, Settings
from specdec_onnx.tui.cli import arguments


def test_stored_settings_come_back_whole() -> None:
    chosen = Settings(system="Be brief.", device="cuda", speculate=False, seed=3, top_k=5, stop=("END", "\n"))
    assert Settings.from_dict(json.loads(json.dumps(chosen.as_dict()))) == chosen


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 7),
        ("seed", -1),
        ("stop", 3),
        ("stop", [1]),
        ("device", 1),
        ("speculate", "no"),
        ("logit_bias", []),
        ("unknown", 1),
    ],
)
def test_a_damaged_entry_keeps_its_default_and_the_others_count(name: str, value: Any) -> None:
    assert Settings.from_dict({name: value, "system": "kept"}) == Settings(system="kept")


def test_the_engine_takes_them_as_they_are() -> None:
    assert isinstance(DEFAULTS, Parameters)
    assert {field.name for field in FIELDS} < set(DEFAULTS.as_dict())


def test_every_number_of_the_parameters_is_in_the_dialog_and_on_the_command_line() -> None:
    numbers = {field.name for field in fields(Parameters)} - {"stop", "logit_bias"}
    parser = argparse.ArgumentParser()
    arguments.run_arguments(parser)
    options = {action.dest for action in parser._actions}
    assert {field.name for field in FIELDS} == numbers <= options


def test_the_command_line_offers_the_modes_and_caches_of_the_engine() -> None:
    assert arguments.MODES == speculation.MODES
    assert arguments.CACHES == device.CACHES


async def test_what_only_the_engine_refuses_is_said_in_the_dialog(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        await pilot.press("f2")
        await until(lambda: isinstance(app.screen, SettingsScreen))
        app.screen.query_one("#top_p", Input).value = "0"
        await pilot.press("ctrl+s")
        assert "above 0" in str(app.screen.query_one("#problem").render())
