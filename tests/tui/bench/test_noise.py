"""Is the machine quiet: what the watch sees, and when it speaks up."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdec_onnx.models import system
from specdec_onnx.models.system import peak_memory
from specdec_onnx.tui.bench import machine
from specdec_onnx.tui.bench.machine import Watch, unsteadiness, warnings

QUIET: dict[str, Any] = {
    "others_share": 0.01,
    "stolen_share": 0.0,
    "load_average_before": 0.1,
    "throttled": 0,
    "on_battery": None,
    "plain_spread": 0.02,
}


def test_a_quiet_machine_is_not_mentioned() -> None:
    assert warnings(QUIET) == []
    unknown = dict.fromkeys(QUIET)
    assert warnings(unknown | {"throttled": 0}) == []


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"others_share": 0.4}, "40 % of the processor"),
        ({"stolen_share": 0.05}, "host of this virtual machine"),
        ({"load_average_before": 999.0}, "load average was 999.0"),
        ({"throttled": 3}, "throttled for heat 3 times"),
        ({"on_battery": True}, "battery"),
        ({"plain_spread": 0.5}, "varied by 50 %"),
    ],
)
def test_each_disturbance_is_named(seen: dict[str, Any], words: str) -> None:
    said = warnings(QUIET | seen)
    assert len(said) == 1 and words in said[0]


def test_the_work_of_others_is_told_from_our_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ticks = tmp_path / "stat"
    monkeypatch.setattr(machine, "TICKS", ticks)
    clock = iter([100.0, 110.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    ticks.write_text("cpu  1000 0 0 5000 0 0 0 0 0 0\ncpu0 ...\n")
    watch = Watch()
    ticks.write_text("cpu  1500 100 0 5000 0 0 0 80 0 0\ncpu0 ...\n")  # six busy seconds, 0.8 stolen
    findings = watch.findings()
    assert findings["seconds"] == 10.0 and findings["stolen_share"] == 0.04
    assert findings["others_share"] == pytest.approx(0.3, abs=0.02)  # this test itself took next to nothing


def test_a_busy_neighbour_is_seen() -> None:
    if not Path("/proc/stat").exists():
        pytest.skip("this system does not count processor time")
    watch = Watch()
    spin = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    neighbour = subprocess.Popen([sys.executable, "-c", spin])
    while neighbour.returncode is None:  # seen before it is waited for: its seconds are still another's
        seen = watch.findings()["others_share"]
        neighbour.poll()
    assert seen > 0


def test_unsteadiness_is_the_median_distance_of_repeats() -> None:
    assert unsteadiness([[1.0, 1.1], [2.0, 2.5, 2.0], [1.0, 1.2]]) == 0.2
    assert unsteadiness([[1.0], [2.0]]) is None and unsteadiness([]) is None


def test_cores_that_share_a_physical_one_count_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "SYSTEM", tmp_path)
    monkeypatch.setattr(machine, "own_cores", lambda: {0, 1, 2, 3})
    for core, siblings in enumerate(("0-1", "0-1", "2-3", "2-3")):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "core_cpus_list").write_text(siblings + "\n")
    assert machine.physical_cores() == 2 and machine.logical_cores() == 4
    monkeypatch.setattr(machine, "SYSTEM", tmp_path / "none")
    assert machine.physical_cores() == 4


def test_peak_memory_grows_with_what_is_held() -> None:
    before = peak_memory()
    held = bytearray(200 << 20)
    held[::4096] = b"x" * len(held[::4096])
    after = peak_memory()
    assert before is not None and after is not None
    assert after >= 200 << 20 and after >= before


def test_files_that_were_read_leave_room_in_a_container(tmp_path: Path) -> None:
    for name, text in {"memory.max": "1000", "memory.current": "900"}.items():
        (tmp_path / name).write_text(text)
    assert system._container_room(tmp_path) == 100
    (tmp_path / "memory.stat").write_text("anon 200\nfile 700\ninactive_file 600\n")
    assert system._container_room(tmp_path) == 700
    (tmp_path / "memory.max").write_text("max")
    assert system._container_room(tmp_path) is None


def test_a_childs_peak_memory_is_not_its_parents() -> None:
    held = bytearray(300 << 20)
    held[::4096] = b"x" * len(held[::4096])
    code = "from specdec_onnx.models.system import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < len(held)
